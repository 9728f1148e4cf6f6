"""Sorting: a sequence of numbers is followed by the same numbers in order, to be predicted one by one."""

import torch

from zoedge.tasks.losses import IGNORED
from zoedge.tasks.task import Task, seeded
from zoedge.theory import checks


def sorting(examples: int = 1000, numbers: int = 4, length: int = 8, seed: int = 0) -> Task:
    """Random sequences with their sorted copies; the model sees all but the last token and predicts the next.

    >>> task = sorting(examples=1, numbers=4, length=3, seed=2)
    >>> task.inputs.tolist(), task.targets.tolist()
    ([[0, 3, 1, 0, 1]], [[-1, -1, 0, 1, 3]])

    Args:
        examples: number of sequences.
        numbers: how many different ones there are; number i is token i - 1.
        length: of a sequence before its sorted copy.
        seed: of the sequences.
    """
    checks.count("numbers", numbers, at_least=2)
    checks.count("length", length)
    given = torch.randint(numbers, (checks.count("examples", examples), length), generator=seeded(seed))
    tokens = torch.cat([given, given.sort(1).values], 1)
    targets = tokens[:, 1:].clone()
    targets[:, : length - 1] = IGNORED
    return Task("sorting", tokens[:, :-1], targets, numbers)
