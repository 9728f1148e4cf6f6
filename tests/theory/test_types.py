"""Methods, estimators and spectra: what they hold, and what they refuse."""

import numpy as np
import pytest
import scipy.stats

from zoedge.theory import GDM, METHODS, ZOGDM, Adam, Estimator, Spectrum, ZOAdam


def test_methods_by_name():
    assert list(METHODS) == ["gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam"]
    assert ZOGDM(0.5) == ZOGDM(0.5)
    assert ZOGDM(0.5) != GDM(0.5)
    assert (ZOAdam(0.5).momentum, ZOAdam(0.5).scale) == (0.5, 0.5)


@pytest.mark.parametrize("cls", [GDM, ZOGDM, Adam, ZOAdam])
@pytest.mark.parametrize("beta", [-0.1, 1.0, 2.0, float("nan")])
def test_beta_outside_its_range(cls, beta):
    with pytest.raises(ValueError, match="beta"):
        cls(beta)


def test_beta_of_a_wrong_type():
    with pytest.raises(TypeError, match="beta must be a number"):
        GDM("0.5")  # pyright: ignore[reportArgumentType]


def test_checked_values_are_what_is_stored():
    assert type(ZOGDM(np.float64(0.5)).beta) is float
    assert type(Estimator(queries=np.int64(3)).queries) is int  # pyright: ignore[reportArgumentType]


def test_zeroth_order_methods_are_no_first_order_ones():
    assert not isinstance(ZOGDM(0.5), GDM)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"queries": 0}, ValueError, "queries must be at least 1"),
        ({"queries": 1.5}, TypeError, "queries must be a whole number"),
        ({"queries": True}, TypeError, "queries must be a whole number"),
        ({"mu": 0.0}, ValueError, "mu must be positive"),
        ({"mu": float("inf")}, ValueError, "mu must be finite"),
        ({"form": "backward"}, ValueError, "form must be one of 'two-point', 'forward'"),
        ({"directions": "cube"}, ValueError, "directions must be one of 'gaussian'"),
    ],
)
def test_estimator_refuses(arguments, error, match):
    with pytest.raises(error, match=match):
        Estimator(**arguments)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("directions", ["gaussian", "sphere", "rademacher"])
def test_second_moment_and_forward_noise_by_sampling(directions, queries):
    rng = np.random.default_rng(0)
    d, samples = 3, 400_000
    u = rng.standard_normal((samples, queries, d))
    if directions == "sphere":
        u *= np.sqrt(d) / np.linalg.norm(u, axis=-1, keepdims=True)
    elif directions == "rademacher":
        u = np.sign(u)
    A = np.array([[2.0, 0.5, -1.0], [0.5, 1.0, 0.3], [-1.0, 0.3, 3.0]])
    estimator = Estimator("forward", directions, queries, mu=0.7)
    S = np.einsum("skj,ski->sij", u, u) / queries
    sampled = np.einsum("sij,jk,skl->sil", S, A, S, optimize=True)
    error = sampled.std(axis=0) / samples**0.5
    assert (np.abs(sampled.mean(axis=0) - estimator.second_moment(A)) < 5 * error + 1e-12).all()

    additive = (0.5 * 0.7 * np.einsum("ski,ij,skj->sk", u, A, u)[..., None] * u).mean(axis=1)
    products = np.einsum("si,sj->sij", additive, additive)
    error = products.std(axis=0) / samples**0.5
    assert (np.abs(products.mean(axis=0) - estimator.forward_noise(A)) < 5 * error).all()


def test_spectrum_of_arrays():
    spectrum = Spectrum([3, 1, 2])
    assert (spectrum.trace, spectrum.lambda_max, spectrum.lambda_min, spectrum.dimension) == (6, 3, 1, 3)
    weighted = Spectrum([3.0, 1.0], [1, 2.5])
    assert (weighted.trace, weighted.dimension) == (5.5, 3.5)
    assert "trace=6" in repr(spectrum)


def test_spectrum_cannot_change_behind_what_it_remembers():
    values = np.ones(3)
    spectrum = Spectrum(values)
    values[0] = 2.0
    assert spectrum.eigenvalues.max() == spectrum.lambda_max == 1
    with pytest.raises(ValueError, match="read-only"):
        spectrum.eigenvalues[0] = 5.0


def test_entries_of_weight_zero_do_not_count():
    spectrum = Spectrum([100.0, 1.0, -5.0], [0, 3, 0])
    assert (spectrum.lambda_max, spectrum.lambda_min, spectrum.trace) == (1, 1, 3)


def test_spectrum_of_matrices():
    Q = scipy.stats.ortho_group.rvs(4, random_state=0)
    H = Q @ np.diag([4.0, 3.0, 2.0, 1.0]) @ Q.T
    assert Spectrum.from_matrix(H).eigenvalues == pytest.approx([1, 2, 3, 4])
    P = np.array([1.0, 2.0, 3.0, 4.0])
    expected = np.sort(np.linalg.eigvals(np.diag(1 / P) @ H).real)
    assert Spectrum.from_matrix(H, P).eigenvalues == pytest.approx(expected)
    assert Spectrum.from_matrix(H, np.diag(P)).eigenvalues == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Spectrum([]), ValueError, "eigenvalues must not be empty"),
        (lambda: Spectrum([1.0, np.nan]), ValueError, "eigenvalues hold NaN"),
        (lambda: Spectrum([1.0, -np.inf]), ValueError, "eigenvalues hold NaN or infinite"),
        (lambda: Spectrum(np.eye(2)), ValueError, "use Spectrum.from_matrix"),
        (lambda: Spectrum([1e200]), ValueError, "rescale H"),
        (lambda: Spectrum([1e-200]), ValueError, "rescale H"),
        (lambda: Spectrum([1j]), TypeError, "eigenvalues must hold real numbers"),
        (lambda: Spectrum(["a"]), TypeError, "eigenvalues must hold real numbers"),
        (lambda: Spectrum([[1.0], [1.0, 2.0]]), TypeError, "eigenvalues must be an array"),
        (lambda: Spectrum([1.0, 2.0], [1.0]), ValueError, "weights must have the shape"),
        (lambda: Spectrum([1.0, 2.0], [1.0, -1.0]), ValueError, "weights must not be negative"),
        (lambda: Spectrum([1.0, 2.0], [0.0, 0.0]), ValueError, "weights must not all be zero"),
        (lambda: Spectrum.from_matrix([[1.0, 2.0], [3.0, 4.0]]), ValueError, "H must be symmetric"),
        (lambda: Spectrum.from_matrix(np.ones((2, 3))), ValueError, "H must be square"),
        (lambda: Spectrum.from_matrix([[np.nan]]), ValueError, "H holds NaN"),
        (lambda: Spectrum.from_matrix(np.eye(2), [1.0, 0.0]), ValueError, "preconditioner must be positive"),
        (lambda: Spectrum.from_matrix(np.eye(2), [1.0]), ValueError, "preconditioner has dimension 1"),
        (lambda: Spectrum.power_law(0), ValueError, "dimension must be at least 1"),
    ],
)
def test_spectrum_refuses(make, error, match):
    with pytest.raises(error, match=match):
        make()
