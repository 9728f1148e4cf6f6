"""The methods: which recursion turns gradient estimates into steps.

Every method is momentum on a step size: with m = beta m + g and x -= scale * lr * P^-1 m,

=========  ========  =============  ==================
method     beta      scale          P
=========  ========  =============  ==================
GD         0         1              identity
GDM        beta      1              identity
Adam       beta1     1 - beta1      the preconditioner
=========  ========  =============  ==================

so that one set of formulas serves all of them. The zeroth-order methods ZOGD, ZOGDM, ZOAdam are the same
recursions on estimated gradients. For Adam the formulas are those of the frozen preconditioner, and the
spectrum is that of P^-1 H.
"""

from dataclasses import dataclass
from typing import ClassVar

from zoedge.theory import checks


@dataclass(frozen=True)
class Method:
    """A recursion; use one of its subclasses."""

    name: ClassVar[str]
    label: ClassVar[str]
    zeroth_order: ClassVar[bool]

    @property
    def momentum(self) -> float:
        """The factor beta of the recursion m = beta m + g."""
        return 0.0

    @property
    def scale(self) -> float:
        """What the step size is multiplied by in x -= scale * lr * P^-1 m."""
        return 1.0


@dataclass(frozen=True)
class GD(Method):
    """Gradient descent: x -= lr * g."""

    name = "gd"
    label = "GD"
    zeroth_order = False


@dataclass(frozen=True)
class ZOGD(Method):
    """Zeroth-order gradient descent."""

    name = "zo-gd"
    label = "ZO-GD"
    zeroth_order = True


@dataclass(frozen=True)
class _Momentum(Method):
    beta: float = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", checks.fraction("beta", self.beta))

    @property
    def momentum(self) -> float:
        return self.beta


class GDM(_Momentum):
    """Gradient descent with Polyak momentum: m = beta m + g, x -= lr * m."""

    name = "gdm"
    label = "GDM"
    zeroth_order = False


class ZOGDM(_Momentum):
    """Zeroth-order gradient descent with momentum."""

    name = "zo-gdm"
    label = "ZO-GDM"
    zeroth_order = True


@dataclass(frozen=True)
class _Adaptive(Method):
    beta1: float = 0.9

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta1", checks.fraction("beta1", self.beta1))

    @property
    def momentum(self) -> float:
        return self.beta1

    @property
    def scale(self) -> float:
        return 1.0 - self.beta1


class Adam(_Adaptive):
    """Adam with a frozen preconditioner: m = beta1 m + (1 - beta1) g, x -= lr * P^-1 m."""

    name = "adam"
    label = "Adam"
    zeroth_order = False


class ZOAdam(_Adaptive):
    """Zeroth-order Adam with a frozen preconditioner."""

    name = "zo-adam"
    label = "ZO-Adam"
    zeroth_order = True


METHODS: dict[str, type[Method]] = {cls.name: cls for cls in (GD, GDM, Adam, ZOGD, ZOGDM, ZOAdam)}
"""The methods by name, in the order of the paper's Table 1."""
