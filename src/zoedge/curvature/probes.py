"""Random vectors to probe an operator with, in chunks that fit a memory limit."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from zoedge.curvature.operator import HessianOperator
from zoedge.theory import checks

# Bytes that vectors may take, by default.
MEMORY = 1 << 30
# Called with the number of products taken so far and the number of all.
Progress = Callable[[int, int], object]


def generator_for(H: HessianOperator, generator: torch.Generator | None) -> torch.Generator:
    """The given generator, or one with seed 0 on the operator's device: results are reproducible by default."""
    if generator is None:
        return torch.Generator(H.device).manual_seed(0)
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}: torch.Generator().manual_seed(0)"
        )
    if generator.device.type != H.device.type:
        raise ValueError(f"generator is on {generator.device}, the parameters on {H.device}: torch.Generator(device)")
    return generator


def normal(H: HessianOperator, generator: torch.Generator) -> Tensor:
    """A vector of independent normal entries, shape (d,)."""
    return H.empty(1)[0].normal_(generator=generator)


def signs(H: HessianOperator, generator: torch.Generator) -> Tensor:
    """A vector of independent entries +1 or -1, shape (d,)."""
    return H.empty(1)[0].bernoulli_(0.5, generator=generator).mul_(2).sub_(1)


def rows_that_fit(H: HessianOperator, memory: int) -> int:
    """How many vectors fit into so many bytes."""
    return checks.count("memory", memory) // (H.shape[0] * H.dtype.itemsize)


def probe(
    H: HessianOperator,
    count: int,
    generator: torch.Generator,
    *,
    basis: Tensor | None = None,
    memory: int = MEMORY,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of rows: probes with entries +1 or -1, and H times them.

    A probe depends on the generator and its number only, not on the size of the chunks.

    Args:
        H: the operator.
        count: number of probes.
        generator: of the probes.
        basis: orthonormal rows, shape (m, d); probes and products are projected to what is orthogonal to them.
        memory: bytes that the chunks may take; at least one probe is made at a time.
        progress: called with the number of probes so far.
    """
    # Probes, products, and as much again for what is made of them; not too many, so that progress is seen.
    chunk = min(max(rows_that_fit(H, memory) // 4, 1), 32)
    for start in range(0, count, chunk):
        z = torch.stack([signs(H, generator) for _ in range(min(chunk, count - start))])
        if basis is not None:
            z -= (z @ basis.T) @ basis
        Hz = H.rows(z)
        if basis is not None:
            Hz -= (Hz @ basis.T) @ basis
        yield z, Hz
        if progress:
            progress(start + len(z))
