"""Any call gives what the reference gives: shapes, strides, dtypes, masks and scores drawn at random."""

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attention_checks import DTYPES, VIEWS, assert_right, assert_same
from hypothesis import given, settings
from hypothesis import strategies as st

import rootdk
from rootdk import reference

LENGTHS = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 17, 25, 31, 64, 65, 127, 129, 200])
WIDTHS = st.sampled_from([(1, 1), (3, 5), (8, 8), (17, 31), (31, 17), (64, 64), (80, 96), (192, 128), (576, 512)])
SMALL_WIDTHS = st.sampled_from([(1, 1), (3, 5), (8, 16), (17, 9)])
Draw = st.DrawFn


@dataclass(frozen=True)
class Sizes:
    batch_shape: tuple[int, ...]
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    d_k: int
    d_v: int

    @property
    def batch(self) -> int:
        return math.prod(self.batch_shape)

    @property
    def pairs(self) -> tuple[int, ...]:
        return (*self.batch_shape, self.heads, self.q_len, self.kv_len)


@st.composite
def sizes(draw: Draw, widths: st.SearchStrategy[tuple[int, int]] = SMALL_WIDTHS) -> Sizes:
    kv_heads, groups = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)]))
    batch_shape = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    return Sizes(batch_shape, kv_heads * groups, kv_heads, draw(LENGTHS), draw(LENGTHS), *draw(widths))


@st.composite
def broadcastable(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Some dimensions 1, some of the first ones missing."""
    kept = tuple(draw(st.sampled_from([1, size])) for size in shape)
    return kept[draw(st.integers(0, len(kept))) :]


@st.composite
def operands(draw: Draw, sizes: Sizes, dtype: Any = np.float32) -> list[np.ndarray]:
    """Query, key and value [..., heads, len, d], each with a batch that broadcasts, laid out in some way."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shapes = (
        (sizes.heads, sizes.q_len, sizes.d_k), (sizes.kv_heads, sizes.kv_len, sizes.d_k),
        (sizes.kv_heads, sizes.kv_len, sizes.d_v),
    )  # fmt: skip
    arrays = []
    for shape in shapes:
        whole = (*draw(broadcastable(sizes.batch_shape)), *shape)
        array = (rng.standard_normal(whole) * draw(st.sampled_from([0.3, 1, 4]))).astype(dtype)
        # not along sums: the rounding errors of equal terms do not cancel
        repeated = draw(st.sampled_from([None, None, *range(len(whole) - 2)]))
        if repeated is not None and whole[repeated]:
            arrays.append(np.broadcast_to(array.take([0], repeated), whole))
        else:
            arrays.append(VIEWS[draw(st.sampled_from(list(VIEWS)))](array))
    # what the three broadcast to must be the batch that masks and biases are made for
    arrays[0] = np.broadcast_to(arrays[0], (*sizes.batch_shape, *arrays[0].shape[-3:]))
    return arrays


def scales(d_k: int) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, 0, -0.5, 1 / max(d_k, 1), np.array(0.3), np.float32(0.7), 2])


@pytest.mark.core
@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.data())
def test_any_shape_stride_and_dtype(data: st.DataObject) -> None:
    of = data.draw(sizes(WIDTHS))
    arrays = data.draw(operands(of, data.draw(st.sampled_from(DTYPES))))
    options: dict[str, Any] = {"scale": data.draw(scales(of.d_k))}
    if data.draw(st.booleans()):
        options["sinks"] = np.random.default_rng(of.q_len).standard_normal(of.heads).astype(np.float32)
    if data.draw(st.booleans()):
        arrays, options["layout"] = [array.swapaxes(-2, -3) for array in arrays], "bshd"
    elif of.heads == 1 and not of.batch_shape:
        arrays = [array[0] for array in arrays]
    assert_right(*arrays, **options)


# masks: each with what it shows, worked out apart from it


@dataclass(frozen=True)
class Shown:
    mask: Any
    """As a user gives it."""
    visible: np.ndarray
    """Broadcasts to the pairs."""


