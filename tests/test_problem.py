"""What a call's arguments become: shapes, views of the caller's arrays, and a problem that holds no values."""

import math
from typing import Any

import numpy as np
import pytest

from rootdk import dtypes, masks
from rootdk.problem import Bound, Problem, bind


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def simple(**options: Any) -> Bound:
    return bind(zeros(2, 4, 6, 8), zeros(2, 2, 5, 8), zeros(2, 2, 5, 3), **options)


def test_dimensions() -> None:
    assert simple().problem == Problem(
        dtype=dtypes.FLOAT32,
        batch_shape=(2,),
        heads=4,
        kv_heads=2,
        q_len=6,
        kv_len=5,
        d_k=8,
        d_v=3,
        scale=1 / math.sqrt(8),
        graph=simple().problem.graph,
        sinks=False,
        dropout_p=0.0,
    )
    assert simple().problem.groups == 2
    assert simple().problem.batch == 2


@pytest.mark.parametrize(
    ("layout", "query", "key", "value", "output", "lse"),
    [
        ("bhsd", (6, 8), (5, 8), (5, 3), (6, 3), (6,)),
        ("bshd", (6, 8), (5, 8), (5, 3), (6, 3), (6,)),
        ("bhsd", (6, 8), (1, 5, 8), (5, 3), (1, 6, 3), (1, 6)),
        ("bhsd", (4, 6, 8), (5, 8), (5, 3), (4, 6, 3), (4, 6)),
        ("bshd", (6, 4, 8), (5, 2, 8), (5, 2, 3), (6, 4, 3), (6, 4)),
        ("bhsd", (7, 4, 6, 8), (2, 5, 8), (1, 2, 5, 3), (7, 4, 6, 3), (7, 4, 6)),
        ("bshd", (7, 6, 4, 8), (5, 2, 8), (1, 5, 2, 3), (7, 6, 4, 3), (7, 6, 4)),
        ("bhsd", (3, 1, 4, 6, 8), (7, 2, 5, 8), (3, 7, 2, 5, 3), (3, 7, 4, 6, 3), (3, 7, 4, 6)),
        ("bhsd", (0, 4, 6, 8), (1, 4, 5, 8), (1, 4, 5, 3), (0, 4, 6, 3), (0, 4, 6)),
        ("bhsd", (2, 0, 6, 8), (2, 0, 5, 8), (2, 0, 5, 3), (2, 0, 6, 3), (2, 0, 6)),
    ],
)
def test_result_shapes(layout: str, query: Any, key: Any, value: Any, output: Any, lse: Any) -> None:
    bound = bind(zeros(*query), zeros(*key), zeros(*value), layout=layout)
    problem = bound.problem
    assert bound.output_shape == output
    assert bound.lse_shape == lse
    canonical = (*problem.batch_shape, problem.heads, problem.q_len, problem.d_v)
    assert bound.canonical(zeros(*output)).shape == canonical
    assert bound.canonical_rows(zeros(*lse)).shape == canonical[:-1]
    assert bound.restore(zeros(*canonical)).shape == output
    assert bound.restore_rows(zeros(*canonical[:-1])).shape == lse
    assert bound.operands.query.shape == (*problem.batch_shape, problem.heads, problem.q_len, problem.d_k)
    assert bound.operands.key.shape == (*problem.batch_shape, problem.kv_heads, problem.kv_len, problem.d_k)
    assert bound.operands.value.shape == (*problem.batch_shape, problem.kv_heads, problem.kv_len, problem.d_v)


def test_operands_are_views_of_any_strides() -> None:
    buffer = zeros(64, 64)
    query, key = buffer[::-2, 1::3], buffer.T[3:10, :21]
    value = np.broadcast_to(buffer[0, :5], (7, 5))
    operands = bind(query, key, value).operands
    for given, bound in ((query, operands.query), (key, operands.key), (value, operands.value)):
        assert np.shares_memory(given, bound)
        assert bound.strides[1:] == given.strides


