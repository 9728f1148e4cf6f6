"""The tasks: what models are trained on.

>>> from zoedge.tasks import LOSSES, sorting
>>> task = sorting(examples=100)
>>> task.inputs.shape, task.classes
(torch.Size([100, 15]), 4)
"""

from zoedge.tasks.cifar10 import cifar10
from zoedge.tasks.digits import digits
from zoedge.tasks.losses import IGNORED, LOSSES
from zoedge.tasks.sorting import sorting
from zoedge.tasks.task import Task

TASKS = {"cifar10": cifar10, "digits": digits, "sorting": sorting}

__all__ = ["IGNORED", "LOSSES", "TASKS", "Task", "cifar10", "digits", "sorting"]
