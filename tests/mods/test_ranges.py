"""Range tables against the minimum and maximum of the elements that they stand for."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from expressions import Draft, Gatherer, Term
from hypothesis import given, settings
from hypothesis import strategies as st

from rootdk import dtypes
from rootdk.dtypes import Kind
from rootdk.mods import bounds, range_tables, ranges
from rootdk.mods.bounds import FloatRange, IntRange, Truth

DTYPES = [
    np.int8, np.uint16, np.int32, np.int64, np.uint64, np.bool_, np.float16, np.float32, np.float64, ml_dtypes.bfloat16,
]  # fmt: skip


def found_range(draft: Draft, term: Term, q0: Any, q1: Any, b: Any = 0) -> Any:
    """The range of a gather that indexes another, which is why it gets a table."""
    mask = draft.node("is_nan", term) if term.kind.value == "float" else draft.node("to_bool", term)
    mask = term if term.kind.value == "bool" else mask
    graph = draft.graph(mask=mask)
    tables = ranges.build_all(graph, draft.arrays)
    return bounds.node_ranges(graph, draft.constants, tables, bounds.tile(q0, q1, 0, 0, b), dtypes.FLOAT64)[term.number]


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 700), seed=st.integers(0, 2**32), dtype=st.sampled_from(DTYPES), fine=st.booleans())
def test_any_stretch(length: int, seed: int, dtype: Any, fine: bool) -> None:
    rng = np.random.default_rng(seed)
    array = rng.integers(0, 2 if dtype is np.bool_ else 100, (3, length)).astype(dtype)
    if dtypes.of(array).kind is Kind.FLOAT:
        array -= 50
    draft = Draft()
    b, _h, q, _kv = draft.indices()
    index = draft.node("maximum", q, draft.constant(0)) if fine else q
    ends = np.sort(rng.integers(0, length, (2, 20)), axis=0)
    rows = rng.integers(0, 3, 20)
    found = found_range(draft, draft.array(array)[b, index], ends[0], ends[1], rows)
    granule = 1 if fine or length <= 256 else 16
    for at, (first, last) in enumerate(ends.T):
        inside = array[rows[at], first : last + 1].astype(np.float64)
        covered = array[rows[at], first // granule * granule : (last // granule + 1) * granule].astype(np.float64)
        if isinstance(found, Truth):
            assert (found.can_be_true[at], found.can_be_false[at]) == (covered.any(), not covered.all())
        else:
            assert inside.min() >= found.low[at] == covered.min()
            assert inside.max() <= found.high[at] == covered.max()


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 500)), seed=st.integers(0, 2**32),
    dtype=st.sampled_from([np.bool_, np.int32, np.float32]), grain=st.sampled_from([(0, 0), (0, 4), (4, 0), (4, 4)]),
    turned=st.booleans(),
)  # fmt: skip
def test_any_rectangle(shape: tuple[int, int], seed: int, dtype: Any, grain: tuple[int, int], turned: bool) -> None:
    rng = np.random.default_rng(seed)
    array = (rng.random((2, *shape)) * 2000).astype(np.int32).astype(dtype)
    if dtype is np.bool_:
        array = rng.random((2, *shape)) < rng.choice([0.001, 0.999])
    draft = Draft()
    b, _h, q, kv = draft.indices()
    row, column = (
        index if log2 else draft.node("maximum", index, draft.constant(0))
        for index, log2 in zip((q, kv), grain, strict=True)
    )
    # indexed in the other order, and laid out in memory so
    term = draft.array(array.transpose(0, 2, 1))[b, column, row] if turned else draft.array(array)[b, row, column]
    mask = term if dtype is np.bool_ else draft.node("less", term, draft.term(dtype(1).item()))
    graph = draft.graph(mask=mask)
    (table,) = ranges.build_all(graph, draft.arrays)
    (q0, q1), (k0, k1) = (np.sort(rng.integers(0, size, (2, 20)), axis=0) for size in shape)
    q1 = np.where(rng.random(20) < 0.7, np.minimum(q1, q0 + 40), q1)
    batch = rng.integers(0, 2, 20)
    found = bounds.node_ranges(graph, draft.constants, (table,), bounds.tile(q0, q1, k0, k1, batch))[term.number]
    row_granule, column_granule = (min(1 << int(log2), 4096) for log2 in table[:2])
    for at in range(20):
        rows = slice(q0[at] // row_granule * row_granule, (q1[at] // row_granule + 1) * row_granule)
        columns = slice(k0[at] // column_granule * column_granule, (k1[at] // column_granule + 1) * column_granule)
        covered = array[batch[at], rows, columns]
        if q1[at] // row_granule - q0[at] // row_granule >= range_tables.MOST_ROWS:
            covered = array
        if isinstance(found, Truth):
            assert (found.can_be_true[at], found.can_be_false[at]) == (covered.any(), not covered.all())
        else:
            assert (found.low[at], found.high[at]) == (covered.min(), covered.max())


def gather(array: np.ndarray) -> tuple[Draft, Gatherer, Term, Term]:
    draft = Draft()
    b, _h, q, _kv = draft.indices()
    return draft, draft.array(array), b, q


@pytest.mark.parametrize("view", [
    np.arange(40)[::-1], np.arange(80)[::2], np.broadcast_to(np.arange(40), (5, 40))[3],
    np.arange(400).reshape(40, 10)[:, 3],
], ids=["negative", "strided", "broadcast", "column"])  # fmt: skip
def test_strides(view: np.ndarray) -> None:
    draft, array, _b, q = gather(view)
    found = found_range(draft, array[q], [3, 10], [9, 39])
    assert found.low.tolist() == [view[3:10].min(), view[10:].min()]
    assert found.high.tolist() == [view[3:10].max(), view[10:].max()]


def test_rows_that_broadcasting_repeats_are_stored_once() -> None:
    row = np.arange(1000)
    table = range_tables.build(np.broadcast_to(row, (64, 1000)), (1,), (range_tables.POSITIONS,))
    assert table.size < 3 * row.size
    draft, array, b, q = gather(np.broadcast_to(row, (64, 1000)))
    found = found_range(draft, array[b, q], [0, 160], [31, 175], [0, 63])
    assert (found.low.tolist(), found.high.tolist()) == ([0, 160], [31, 175])


def test_negative_indices_count_from_the_end() -> None:
    draft, array, _b, q = gather(np.arange(10) * 5)
    found = found_range(draft, array[q - 10], [0, 4, 9, 10], [3, 9, 11, 11])
    # one that is of both signs can be any element
    assert found.low.tolist() == [0, 20, 0, 0]
    assert found.high.tolist() == [15, 45, 45, 5]


def test_an_index_that_may_be_outside_can_find_anything() -> None:
    draft, array, _b, q = gather(np.arange(10, dtype=np.int8))
    found = found_range(draft, array[q], [0, 5, 20], [9, 10, 30])
    assert found.low.tolist() == [0, -128, -128]
    assert found.high.tolist() == [9, 127, 127]


def test_nan_and_infinities() -> None:
    values = np.array([1.0, np.nan, -np.inf, 4.0, np.nan, np.nan])
    draft, array, _b, q = gather(values)
    found = found_range(draft, array[q], [0, 2, 4], [0, 3, 5])
    assert isinstance(found, FloatRange)
    assert found.nan.all()
    # of elements that are all NaN, nothing else is said
    np.testing.assert_array_equal(found.low, [1, -np.inf, -np.inf])
    np.testing.assert_array_equal(found.high, [1, 4, np.inf])
    assert found_range(*_again(np.array([1.0, 2.0])), [0], [1]).nan.tolist() == [False]


def _again(array: np.ndarray) -> tuple[Draft, Term]:
    draft, gatherer, _b, q = gather(array)
    return draft, gatherer[q]


def test_raw_bfloat16_bits() -> None:
    bits = np.array([1.5, -2.0, 8.0], ml_dtypes.bfloat16).view(np.uint16).view(dtypes.BFLOAT16_BITS)
    found = found_range(*_again(bits), [0, 1], [1, 2])
    assert (found.low.tolist(), found.high.tolist()) == ([-2, -2], [1.5, 8])


def test_rank_0_and_nested() -> None:
    draft, array, _b, q = gather(np.array([2, 0, 1, 1]))
    offset, starts = draft.array(np.array(7)), draft.array(np.array([10, 20, 30]))
    found = found_range(draft, starts[array[q]] + offset[()], [0, 1, 2], [0, 2, 3])
    assert isinstance(found, IntRange)
    assert (found.low.tolist(), found.high.tolist()) == ([37, 17, 27], [37, 27, 27])


@pytest.mark.parametrize("array", [np.zeros((0,), int), np.zeros((3, 0)), np.zeros((0, 4), bool)])
def test_empty_arrays(array: np.ndarray) -> None:
    draft, gatherer, b, q = gather(array)
    found = found_range(draft, gatherer[q] if array.ndim == 1 else gatherer[b, q], [0], [0])
    if isinstance(found, Truth):
        assert found.can_be_false.all() and found.can_be_true.all()
    else:
        assert found.low < -100 and found.high > 100


def test_large_arrays_get_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_tables, "MAX_ELEMENTS", 100)
    found = found_range(*_again(np.arange(200, dtype=np.uint8)), [0], [1])
    assert (found.low, found.high) == (0, 255)


def test_large_tables_are_coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_tables, "MAX_WORDS", 300)
    for array, dimensions in ((np.arange(3000), (0,)), (np.arange(4000).reshape(40, 100), (0, 1))):
        table = range_tables.build(array, dimensions, (range_tables.ELEMENTS,) * len(dimensions))
        assert 100 < table.size < 320


def test_three_indices_that_vary_get_no_table() -> None:
    draft = Draft()
    b, h, q, kv = draft.indices()
    cube = draft.array(np.zeros((4, 4, 4), bool))
    graph = draft.graph(mask=cube[q, kv, b] & cube[kv, b, q] & cube[b, kv, h] & cube[q, b, h] & cube[q, kv, kv])
    assert [stretch.dimensions for stretch in ranges.stretches(graph)] == [(0, 1), (2, 0), (1,), (0,)]
    score_only = replace(graph, mask=None)
    assert ranges.stretches(score_only) == ()


def test_arrays_that_only_index_have_one_granule() -> None:
    draft = Draft()
    _b, _h, q, kv = draft.indices()
    relative = draft.array(np.arange(300 * 300).reshape(300, 300))
    graph = draft.graph(score=draft.array(np.zeros(90000))[relative[q, kv]])
    (table,) = ranges.build_all(graph, draft.arrays)
    assert table.size < 20
    found = bounds.node_ranges(graph, (), (table,), bounds.whole_problem(1, 1, 300, 300))
    assert len(bounds.in_range_gathers(graph, found, [array.shape for array in draft.arrays])) == 2


def test_gathers_that_read_alike_share_a_table() -> None:
    draft, array, _b, q = gather(np.arange(300))
    kv = draft.node("index", attr="kv")
    graph = draft.graph(mask=array[q].same(array[kv]))
    first, second = ranges.build_all(graph, draft.arrays)
    assert first is second


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("hidden", [None, -np.inf, np.nan])
def test_a_bias_has_tiles_to_tell_apart_only_where_it_hides(dtype: Any, hidden: float | None) -> None:
    array = np.ones((300, 300), dtype)
    array[7, 5] = max(np.finfo(np.float32).min, ml_dtypes.finfo(dtype).min) if hidden is None else hidden
    draft = Draft()
    _b, _h, q, kv = draft.indices()
    bias = draft.array(array)[q, kv]
    graph = draft.graph(mask=draft.node("logical_not", bias.same(draft.node("literal", attr=-np.inf))))
    (stretch,), (table,) = ranges.stretches(graph), ranges.build_all(graph, draft.arrays)
    assert stretch.hides
    exact = dtype in (np.float32, np.float64)
    assert (table.size > 20) == (hidden is not None and (exact or hidden == -np.inf))
    found = bounds.node_ranges(graph, (), (table,), bounds.whole_problem(1, 1, 300, 300))[graph.mask]
    assert (found.can_be_true, found.can_be_false) == (True, hidden == -np.inf)
