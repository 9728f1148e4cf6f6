"""The losses of a step, and what follows from them along its directions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zoedge.optim.directions import Direction
from zoedge.optim.loss import Loss
from zoedge.optim.moves import Moves


@dataclass(frozen=True)
class Probe:
    """Where curvature is measured beside a step: along directions v of its own, moved by ``mu``.

    Attributes:
        directions: v, one for each query of the step.
        mu: the length of the move.
    """

    directions: Sequence[Direction]
    mu: float


@dataclass(frozen=True)
class Evaluation:
    """Losses at x and beside it; one number for each query, NaN where it was not evaluated."""

    plus: tuple[float, ...]
    minus: tuple[float, ...]
    centre: float
    slopes: tuple[float, ...]
    probe_slopes: tuple[float, ...]
    curvatures: tuple[float, ...]


def evaluate(
    loss: Loss, moves: Moves, directions: Sequence[Direction], mu: float, forward: bool, probe: Probe | None
) -> Evaluation:
    """Evaluate along all directions of a step, and along those of a probe; the parameters are left beside x.

    Args:
        loss: at the parameters as they are.
        moves: where they are.
        directions: u, one for each query.
        mu: the length of the move.
        forward: whether a slope is (f+ - f) / mu instead of (f+ - f-) / (2 mu).
        probe: where to measure curvature; along u itself the losses of the slopes are used again.
    """
    centre = loss() if forward or probe else math.nan
    along_u = probe is not None and probe.directions is directions and probe.mu == mu
    pairs = [_pair(loss, moves, u, mu, both=not forward or along_u) for u in directions]
    probed = pairs
    if probe and not along_u:
        probed = [_pair(loss, moves, v, probe.mu, both=True) for v in probe.directions]
    slopes = tuple((p - centre) / mu if forward else (p - m) / (2 * mu) for p, m in pairs)
    probe_slopes = slopes
    if not along_u:
        probe_slopes = tuple((p - m) / (2 * probe.mu) if probe else math.nan for p, m in probed)
    curvatures = tuple((p - 2 * centre + m) / probe.mu**2 if probe else math.nan for p, m in probed)
    plus, minus = zip(*pairs, strict=True)
    return Evaluation(plus, minus, centre, slopes, probe_slopes, curvatures)


def _pair(loss: Loss, moves: Moves, direction: Direction, mu: float, both: bool) -> tuple[float, float]:
    moves.move(direction, mu)
    plus = loss()
    if not both:
        return plus, math.nan
    moves.move(direction, -mu)
    return plus, loss()
