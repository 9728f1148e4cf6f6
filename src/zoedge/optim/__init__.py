"""Zeroth-order optimizers: PyTorch optimizers that need the loss only, no backward pass.

>>> import torch
>>> from zoedge.optim import ZOSGD
>>> model = torch.nn.Linear(3, 1)
>>> x, y = torch.ones(8, 3), torch.zeros(8, 1)
>>> opt = ZOSGD(model.parameters(), lr=1e-2)
>>> for _ in range(3):
...     loss = opt.step(lambda: torch.nn.functional.mse_loss(model(x), y))
>>> opt.last.step
2
"""

from zoedge.optim.adam import ZOAdam
from zoedge.optim.record import NonFiniteLossError, StepRecord
from zoedge.optim.sgd import ZOSGD
from zoedge.optim.zeroth_order import ZerothOrder

__all__ = ["ZOSGD", "NonFiniteLossError", "StepRecord", "ZOAdam", "ZerothOrder"]
