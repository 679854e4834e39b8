"""Elementary functions: no further from the truth than their docstrings state, and right at the edges.

The truth is NumPy's long double, and mpmath for what it lacks. Floats are sampled at every exponent.
"""

import math
import re
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from llvmlite import ir
from small_kernels import TARGETS, apply, call

from rootdk.codegen import rounding, trigonometry, vector_math
from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.power import power
from rootdk.dtypes import FLOAT32, FLOAT64
from rootdk.machine import Target

UNFUSED = 1.5
"""What a target without fused multiply-add may add to an error, in ulp."""

EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5, -0.5, 1e-45, -1e-45, 5e-324, 3e38, -3e38, 1.7e308]


def with_mpmath(function: Callable[[mpmath.mpf], mpmath.mpf]) -> Callable[[np.ndarray], np.ndarray]:
    def evaluate(x: np.ndarray) -> np.ndarray:
        with mpmath.workprec(120):
            values = [np.longdouble(mpmath.nstr(function(mpmath.mpf(float(value))), 30)) for value in x]
        return np.copysign(values, x)  # mpmath has no negative zero

    return evaluate


def sigmoid(x: np.ndarray) -> np.ndarray:
    decay = np.exp(-np.abs(x))
    return np.where(x < 0, decay, 1) / (1 + decay)


TRUTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp2_nonpositive": np.exp2,
    "exp2": np.exp2,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "erf": with_mpmath(mpmath.erf),
}


def function(name: str) -> Callable[[Builder, ir.Value], ir.Value]:
    return getattr(vector_math, name, None) or getattr(trigonometry, name)


def stated_error(function: Callable[..., ir.Value], real: type) -> float:
    """In ulp, as the docstring has it."""
    found = re.search(r"Error:\s([\d.]+),\s([\d.]+)\sulp", function.__doc__ or "")
    if found is None:
        assert "correctly rounded" in (function.__doc__ or "")
        return 0.5
    return float(found[1 if real is np.float32 else 2])


def samples(name: str, real: type) -> np.ndarray:
    """Every exponent, the ranges where functions bend, and the edges."""
    rng = np.random.default_rng(5)
    count = 40 if name == "erf" else 400 if real is np.float32 else 60
    low, high = (-149, 128) if real is np.float32 else (-1074, 1024)
    every = np.ldexp(rng.uniform(1, 2, (count, 1)), np.arange(low, high)).ravel()
    dense = 2_000 if name == "erf" else 30_000
    bends = [rng.uniform(-size, size, dense) for size in (0.5, 3, 20, 110, 750)]
    near_one = 1 + rng.uniform(-1e-3, 1e-3, dense)
    with np.errstate(over="ignore"):
        x = np.concatenate([every, -every, *bends, near_one, EDGES]).astype(real)
    if name == "exp2_nonpositive":
        x = x[~((x > 0) | ((x <= -126 if real is np.float32 else x <= -1022) & np.isfinite(x)))]
    return x


