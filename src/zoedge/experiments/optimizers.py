"""The optimizer of a run, and its step, alike for first- and zeroth-order methods."""

import torch
from torch.optim import Optimizer

from zoedge.experiments.objective import Objective
from zoedge.experiments.settings import Settings
from zoedge.optim import ZOSGD, ZOAdam


def build_optimizer(settings: Settings, objective: Objective) -> Optimizer:
    """The optimizer that the settings name."""
    params, momentum = list(objective.model.parameters()), settings.momentum
    estimate = {
        "mu": settings.mu,
        "directions": settings.directions,
        "queries": settings.queries,
        "form": settings.form,
        "seed": settings.seed,
    }
    betas = (momentum, settings.beta2)
    lr = 1.0 if settings.lr == "edge" else settings.lr
    match settings.method:
        case "gd":
            return torch.optim.SGD(params, lr=lr)
        case "gdm":
            return torch.optim.SGD(params, lr=lr, momentum=momentum)
        case "adam":
            return torch.optim.Adam(params, lr=lr, betas=betas)
        case "zo-gd":
            return ZOSGD(params, lr=lr, **estimate)
        case "zo-gdm":
            return ZOSGD(params, lr=lr, momentum=momentum, **estimate)
        case "zo-adam":
            return ZOAdam(params, lr=lr, betas=betas, **estimate)


def take_step(optimizer: Optimizer, objective: Objective, step: int) -> float:
    """One step on the batch of this step; the loss."""
    chunks = objective.batch(step)
    if isinstance(optimizer, ZOSGD | ZOAdam):
        return float(optimizer.step(lambda: objective.total(chunks)))
    optimizer.zero_grad()
    size = sum(len(inputs) for inputs, _ in chunks)
    loss = 0.0
    for chunk in chunks:  # one graph at a time
        part = objective.part(chunk)
        (part * (len(chunk[0]) / size)).backward()
        loss += float(part.detach()) * len(chunk[0]) / size
    optimizer.step()
    return loss