@st.composite
def alignments(draw: Draw, of: Sizes) -> tuple[Any, np.ndarray]:
    """``align``, and the position of each query [q_len, 1]."""
    align = draw(st.sampled_from(["start", "end", -3, 5] + [None] * (of.q_len == of.kv_len)))
    offset = {"start": 0, None: 0, "end": of.kv_len - of.q_len}.get(align, align)
    return align, np.arange(of.q_len)[:, None] + offset


@st.composite
def causals(draw: Draw, of: Sizes) -> Shown:
    align, position = draw(alignments(of))
    return Shown(rootdk.causal(align), np.arange(of.kv_len) <= position)


@st.composite
def windows(draw: Draw, of: Sizes) -> Shown:
    align, position = draw(alignments(of))
    left, right = (draw(st.sampled_from([None, 0, 1, 20, 100])) for _ in range(2))
    distance = np.arange(of.kv_len) - position
    visible = (distance >= (-math.inf if left is None else -left)) & (
        distance <= (math.inf if right is None else right)
    )
    return Shown(rootdk.sliding_window(left, right, align), visible)


@st.composite
def prefixes(draw: Draw, of: Sizes) -> Shown:
    align, position = draw(alignments(of))
    length = draw(per_batch(of)) if draw(st.booleans()) else draw(st.integers(0, 40))
    keys = np.arange(of.kv_len)
    visible = (keys < over_batch(of, np.asarray(length), 0)) | (keys <= position)
    return Shown(rootdk.prefix_lm(length, align), visible)


@st.composite
def documents(draw: Draw, of: Sizes) -> Shown:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    batch = draw(st.sampled_from([(), (of.batch,)]))
    ids, kv_ids = (np.sort(rng.integers(-1, 4, (*batch, length))) for length in (of.q_len, of.kv_len))
    query, key = over_batch(of, ids, 1)[..., None], over_batch(of, kv_ids, 1)[..., None, :]
    return Shown(rootdk.documents(ids, kv_ids), (query == key) & (query >= 0))


@st.composite
def lengths(draw: Draw, of: Sizes) -> Shown:
    kv_lengths = draw(per_batch(of))
    return Shown(rootdk.lengths(kv_lengths), np.arange(of.kv_len) < over_batch(of, kv_lengths, 0))


@st.composite
def sink_tokens(draw: Draw, of: Sizes) -> Shown:
    count = draw(st.integers(0, 20))
    return Shown(rootdk.sink_tokens(count), np.arange(of.kv_len) < count)


@st.composite
def boolean_arrays(draw: Draw, of: Sizes) -> Shown:
    shape = draw(broadcastable(of.pairs))
    array = np.random.default_rng(draw(st.integers(0, 99))).random(shape) < draw(st.sampled_from([0.0, 0.5, 0.95]))
    array = np.asarray(array)
    if array.ndim >= 2:
        array = VIEWS[draw(st.sampled_from(["contiguous", "elements backwards", "transposed"]))](array)
    return Shown(array, array)


@st.composite
def functions(draw: Draw, of: Sizes) -> Shown:
    step = draw(st.integers(1, 4))
    b = over_batch(of, np.arange(of.batch), 0)
    h, q, kv = np.ogrid[: of.heads, : of.q_len, : of.kv_len]

    def visible(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q + 2 * kv + h) % (step + b) != 0

    return Shown(rootdk.mask(visible), visible(b, h, q, kv))


def per_batch(of: Sizes) -> st.SearchStrategy[np.ndarray]:
    return st.lists(st.integers(0, 150), min_size=of.batch, max_size=of.batch).map(lambda found: np.array(found, int))


def over_batch(of: Sizes, array: np.ndarray, dims: int) -> np.ndarray:
    """[batch, *rest] as [*batch_shape, heads = 1, q_len = 1, kv_len = 1] with ``rest`` [dims] before those of pairs."""
    if array.ndim == dims:
        return array
    rest = array.shape[1:]
    return array.reshape(*of.batch_shape, *[1] * (3 - len(rest) - (dims > 0)), *rest)