def error(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of ``want``; 0 for equal infinities and NaN, inf for unequal ones."""
    with np.errstate(all="ignore"):
        nearest = want.astype(got.dtype)
        step = np.spacing(np.maximum(np.abs(nearest), np.finfo(got.dtype).tiny)).astype(np.longdouble)
        distance = np.abs(got.astype(np.longdouble) - want) / step
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    finite = np.isfinite(got) & np.isfinite(nearest)
    return np.where(finite, distance, np.where(same, 0, np.inf))


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("name", TRUTH)
def test_error_is_as_stated(name: str, real: type) -> None:
    x = samples(name, real)
    with np.errstate(all="ignore"):
        want = TRUTH[name](x.astype(np.longdouble))
    results = {}
    for target in TARGETS:
        got = apply(function(name), x, target)
        errors = error(got, want)
        worst = errors.argmax()
        allowed = stated_error(function(name), real) + (0 if target.fma else UNFUSED)
        assert errors[worst] <= allowed, (target.name, x[worst], got[worst], want[worst])
        zeros = want == 0
        assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros])), target.name
        results.setdefault(target.fma, []).append(got)
        # one lane, or many: the same bits
        few = x[:: max(1, x.size // 999)]
        assert np.array_equal(
            apply(function(name), few, target, vector=False), apply(function(name), few, target), True
        )
    for same in results.values():
        assert all(np.array_equal(same[0], other, equal_nan=True) for other in same[1:])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_softmax_exponential_is_exact_where_it_must_be(real: type, target: Target) -> None:
    integer, payloads = (np.uint32, 1 << 22) if real is np.float32 else (np.uint64, 1 << 51)
    quiet = np.array(np.nan, real).view(integer)
    nans = (quiet | np.random.default_rng(0).integers(0, payloads, 500).astype(integer)).view(real)
    x = np.concatenate([nans, -nans, np.array([-np.inf, -1e30, -1e4, 0, -0.0, -1, -2], real)])
    got = apply(vector_math.exp2_nonpositive, x, target)
    assert np.isnan(got[:1000]).all()
    assert got[1000:].tolist() == [0, 0, 0, 1, 1, 0.5, 0.25]
    assert not np.signbit(got[1000:]).any()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("function", "truth"),
    [(rounding.floor, np.floor), (rounding.ceil, np.ceil), (rounding.trunc, np.trunc), (rounding.nearest, np.rint)],
)
def test_rounding_is_exact(
    function: Callable[..., ir.Value], truth: Callable[[np.ndarray], np.ndarray], real: type, target: Target
) -> None:
    halves = np.arange(-20, 20) / 2
    limits = np.array([2.0**power + step for power in (22, 23, 24, 51, 52, 53) for step in (-1, -0.5, 0, 0.5, 1)])
    x = np.concatenate([samples("floor", real), halves, limits]).astype(real)
    got, want = apply(function, x, target), truth(x)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_large_angles(real: type) -> None:
    rng = np.random.default_rng(2)
    top = 38 if real is np.float32 else 308
    # the last one is the double that comes closest to a multiple of pi / 2
    x = np.concatenate([10 ** rng.uniform(5, top, 3000), [6381956970095103.0 * 2.0**797]])
    with np.errstate(over="ignore"):
        x = x.astype(real)
    for name, truth in (("sin", mpmath.sin), ("cos", mpmath.cos)):
        with mpmath.workprec(1400):
            want = np.array(
                [np.longdouble(mpmath.nstr(truth(mpmath.mpf(float(v))), 30)) if np.isfinite(v) else np.nan for v in x]
            )
        assert error(apply(function(name), x), want).max() <= stated_error(function(name), real) + 0.5


def apply_pair(function: Callable[..., ir.Value], x: np.ndarray, y: np.ndarray, target: Target) -> np.ndarray:
    """The values of a function of two arguments, compiled."""
    module = ir.Module()
    module.triple = target.triple
    accumulator = FLOAT64 if x.dtype == np.float64 else FLOAT32
    b = Builder.define(module, "kernel", [POINTER], (target, accumulator), export=True)
    first, second, result = (b.load(POINTER, b.function.args[0], 8 * i) for i in range(3))
    with b.loop(0, b.load(I64, b.function.args[0], 24)) as i:
        offset = b.mul(i, b.size * b.lanes)
        b.store(function(b, b.load(b.vector, first, offset), b.load(b.vector, second, offset)), result, offset)
    b.finish()
    size = -(-x.size // b.lanes) * b.lanes
    padded = [np.resize(x, size), np.resize(y, size), np.zeros(size, x.dtype)]
    call(str(module), target, *(array.ctypes.data for array in padded), size // b.lanes)
    return padded[2][: x.size]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_power(real: type, target: Target) -> None:
    rng = np.random.default_rng(9)
    top = 38 if real is np.float32 else 300
    x = np.concatenate(
        [10 ** rng.uniform(-top, top, 1000), rng.uniform(0.5, 2, 1000), 1 + rng.uniform(-1e-4, 1e-4, 999)]
    )
    x = x.astype(real)
    x = x[x != 1]
    # results over the whole range, and beyond
    y = (rng.uniform(-2.4 * top, 2.4 * top, x.size) / np.log(x.astype(np.float64))).astype(real)
    with mpmath.workprec(150):
        want = [mpmath.nstr(mpmath.mpf(float(a)) ** mpmath.mpf(float(b)), 30) for a, b in zip(x, y, strict=True)]
    errors = error(apply_pair(power, x, y, target), np.array(want, np.longdouble))
    assert errors.max() <= stated_error(power, real) + (0 if target.fma else UNFUSED)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_power_at_the_edges(real: type, target: Target) -> None:
    bases = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 4, -8], real)
    exponents = np.array([*bases, 0.5, -0.5, 3, -3, 1e30, -1e30], real)
    x, y = (array.ravel() for array in np.meshgrid(bases, exponents))
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(real)
    got = apply_pair(power, x, y, target)
    assert np.allclose(got, want, rtol=4 * np.finfo(real).eps, atol=0, equal_nan=True)
    kept = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[kept]), np.signbit(want[kept]))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_floor_division_at_the_edges(real: type, target: Target) -> None:
    values = np.array([0, -0.0, 1, -1, 7, -7, 0.1, 3, -3, np.inf, -np.inf, np.nan, 1e5 + 0.5], real)
    x, y = (array.ravel() for array in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        pairs = [(0, np.floor_divide(x, y)), (1, np.remainder(x, y))]
    for part, want in pairs:
        got = apply_pair(lambda *arguments, part=part: rounding.floor_divide(*arguments)[part], x, y, target)
        wrong = ~((got == want) | (np.isnan(got) & np.isnan(want)))
        assert not wrong.any(), (x[wrong], y[wrong], got[wrong], want[wrong])