def test_broadcast_batch_has_stride_zero() -> None:
    operands = bind(zeros(3, 4, 6, 8), zeros(4, 5, 8), zeros(1, 4, 5, 3)).operands
    assert operands.key.strides[0] == operands.value.strides[0] == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", dtypes.BFLOAT16_BITS, "ml_dtypes"])
def test_dtypes(dtype: Any) -> None:
    if dtype == "ml_dtypes":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    bound = bind(zeros(6, 8, dtype=dtype), zeros(5, 8, dtype=dtype), zeros(5, 3, dtype=dtype), sinks=zeros(1))
    name = bound.problem.dtype.name
    assert name == "bfloat16" or np.dtype(dtype).name == name
    assert bound.operands.sinks is not None
    assert bound.operands.sinks.dtype == (np.float64 if name == "float64" else np.float32)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, 1 / math.sqrt(8)),
        (0, 0.0),
        (-2, -2.0),
        (0.125, 0.125),
        (np.float32(0.5), 0.5),
        (np.array(3.0), 3.0),
        (np.array(3, np.int16), 3.0),
    ],
)
def test_scale(given: Any, expected: float) -> None:
    scale = simple(scale=given).problem.scale
    assert type(scale) is float
    assert scale == expected


def test_scale_without_dimensions_is_finite() -> None:
    assert bind(zeros(6, 0), zeros(5, 0), zeros(5, 3)).problem.scale == 1.0


def test_seeds_are_drawn_only_where_they_are_used() -> None:
    assert simple().operands.seed == 0
    assert simple(dropout_p=0.5, seed=np.int64(7)).operands.seed == 7
    assert simple(dropout_p=0.5).operands.seed != simple(dropout_p=0.5).operands.seed


def test_problem_holds_no_values() -> None:
    def problem(bonus: float, table: np.ndarray, bias: np.ndarray) -> Problem:
        return simple(score_mod=lambda score, b, h, q, kv: score + bonus * table[h], bias=bias).problem

    first = problem(1.0, zeros(4), zeros(6, 5))
    second = problem(2.0, zeros(4) + 1, zeros(1, 1, 6, 5) + 1)
    assert first == second
    assert hash(first) == hash(second)


def test_bias_is_read_through_a_view_without_its_broadcast_dimensions() -> None:
    bias = zeros(2, 1, 6, 5, dtype=np.float16)
    operands = simple(bias=bias).operands
    assert operands.bias is not None
    view = operands.arrays[operands.bias]
    assert view.shape == (2, 6, 5)
    assert np.shares_memory(view, bias)


def test_bias_that_a_score_function_reads_too_has_its_own_slot() -> None:
    table = zeros(6, 5)
    operands = simple(score_mod=lambda score, b, h, q, kv: score * table[q, kv], bias=table).operands
    assert len(operands.arrays) == 2
    assert operands.bias is not None
    assert operands.names[operands.bias] == "bias"


@pytest.mark.parametrize("role", ["bias", "mask"])
def test_dense_arrays_never_index_out_of_bounds(role: str) -> None:
    from rootdk import reference

    array = np.ones((1, 3, 1, 6, 5), np.float64 if role == "bias" else np.bool_)
    query, key, value = zeros(2, 3, 4, 6, 8), zeros(2, 3, 4, 5, 8), zeros(2, 3, 4, 5, 3)
    reference.attention(query, key, value, **{role: array})


def test_ready_made_masks_are_traced_once() -> None:
    first, second = (simple(mask=masks.causal(align=0) & ~masks.sink_tokens(1)).problem.graph for _ in range(2))
    assert first is second
    assert first is not simple(mask=masks.causal(align=0)).problem.graph


def test_values_that_a_function_reads_are_those_at_the_call() -> None:
    limit, lengths = 3, np.array([1, 2])

    def near(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return kv < limit

    first = simple(mask=near)
    limit = 4
    assert (first.operands.constants, simple(mask=near).operands.constants) == ((3,), (4,))
    padded = masks.lengths(lengths)
    assert np.shares_memory(simple(mask=padded).operands.arrays[0], lengths)