def as_array(mask: Any) -> Any:
    """Arrays without dimensions combine to NumPy's scalars, which are no masks."""
    return np.asarray(mask) if isinstance(mask, np.bool_) else mask


ATOMS: list[Callable[[Sizes], st.SearchStrategy[Shown]]] = [
    causals, windows, prefixes, documents, lengths, sink_tokens, boolean_arrays, functions,
]  # fmt: skip


@st.composite
def compositions(draw: Draw, of: Sizes) -> Shown:
    """One to three masks, each perhaps inverted, joined by & or |."""
    terms = []
    for atom in draw(st.lists(st.sampled_from(ATOMS), min_size=1, max_size=3)):
        term = draw(atom(of))
        terms.append(Shown(as_array(~term.mask), ~term.visible) if draw(st.booleans()) else term)

    def join(left: Shown, right: Shown) -> Shown:
        join = draw(st.sampled_from([operator.and_, operator.or_]))
        mask = join(left.mask, right.mask)
        return Shown(as_array(mask), join(left.visible, right.visible))

    return functools.reduce(join, terms)


def assert_shows(of: Sizes, arrays: list[np.ndarray], shown: Shown) -> None:
    """The mask hides what it should, and the kernel what the mask does."""
    scores = reference.attention(*arrays, mask=shown.mask).masked_scores
    np.testing.assert_array_equal(scores != -math.inf, np.broadcast_to(shown.visible, of.pairs))
    assert_right(*arrays, mask=shown.mask)


@pytest.mark.parametrize("atom", ATOMS, ids=lambda atom: atom.__name__)
def test_any_mask(atom: Callable[[Sizes], st.SearchStrategy[Shown]]) -> None:
    @settings(deadline=None, max_examples=10, derandomize=True)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        of = data.draw(sizes())
        assert_shows(of, data.draw(operands(of)), data.draw(atom(of)))

    check()


@settings(deadline=None, max_examples=16, derandomize=True)
@given(st.data())
def test_any_composition_of_masks(data: st.DataObject) -> None:
    of = data.draw(sizes())
    assert_shows(of, data.draw(operands(of)), data.draw(compositions(of)))


# scores


@st.composite
def score_mods(draw: Draw, of: Sizes) -> list[Any]:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    align, _ = draw(alignments(of))
    known = [
        rootdk.softcap(draw(st.sampled_from([0.5, 30.0]))),
        rootdk.alibi(align=align),
        rootdk.alibi(rng.random(of.heads), align=align),
        rootdk.relative_bias(rng.standard_normal((of.heads, 9)), align=align),
        lambda score, b, h, q, kv: score * (1 + h) - q % 3,
    ]
    return [known[number] for number in draw(st.lists(st.integers(0, len(known) - 1), max_size=2))]


@st.composite
def biases(draw: Draw, of: Sizes) -> np.ndarray | None:
    if draw(st.booleans()):
        return None
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    bias = np.asarray(rng.standard_normal(draw(broadcastable(of.pairs)))).astype(draw(st.sampled_from(DTYPES)))
    hidden = rng.random(bias.shape) < draw(st.sampled_from([0.0, 0.3]))
    return np.where(hidden, np.array(-math.inf, bias.dtype), bias)


@settings(deadline=None, max_examples=16, derandomize=True)
@given(st.data())
def test_any_score_function_and_bias(data: st.DataObject) -> None:
    of = data.draw(sizes())
    mask = data.draw(st.sampled_from([None, rootdk.causal(align="end"), rootdk.sink_tokens(100)]))
    options = {"score_mod": data.draw(score_mods(of)), "bias": data.draw(biases(of)), "mask": mask}
    assert_right(*data.draw(operands(of)), **options, scale=data.draw(scales(of.d_k)))


def test_return_lse_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 9, 8)) for _ in range(3)]
    assert_same(rootdk.attention(*arrays), rootdk.attention(*arrays, return_lse=True)[0])
