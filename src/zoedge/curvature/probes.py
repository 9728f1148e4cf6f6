"""Random vectors to probe an operator with, in chunks that fit a memory limit."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from zoedge.curvature.operator import HessianOperator
from zoedge.theory import checks

_BLOCK = 1 << 16
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


def project_out(W: Tensor, basis: Tensor) -> Tensor:
    """Subtract from rows their part in the span of orthonormal rows, in place; the coefficients in float64.

    Sums over millions of float32 numbers lose digits that an orthonormal basis needs: they are taken in blocks. An
    ambient autocast would lose more.

    Args:
        W: shape (k, d).
        basis: shape (m, d).
    """
    with torch.autocast(W.device.type, enabled=False):
        blocks = zip(W.split(_BLOCK, 1), basis.split(_BLOCK, 1), strict=True)
        coefficients = torch.stack([(w @ q.T).double() for w, q in blocks]).sum(0)
        W -= coefficients.to(W.dtype) @ basis
    return coefficients


def norm(v: Tensor) -> float:
    """The length of a vector, summed up in float64."""
    return float(torch.linalg.vector_norm(v, dtype=torch.float64))


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
    free = rows_that_fit(H, memory) - (0 if basis is None else len(basis))
    chunk = min(max(free // 4, 1), 32)
    for start in range(0, count, chunk):
        z = H.empty(min(chunk, count - start))
        for row in z:
            row.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        if basis is not None:
            project_out(z, basis)
        Hz = H.rows(z)
        if basis is not None:
            project_out(Hz, basis)
        yield z, Hz
        if progress:
            progress(start + len(z))
