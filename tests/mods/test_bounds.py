"""Interval analysis: never wrong, and right about the masks that people use."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from expressions import Draft, Term, random_draft, where
from hypothesis import given, settings
from hypothesis import strategies as st

from rootdk import masks
from rootdk.dtypes import FLOAT32, FLOAT64, DType, Kind
from rootdk.mods import bounds, ranges
from rootdk.mods.bounds import FloatRange, Range, Truth
from rootdk.mods.describe import describe
from rootdk.mods.evaluate import evaluate
from rootdk.mods.expr import OPS, Graph
from rootdk.mods.trace import Tracer
from rootdk.mods.values import Mask

NUMPY_TYPES = {FLOAT32: np.float32, FLOAT64: np.float64}
SCORES = np.array([0.0, -1.0, 1.5, 1e30, -np.inf, np.inf, np.nan])


def test_every_operation_has_a_rule() -> None:
    assert set(bounds.RANGE) == set(OPS)


def holds(found: Range, at: int, values: np.ndarray) -> bool:
    """Whether the range of tile ``at`` allows all ``values``."""

    def end(array: np.ndarray) -> np.generic:
        return array[at if len(array) > 1 else 0]

    if isinstance(found, Truth):
        return bool((end(found.can_be_false) or values.all()) and (end(found.can_be_true) or not values.any()))
    numbers = values[~np.isnan(values)] if isinstance(found, FloatRange) else values
    if isinstance(found, FloatRange) and len(numbers) < values.size and not end(found.nan):
        return False
    return bool((numbers >= end(found.low)).all() and (numbers <= end(found.high)).all())


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), accumulator=st.sampled_from([FLOAT32, FLOAT64]))
def test_no_value_outside_its_range(seed: int, accumulator: DType) -> None:
    rng = np.random.default_rng(seed)
    draft = random_draft(rng, 40)
    mask = [number for number, node in enumerate(draft.builder.nodes) if node.kind is Kind.BOOL][-1]
    graph = replace(draft.graph(), mask=mask)
    tables = ranges.build_all(graph, draft.arrays)
    q0, k0, b, h = rng.integers(0, 30, 4), rng.integers(0, 40, 4), rng.integers(0, 3, 4), rng.integers(0, 3, 4)
    q1, k1 = q0 + rng.integers(0, 8, 4), k0 + rng.integers(0, 8, 4)
    found = bounds.node_ranges(graph, draft.constants, tables, bounds.tile(q0, q1, k0, k1, b, h), accumulator)
    for tile in range(4):
        values = evaluate(
            graph, tuple(draft.constants), tuple(draft.arrays), score=SCORES, b=b[tile], h=h[tile],
            q=np.arange(q0[tile], q1[tile] + 1)[:, None, None], kv=np.arange(k0[tile], k1[tile] + 1)[:, None],
            dtype=NUMPY_TYPES[accumulator],
        )  # fmt: skip
        for number, node in enumerate(graph.nodes):
            assert holds(found[number], tile, values[number]), (tile, number, node, found[number])


# Masks that people use -------------------------------------------------------------------------------------------

MaskFunction = Callable[[Draft, Term, Term, Term, Term], Term]
Q_LEN = KV_LEN = 512
Q_TILE, K_TILE = 24, 64


def causal(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return kv <= q


def window(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return (q - 70 <= kv) & (kv <= q + 30)


def absolute_window(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return abs(q - kv) <= 40


def prefix(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return (kv < d.array(np.array([100, 230]))[b]) | (kv <= q)


def padding_lengths(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return kv < d.array(np.array([100, 500], np.int32))[b]


def documents(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    ids = d.array(np.repeat(np.arange(4), 128))
    return ids[q].same(ids[kv])


def batch_documents(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    ids = np.stack([np.repeat(np.arange(8), 64), np.repeat([0, 1, -1], [256, 192, 64])])
    array = d.array(ids.astype(np.int32))
    return array[b, q].same(array[b, kv]) & (array[b, q] >= 0) & (array[b, kv] >= 0)


def padding(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return d.array(np.arange(KV_LEN) < np.array([[130], [512]]))[b, kv]


def sinks(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return ((q - kv <= 100) | (kv < 4)) & (kv <= q)


def chunked(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return (q // 128).same(kv // 128) & (kv <= q)


def shared_prefix(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    document = d.array(np.repeat(np.arange(4), 128))
    offsets = d.array(np.arange(0, 513, 128))
    prefix_of = d.array(np.array([0, 0, 0, 2]))
    first = prefix_of[document[q]]
    shared = (offsets[first] <= kv) & (kv < offsets[first + 1])
    return (document[q].same(document[kv]) & (kv <= q)) | shared


def natten(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    width, half = 32, 3
    row, column = (q // width).clip(half, 15 - half), (q % width).clip(half, width - 1 - half)
    return (abs(row - kv // width) <= half) & (abs(column - kv % width) <= half)


def block_diffusion(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    n, block = 256, 64
    clean_q, clean_kv = q >= n, kv >= n
    block_q, block_kv = where(clean_q, (q - n) // block, q // block), where(clean_kv, (kv - n) // block, kv // block)
    numbers = [d.node("to_int", flag) for flag in (clean_q, clean_kv)]
    diagonal = block_q.same(block_kv) & numbers[0].same(numbers[1])
    offset = (block_kv < block_q) & clean_kv & ~clean_q
    return diagonal | offset | ((block_kv <= block_q) & clean_kv & clean_q)


def block_table(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    status = d.array(np.random.default_rng(0).choice(3, (2, 8, 8), p=[0.5, 0.2, 0.3]).astype(np.uint8))
    found = status[h, q // 64, kv // 64]
    return found.same(2) | (found.same(1) & (kv <= q))


def block_pairs(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return d.array(np.random.default_rng(0).random((8, 8)) < 0.5)[kv // 64, q // 64]


def dense(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return d.array(np.tri(Q_LEN, KV_LEN, dtype=bool))[q, kv]


def per_head(d: Draft, b: Term, h: Term, q: Term, kv: Term) -> Term:
    return where(h < 1, kv <= q, abs(q - kv) < 50)


MASKS: list[tuple[MaskFunction, float]] = [
    (causal, 1.0), (window, 1.0), (absolute_window, 1.0), (prefix, 1.0), (padding_lengths, 1.0), (documents, 1.0),
    (batch_documents, 0.98), (padding, 1.0), (sinks, 1.0), (chunked, 1.0), (shared_prefix, 1.0), (natten, 1.0),
    (block_diffusion, 0.96), (per_head, 1.0), (block_table, 0.97), (block_pairs, 1.0), (dense, 0.9),
]  # fmt: skip
"""Each mask, and the share of its empty and full tiles that must be proven so."""


def assert_skips(graph: Graph, constants: Sequence[float], arrays: Sequence[np.ndarray], share: float) -> None:
    """Nothing is proven that is not so, and at least ``share`` of the empty and of the full tiles is."""
    q0, k0 = np.arange(0, Q_LEN, Q_TILE)[:, None], np.arange(0, KV_LEN, K_TILE)
    q1, k1 = np.minimum(q0 + Q_TILE, Q_LEN) - 1, k0 + K_TILE - 1
    batch, heads = np.arange(2)[:, None, None, None], np.arange(2)[:, None, None]
    tables = ranges.build_all(graph, arrays)
    can_hide, can_show = bounds.analyse(graph, constants, tables, q0, q1, k0, k1, batch, heads)
    pairs = {"q": np.arange(Q_LEN)[:, None], "kv": np.arange(KV_LEN)}
    dense = evaluate(graph, tuple(constants), tuple(arrays), b=batch, h=heads, **pairs)[graph.mask]
    dense = np.broadcast_to(dense, (2, 2, Q_LEN, KV_LEN)).reshape(2, 2, Q_LEN, -1, K_TILE)
    full = np.logical_and.reduceat(dense, q0[:, 0], axis=2).all(axis=-1)
    empty = ~np.logical_or.reduceat(dense, q0[:, 0], axis=2).any(axis=-1)
    assert not (~can_show & ~empty).any() and not (~can_hide & ~full).any()
    assert (~can_show).sum() >= share * empty.sum()
    assert (~can_hide).sum() >= share * full.sum()


@pytest.mark.parametrize(("function", "share"), MASKS, ids=[function.__name__ for function, _ in MASKS])
def test_masks_skip_what_they_can(function: MaskFunction, share: float) -> None:
    draft = Draft()
    graph = draft.graph(mask=function(draft, *draft.indices()))
    assert_skips(graph, draft.constants, draft.arrays, share)


@pytest.mark.parametrize("mask", [
    masks.causal(), masks.sliding_window(60, 20), masks.prefix_lm(np.array([70, 200])),
    masks.documents(np.repeat(np.arange(4), 128)), masks.lengths(np.array([100, 512])),
    masks.sink_tokens(4) | masks.sliding_window(50), ~masks.sliding_window(99, 50),
    (masks.causal() | masks.prefix_lm(128)) & masks.lengths(np.array([130, 400])),
], ids=str)  # fmt: skip
def test_ready_made_masks_skip_all_that_is_empty_or_full(mask: Mask) -> None:
    tracer = Tracer(Q_LEN, KV_LEN, 2, (2,))
    traced = tracer.finish(None, mask.trace(tracer, *tracer.indices))
    assert_skips(traced.graph, traced.constants, traced.arrays, 1.0)


# Proofs over the whole problem, and explanations ---------------------------------------------------------------


def test_fits_32_bits() -> None:
    draft = Draft()
    _b, h, q, kv = draft.indices()
    graph = draft.graph(mask=(h * 4096 + q) * 4096 <= kv)

    def fits(heads: int) -> bool:
        problem = bounds.whole_problem(1, heads, 4096, 4096)
        return bounds.fits_32_bits(graph, bounds.node_ranges(graph, draft.constants, (), problem))

    assert fits(128)
    assert not fits(129)


def test_wrapping_64_bits_is_no_proof() -> None:
    draft = Draft()
    _b, _h, q, _kv = draft.indices()
    graph = draft.graph(mask=q + (2**63 - 1) >= 0)
    can_hide, can_show = bounds.analyse(graph, draft.constants, (), [0, 0], [0, 1], 0, 0)
    assert can_hide.tolist() == [False, True]
    assert can_show.tolist() == [True, True]


def test_gathers_proven_in_range() -> None:
    draft = Draft()
    _b, h, q, kv = draft.indices()
    document = draft.array(np.array([0, 1, 1, 2, 0, 1]))
    offsets = draft.array(np.array([0, 4, 8]))
    table = draft.array(np.zeros((2, 5)))
    inside = [document[q], offsets[document[q]], table[h, (q - kv).clip(-2, 2) + 2]]
    outside = [document[q + 1], offsets[document[q] + 1], table[h, q - kv], document[q - 7]]
    for term in inside + outside:
        draft.node("to_bool", term)
    graph = draft.graph()
    tables = ranges.build_all(graph, draft.arrays)
    found = bounds.node_ranges(graph, draft.constants, tables, bounds.whole_problem(1, 2, 6, 6))
    proven = bounds.in_range_gathers(graph, found, [array.shape for array in draft.arrays])
    assert {term.number for term in inside} <= proven
    assert not {term.number for term in outside} & proven


def test_blockers_name_what_is_undecided() -> None:
    draft = Draft()
    _b, _h, q, kv = draft.indices()
    ids = draft.array(np.arange(64) % 3)
    graph = draft.graph(mask=(kv <= q) & ids[q].same(ids[kv]) & ~(kv < 0))
    tables = ranges.build_all(graph, draft.arrays)
    q0, k0 = np.arange(0, 64, 16)[:, None], np.arange(0, 64, 16)
    found = bounds.node_ranges(graph, draft.constants, tables, bounds.tile(q0, q0 + 15, k0, k0 + 15))
    named = [
        (describe(graph, number, draft.constants, ["ids"]), tiles) for number, tiles in bounds.blockers(graph, found)
    ]
    assert named == [("ids[q] == ids[kv]", 10), ("kv <= q", 4)]


def test_no_mask_shows_all_and_blocks_nothing() -> None:
    can_hide, can_show = bounds.analyse(Graph(), (), (), np.arange(3), np.arange(3), 0, 5)
    assert can_hide.tolist() == [False] * 3
    assert can_show.tolist() == [True] * 3
    assert bounds.blockers(Graph(), []) == []
