"""How near a run is to the edge, from loss values alone."""

import math
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

from zoedge.monitor.moments import critical, moments
from zoedge.optim.zeroth_order import ZerothOrder
from zoedge.theory import checks

Verdict = Literal["well inside", "at the edge", "beyond"]

# The edge ratios between which a run is at the edge: training hovers around 1, it does not sit on it.
_EDGE = (0.8, 1.25)
# Probes in a row that must be surely beyond the edge before there is a warning.
_PATIENCE = 8


@dataclass(frozen=True)
class EdgeReading:
    """How near a run is to the edge.

    Attributes:
        step: of the last probe.
        trace: Tr(H), or Tr(P^-1 H) for ZO-Adam.
        trace_stderr: its standard error.
        edge_ratio: step size over critical step size; 0 if the trace is not positive.
        edge_ratio_stderr: its standard error.
        verdict: ``"well inside"``, ``"at the edge"`` or ``"beyond"``.
        sureness: how probable that is, given the standard error.
        probes: samples of curvature behind it.
    """

    step: int
    trace: float
    trace_stderr: float
    edge_ratio: float
    edge_ratio_stderr: float
    verdict: Verdict
    sureness: float
    probes: int

    def __str__(self) -> str:
        return (
            f"{self.verdict} ({self.sureness:.0%}): edge ratio {self.edge_ratio:.2f} +- {self.edge_ratio_stderr:.2f}, "
            f"trace {self.trace:.4g} +- {self.trace_stderr:.2g} at step {self.step}"
        )


class EdgeMonitor:
    """Watches an optimizer by the records that it leaves.

    ::

        opt = ZOSGD(model.parameters(), lr=1e-3, probe_every=10)
        monitor = EdgeMonitor(opt)
        for inputs, targets in data:
            opt.step(lambda: loss_function(model(inputs), targets))
            monitor.update()
        print(monitor.reading)

    Every probe of the optimizer is a sample of the curvature along a random direction; the last ``window`` of them give
    trace and edge ratio. On mini-batches these are averages over the batches of the window. There is one warning, the
    first time a run stays beyond the edge.

    Args:
        optimizer: with ``probe_every`` above 0.
        window: number of samples that are looked at; fewer follow faster, more are more precise.

    Attributes:
        dimension: number of parameters that train.
    """

    def __init__(self, optimizer: ZerothOrder, window: int = 64) -> None:
        if not optimizer.probe_every:
            raise ValueError("the optimizer does not measure curvature: pass it probe_every=10")
        self._optimizer = optimizer
        self.dimension = sum(p.numel() for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
        self._samples: deque[float] = deque(maxlen=checks.count("window", window, at_least=4))
        self._step = -1
        self._beyond = 0
        self._warned = False

    def update(self) -> None:
        """Take in the last step of the optimizer; call it after every step, or at least after those that probe."""
        record = self._optimizer.last
        if record.step == self._step or record.skipped or math.isnan(record.curvatures[0]):
            return
        self._step = record.step
        self._samples.extend(record.curvatures)
        reading = self.reading
        if reading is not None:
            surely = reading.verdict == "beyond" and reading.sureness > 0.95
            self._beyond = self._beyond + 1 if surely else 0
            if self._beyond >= _PATIENCE and not self._warned:
                self._warned = True
                warnings.warn(f"the run stays beyond the edge of stability; {reading}", stacklevel=2)

    @property
    def samples(self) -> list[float]:
        """Curvatures along the last directions that were probed."""
        return list(self._samples)

    @property
    def reading(self) -> EdgeReading | None:
        """How the run stands; ``None`` before the fourth sample."""
        if len(self._samples) < 4:
            return None
        optimizer, samples = self._optimizer, self.samples
        about = moments(samples)
        found = critical(samples, optimizer.method, optimizer.estimator, self.dimension)
        lr = max(optimizer.last.lr)
        ratio = lr / found.value
        stderr = ratio * found.stderr / found.value if math.isfinite(found.value) else about.trace_stderr * lr / 2
        verdict, sureness = _verdict(ratio, stderr)
        return EdgeReading(self._step, about.trace, about.trace_stderr, ratio, stderr, verdict, sureness, len(samples))

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on."""
        return {"samples": self.samples, "step": self._step, "beyond": self._beyond, "warned": self._warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._samples.clear()
        self._samples.extend(state["samples"])
        self._step, self._beyond, self._warned = state["step"], state["beyond"], state["warned"]


def _verdict(ratio: float, stderr: float) -> tuple[Verdict, float]:
    """The most probable one."""
    below, above = (_normal((bound - ratio) / max(stderr, 1e-12)) for bound in _EDGE)
    chances: dict[Verdict, float] = {"well inside": below, "at the edge": above - below, "beyond": 1 - above}
    best = max(chances, key=lambda name: chances[name])
    return best, chances[best]


def _normal(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))
