"""Moving parameters along a direction and back: nothing is lost."""

import pytest
import torch

from zoedge.optim.directions import Direction
from zoedge.optim.moves import Copied, Replayed

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
MOVES = [lambda params: Copied(params, {}), lambda params: Replayed(params, {})]


def parameters(dtype) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(300_000, generator=generator) * 10 ** torch.linspace(-9, 3, 300_000)
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-7, 1.0, -3.0, 6e4])
    layout = torch.randn(8, 4, 3, 3, generator=generator).to(memory_format=torch.channels_last)
    return {0: wide.to(dtype), 2: special.to(dtype), 3: layout.to(dtype)}


def direction(key=0) -> Direction:
    return Direction("gaussian", [300_000, 5, 7, 288], [True, False, True, True], (key, 0, 0), torch.device("cpu"))


def bits(params):
    views = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return [p.contiguous().view(views[p.element_size()]) for p in params.values()]


@pytest.mark.parametrize("make", MOVES, ids=["copied", "replayed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mu", [1e-8, 1e-3, 1.0])
@pytest.mark.parametrize("sides", [1, 2])
def test_back_is_back_to_the_last_bit(make, dtype, mu, sides):
    params = parameters(dtype)
    before = [p.clone() for p in bits(params)]
    moves = make(params)
    for query in range(2):
        moves.move(direction(query), mu)
        if sides == 2:
            moves.move(direction(query), -mu)
    assert params[3].is_contiguous(memory_format=torch.channels_last)
    moves.back()
    assert all(torch.equal(a, b) for a, b in zip(bits(params), before, strict=True))
    moves.back()
    assert all(torch.equal(a, b) for a, b in zip(bits(params), before, strict=True))


@pytest.mark.parametrize("make", MOVES, ids=["copied", "replayed"])
def test_the_points_that_are_visited(make):
    params = parameters(torch.float64)
    x = [p.clone() for p in params.values()]
    moves = make(params)
    for u in (direction(0), direction(1)):
        for amount in (0.1, -0.1):
            moves.move(u, amount)
            for (i, p), old in zip(params.items(), x, strict=True):
                assert torch.allclose(p, old + amount * u.dense(i).view(p.shape), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("make", MOVES, ids=["copied", "replayed"])
def test_update_sees_the_exact_value(make):
    params = parameters(torch.float32)
    x = {i: p.clone() for i, p in params.items()}
    moves = make(params)
    moves.move(direction(), 1e-3)
    seen = {i: torch.empty(p.numel()) for i, p in params.items()}

    def new(i, k, at, old, out):
        seen[i][at] = old
        out.fill_(5.0)

    moves.update(new)
    for i, p in params.items():
        assert torch.equal(seen[i], x[i].reshape(-1))
        assert (p == 5).all()
    moves.back()  # nothing to go back from any more
    assert all((p == 5).all() for p in params.values())


def test_what_replay_keeps_is_small():
    params = {0: 0.04 * torch.randn(1_000_000, generator=torch.Generator().manual_seed(1))}
    moves = Replayed(params, {})
    moves.move(Direction("gaussian", [1_000_000], [True], (0, 0, 0), torch.device("cpu")), 1e-3)
    kept = sum(
        way.values.nbytes + way.places.nbytes for way in moves._ways.values() if isinstance(way.places, torch.Tensor)
    )
    assert 0 < kept < 0.08 * params[0].nbytes


def test_what_replay_keeps_is_never_more_than_a_copy():
    params = {0: 1e-6 * torch.randn(300_000, generator=torch.Generator().manual_seed(1))}
    moves = Replayed(params, {})
    moves.move(Direction("gaussian", [300_000], [True], (0, 0, 0), torch.device("cpu")), 1.0)
    assert [way.places for way in moves._ways.values()] == [slice(None), slice(None)]
