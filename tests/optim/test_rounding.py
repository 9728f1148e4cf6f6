import pytest
import torch

from zoedge.optim import ZOSGD
from zoedge.optim.rounding import stochastic_round

DTYPES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("dtype", "mantissa"), [(torch.bfloat16, 7), (torch.float16, 10)], ids=str)
def test_to_a_neighbour_and_unbiased(dtype, mantissa):
    values = torch.tensor([1.001, -1.001, 0.3333, -7e-3, 3.14159, 1e-4, 7e-5])
    samples = 40_000
    x = values.repeat_interleave(samples)
    rounded = stochastic_round(x, dtype, torch.Generator().manual_seed(0)).float()
    spacing = 2.0 ** (torch.floor(torch.log2(x.abs())) - mantissa)
    assert ((rounded - x).abs() < spacing).all()
    table = rounded.view(len(values), samples).double()
    assert ((table.mean(1) - values.double()).abs() <= 5 * table.std(1) / samples**0.5 + 1e-12).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_representable_stays(dtype):
    x = torch.cat([torch.randn(1000), torch.tensor([0.0, -0.0, 1.0, 2.0**-14, 3 * 2.0**-24, -(2.0**-20)])])
    x = x.to(dtype).float()
    assert torch.equal(stochastic_round(x, dtype, torch.Generator().manual_seed(0)).float(), x)


def test_subnormal_float16_is_unbiased():
    x = torch.full((400_000,), 2.3e-8)
    rounded = stochastic_round(x, torch.float16, torch.Generator().manual_seed(0)).double()
    assert set(rounded.unique().tolist()) == {0.0, 2.0**-24}
    assert rounded.mean().item() == pytest.approx(2.3e-8, rel=0.02)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_not_finite_stays(dtype):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan])
    rounded = stochastic_round(x, dtype, torch.Generator())
    assert torch.isinf(rounded[:2]).all()
    assert torch.isnan(rounded[2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_updates_are_not_lost(dtype):
    """1,000 steps of about 1e-5 on weights of 0.5, whose neighbours are 2e-3 or 2e-4 away."""
    displacement = {}
    for kind in (dtype, torch.float32):
        p = torch.nn.Parameter(torch.full((20_000,), 0.5, dtype=kind))
        opt = ZOSGD([p], lr=2e-5, weight_decay=1.0)
        plain = p.detach().clone()
        for _ in range(1000):
            opt.step(lambda: 0.0)
            plain = (plain.float() * (1 - 2e-5)).to(kind)
        displacement[kind] = (p.detach().double() - 0.5).mean().item()
        if kind == dtype:
            assert (plain == 0.5).all(), "rounding to nearest loses every update"
    assert displacement[dtype] == pytest.approx(displacement[torch.float32], rel=0.05)
    assert displacement[torch.float32] == pytest.approx(-0.5 * (1 - (1 - 2e-5) ** 1000), rel=1e-2)
