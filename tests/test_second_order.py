"""Forward mode and second derivatives against finite differences, the reference's gradients, and torch."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import rootdk
from rootdk import dtypes, problem, reference, second_order
from rootdk.errors import BoundsError, ShapeError
from rootdk.problem import Bound
from rootdk.pullback import sum_to
from rootdk.second_order import Direction

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, D_K, D_V = 2, 4, 2, 7, 9, 4, 5
STEP = 1e-5
TOLERANCE = 1e-6
"""Of central differences in float64: STEP squared times third derivatives, and rounding over STEP."""

Arrays = dict[str, np.ndarray]
Options = dict[str, Any]


class Setting(NamedTuple):
    """A call as a function of the arrays that it learns."""

    arrays: Arrays
    options: Callable[[Arrays], Options]

    def call(self, arrays: Arrays) -> tuple[list[np.ndarray], Options]:
        return [arrays[name] for name in ("query", "key", "value")], self.options(arrays)

    def bound(self) -> Bound:
        inputs, options = self.call(self.arrays)
        return problem.bind(*inputs, **options)

    def moved(self, tangents: Arrays, step: float) -> Arrays:
        return {name: np.asarray(array + step * tangents[name]) for name, array in self.arrays.items()}

    def difference(self, measure: Callable[[Arrays], dict[str, np.ndarray]], tangents: Arrays) -> dict[str, np.ndarray]:
        """How ``measure`` of the arrays changes along ``tangents``."""
        ahead, behind = (measure(self.moved(tangents, step)) for step in (STEP, -STEP))
        with np.errstate(invalid="ignore"):
            return {name: (array - behind[name]) / (2 * STEP) for name, array in ahead.items()}


def normal(*shape: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(math.prod(shape) + len(shape)).standard_normal(shape))


def setting(options: Callable[[Arrays], Options], **learned: np.ndarray) -> Setting:
    inputs = {
        "query": normal(BATCH, HEADS, Q_LEN, D_K),
        "key": normal(1, KV_HEADS, KV_LEN, D_K),
        "value": normal(KV_HEADS, KV_LEN, D_V),
    }
    return Setting({**inputs, **learned}, options)


def learned_everything(arrays: Arrays) -> Options:
    table, cap, factor = arrays["table"], arrays["cap"], arrays["factor"]

    def score(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        capped = cap * np.tanh(score * factor / cap)
        return capped + table[h, (q - kv) % 11] * score * score + table[h, kv % 11] ** 2

    return {"score_mod": score, "bias": arrays["bias"], "sinks": arrays["sinks"], "mask": rootdk.causal(align=-2)}


def relative(arrays: Arrays) -> Options:
    table = arrays["table"]
    return {"score_mod": [rootdk.softcap(2.0), rootdk.relative_bias(table, align="end")], "scale": -0.4}


SETTINGS = {
    "plain": setting(lambda arrays: {}),
    "causal": setting(lambda arrays: {"mask": rootdk.causal(align=-2), "scale": 0.7}),
    "sinks and bias": setting(
        lambda arrays: {"sinks": arrays["sinks"], "bias": arrays["bias"], "mask": rootdk.sliding_window(3, 1, align=0)},
        sinks=normal(HEADS), bias=normal(1, HEADS, Q_LEN, 1),
    ),
    "relative table": setting(relative, table=normal(HEADS, 9)),
    "everything": setting(
        learned_everything, table=normal(HEADS, 11), cap=np.asarray(1.5), factor=np.asarray(0.4),
        bias=normal(KV_LEN), sinks=normal(HEADS),
    ),
    "dropout": setting(lambda arrays: {"dropout_p": 0.3, "seed": 5}),
}  # fmt: skip


@pytest.fixture(params=SETTINGS)
def one(request: pytest.FixtureRequest) -> Setting:
    return SETTINGS[request.param]


def direction(bound: Bound, tangents: Arrays) -> Direction:
    operands = bound.operands
    captured = {slot: tangents[name] for slot, name in enumerate(operands.names)}
    return Direction(tangents["query"], tangents["key"], tangents["value"], tangents.get("sinks"), captured)


def tangents_of(one: Setting) -> Arrays:
    rng = np.random.default_rng(8)
    return {name: np.asarray(rng.standard_normal(array.shape)) for name, array in one.arrays.items()}


def test_forward_mode_is_the_finite_difference(one: Setting) -> None:
    bound, tangents = one.bound(), tangents_of(one)

    def results(arrays: Arrays) -> dict[str, np.ndarray]:
        inputs, options = one.call(arrays)
        found = reference.attention(*inputs, **options)
        return {"output": found.output, "lse": found.lse}

    expected = one.difference(results, tangents)
    output, lse = second_order.jvp(bound, direction(bound, tangents))
    inputs, options = one.call(one.arrays)
    sees = reference.attention(*inputs, **options).weights.any(axis=-1)
    np.testing.assert_allclose(output, expected["output"], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(lse[sees], expected["lse"][sees], rtol=TOLERANCE, atol=TOLERANCE)
    assert not lse[~sees].any()


def test_double_backward_is_the_difference_of_gradients(one: Setting) -> None:
    """The second derivative is symmetric: how the gradients move along a direction is the gradient along it."""
    bound, tangents = one.bound(), tangents_of(one)
    grad_out, grad_lse = normal(*bound.output_shape), normal(*bound.lse_shape)

    def gradients(arrays: Arrays) -> dict[str, np.ndarray]:
        inputs, options = one.call(arrays)
        found = reference.attention_vjp(*inputs, grad_out=grad_out, grad_lse=grad_lse, **options)
        named = {name: getattr(found, name) for name in ("query", "key", "value", "bias", "sinks")}
        return {name: grad for name, grad in named.items() if grad is not None} | found.captured

    expected = one.difference(gradients, tangents)
    slots = tuple(range(len(bound.operands.names)))
    found = second_order.double_backward(bound, grad_out, grad_lse, direction(bound, tangents), slots)
    named = {name: getattr(found, name) for name in ("query", "key", "value", "sinks")}
    named |= {name: found.captured[slot] for slot, name in enumerate(bound.operands.names)}
    for name, grad in expected.items():
        mine = sum_to(named[name], grad.shape) if name in ("query", "key", "value") else named[name].reshape(grad.shape)
        np.testing.assert_allclose(mine, grad, rtol=TOLERANCE, atol=10 * TOLERANCE, err_msg=name)
    output, lse = second_order.jvp(bound, direction(bound, tangents))
    np.testing.assert_array_equal(found.grad_output, output)
    np.testing.assert_array_equal(found.grad_lse, lse)


def test_what_does_not_move_adds_nothing() -> None:
    one = SETTINGS["everything"]
    bound = one.bound()
    output, lse = second_order.jvp(bound, Direction())
    assert not output.any()
    assert not lse.any()
    cotangent = normal(*bound.output_shape)
    found = second_order.double_backward(bound, cotangent, None, Direction(), (0, 1))
    arrays = (found.query, found.key, found.value, found.sinks, found.grad_output, *found.captured.values())
    assert not any(array.any() for array in arrays)


def test_layouts_agree() -> None:
    one = SETTINGS["causal"]
    (query, key, value), options = one.call(one.arrays)
    tangents = tangents_of(one)
    plain, lse = second_order.jvp(one.bound(), direction(one.bound(), tangents))
    swapped = (array.swapaxes(-3, -2) for array in (query, key, value))
    bound = problem.bind(*swapped, **options, layout="bshd")
    turned = {name: array.swapaxes(-3, -2) for name, array in tangents.items()}
    output, logs = second_order.jvp(bound, direction(bound, turned))
    np.testing.assert_array_equal(output.swapaxes(-3, -2), plain)
    np.testing.assert_array_equal(logs.swapaxes(-2, -1), lse)


@pytest.mark.parametrize("causal", [False, True])
def test_torchs_own_second_derivatives(causal: bool) -> None:
    arrays = [normal(*shape) for shape in ((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 6))]
    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays]
    cotangents = [torch.from_numpy(normal(*array.shape)) for array in arrays]
    grad_out = torch.from_numpy(normal(2, 3, 5, 6)).requires_grad_()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        output = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)
        first = torch.autograd.grad(output, tensors, grad_out, create_graph=True)
        expected = torch.autograd.grad(first, [*tensors, grad_out], cotangents)
    bound = problem.bind(*arrays, mask=rootdk.causal() if causal else None)
    along = Direction(*(tensor.numpy() for tensor in cotangents))
    found = second_order.double_backward(bound, grad_out.detach().numpy(), None, along)
    for mine, theirs in zip((found.query, found.key, found.value, found.grad_output), expected, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-12, atol=1e-13)


def test_forward_mode_by_hand() -> None:
    """With query 0 every key weighs the same: t = sum p (ds - mean ds) v, ds = dq k / sqrt(d)."""
    key, tangent = normal(6, 4), normal(3, 4)
    value = np.arange(6.0)[:, None]
    bound = problem.bind(np.zeros((3, 4)), key, value)
    output, _ = second_order.jvp(bound, Direction(query=tangent))
    moves = tangent @ key.T / 2
    expected = (moves - moves.mean(axis=-1, keepdims=True)) @ value / 6
    np.testing.assert_allclose(output, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_lower_precision(dtype: str) -> None:
    """The accumulator's error, and one rounding of the result."""
    kind = torch.tensor([], dtype=getattr(torch, dtype))
    low = dtypes.BFLOAT16_BITS if dtype == "bfloat16" else np.dtype(dtype)
    arrays, cotangents = (
        [dtypes.from_float64(normal(*shape) + at, low) for shape in ((2, 20, 8), (2, 30, 8), (2, 30, 5))]
        for at in (0.0, 0.1)
    )
    grad_out = dtypes.from_float64(normal(2, 20, 5), low)
    found = second_order.double_backward(problem.bind(*arrays), grad_out, None, Direction(*cotangents))
    exact = second_order.double_backward(
        problem.bind(*map(dtypes.to_float64, arrays)), dtypes.to_float64(grad_out), None,
        Direction(*map(dtypes.to_float64, cotangents)),
    )  # fmt: skip
    for name in ("query", "key", "value", "grad_output"):
        mine, truth = getattr(found, name), getattr(exact, name)
        assert mine.dtype == low
        rounding = 0.5 * torch.finfo(kind.dtype).eps
        tolerance = rounding * np.abs(truth) + 32 * np.finfo(np.float32).eps * np.abs(truth).max()
        assert (np.abs(dtypes.to_float64(mine) - truth) <= tolerance).all()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_hidden_places_reach_nothing(poison: float) -> None:
    shown = np.ones((7, 9), np.bool_)
    shown[:, 4] = shown[2] = False
    arrays, moves = ([normal(2, n, 3) + at for n in (7, 9, 9)] for at in (0.0, 0.2))
    grad_out, grad_lse = normal(2, 7, 3), normal(2, 7)

    def both() -> list[np.ndarray]:
        bound = problem.bind(*arrays, mask=shown)
        found = second_order.double_backward(bound, grad_out, grad_lse, Direction(*moves))
        return [found.query, found.key, found.value, found.grad_output, found.grad_lse]

    clean = both()
    for query, key, value in (arrays, moves):
        query[:, 2] = key[:, 4] = value[:, 4] = poison
    grad_out[:, 2] = grad_lse[:, 2] = poison
    for found, expected in zip(both(), clean, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not clean[0][:, 2].any()
    assert not clean[1][:, 4].any()


@pytest.mark.parametrize("empty", ["batch", "heads", "q_len", "kv_len", "d_k", "d_v"])
def test_empty_dimensions(empty: str) -> None:
    sizes = {"batch": 2, "heads": 2, "q_len": 3, "kv_len": 5, "d_k": 6, "d_v": 7} | {empty: 0}
    batch, heads, q_len, kv_len, d_k, d_v = sizes.values()
    arrays = [np.ones((batch, heads, *rest)) for rest in ((q_len, d_k), (kv_len, d_k), (kv_len, d_v))]
    bound = problem.bind(*arrays, mask=rootdk.causal(align=0))
    found = second_order.double_backward(bound, np.ones(bound.output_shape), None, Direction(*arrays))
    for grad, array in zip((found.query, found.key, found.value), arrays, strict=True):
        assert grad.shape == array.shape
        assert np.isfinite(grad).all()
    assert found.grad_output.shape == bound.output_shape


def test_directions_of_another_shape_are_refused() -> None:
    table = normal(KV_LEN)
    bound = problem.bind(
        normal(3, 4), normal(KV_LEN, 4), normal(KV_LEN, 2), score_mod=lambda score, b, h, q, kv: score + table[kv]
    )
    with pytest.raises(ShapeError, match=r"key: expected a direction of its shape, \(1, 9, 4\), got \(8, 4\)"):
        second_order.jvp(bound, Direction(key=normal(8, 4)))
    with pytest.raises(ShapeError, match=r"captured: expected a direction of the array's shape, \(9,\), got \(8,\)"):
        second_order.jvp(bound, Direction(captured={0: normal(8)}))


def test_an_index_out_of_bounds_is_an_error() -> None:
    table = normal(4)
    bound = problem.bind(normal(3, 4), normal(6, 4), normal(6, 2), score_mod=lambda s, b, h, q, kv: s + table[kv])
    with pytest.raises(BoundsError, match=r"table\[4\]: expected an index from -4 to 3"):
        second_order.jvp(bound, Direction(query=normal(3, 4)))


GROWTH = """
import resource, numpy as np, rootdk
from rootdk import problem, second_order
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def derive(n):
    x = np.ones((n, 8), np.float32)
    bound = problem.bind(x, x, x, mask=rootdk.causal(align=0), score_mod=rootdk.softcap(3.0))
    second_order.double_backward(bound, x, None, second_order.Direction(x, x, x))
derive(64)
before = peak()
derive(8192)
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_scores() -> None:
    found = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True).stdout
    assert float(found) < 8192 * 8192 * 4 / 2**20 / 4
