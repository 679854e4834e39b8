"""The ready-made masks: whom they show, how they combine, and what they refuse."""

from typing import Any

import numpy as np
import pytest
import torch
from tracing import Shape, masked, tracer_for

from rootdk import masks
from rootdk.errors import ArgumentError, DTypeError, RootdkError, ShapeError
from rootdk.mods.values import Mask


def dense(mask: Mask, shape: Shape = (1, 1, 4, 4)) -> np.ndarray:
    tracer = tracer_for(shape)
    return masked(tracer.finish(None, mask.trace(tracer, *tracer.indices)), shape)


def drawn(mask: Mask, shape: Shape = (1, 1, 4, 4)) -> list[str]:
    return ["".join("o" if shown else "." for shown in row) for row in dense(mask, shape)[0, 0]]


PICTURES = [
    (masks.causal(), 4, 4, "o... oo.. ooo. oooo"),
    (masks.causal("start"), 2, 4, "o... oo.."),
    (masks.causal("end"), 2, 4, "ooo. oooo"),
    (masks.causal("end"), 4, 2, ".. .. o. oo"),
    (masks.causal(1), 2, 4, "oo.. ooo."),
    (masks.causal(-1), 3, 3, "... o.. oo."),
    (masks.sliding_window(1), 4, 4, "o... oo.. .oo. ..oo"),
    (masks.sliding_window(0), 3, 3, "o.. .o. ..o"),
    (masks.sliding_window(1, 1), 4, 4, "oo.. ooo. .ooo ..oo"),
    (masks.sliding_window(None, 0), 3, 3, "o.. oo. ooo"),
    (masks.sliding_window(1, None), 3, 3, "ooo ooo .oo"),
    (masks.sliding_window(None, None), 2, 3, "ooo ooo"),
    (masks.sliding_window(1, align="end"), 2, 4, ".oo. ..oo"),
    (masks.prefix_lm(2), 4, 4, "oo.. oo.. ooo. oooo"),
    (masks.prefix_lm(0), 2, 2, "o. oo"),
    (masks.prefix_lm(1, align="end"), 2, 4, "ooo. oooo"),
    (masks.documents(np.array([0, 0, 1, -1])), 4, 4, "oo.. oo.. ..o. ...."),
    (masks.documents([0, 1], kv_ids=[0, -1, 1]), 2, 3, "o.. ..o"),
    (masks.lengths([2]), 2, 4, "oo.. oo.."),
    (masks.lengths([0]), 1, 3, "..."),
    (masks.sink_tokens(1), 2, 3, "o.. o.."),
    (masks.sink_tokens(0), 1, 2, ".."),
    (masks.mask(lambda b, h, q_idx, kv_idx: kv_idx % 2 == 0), 2, 4, "o.o. o.o."),
    (masks.mask(np.tri(3, dtype=bool)), 3, 3, "o.. oo. ooo"),
    (masks.causal() & ~masks.sink_tokens(1), 3, 3, "... .o. .oo"),
    (masks.sliding_window(0) | masks.sink_tokens(1), 3, 3, "o.. oo. o.o"),
    (~(masks.causal() | masks.sink_tokens(2)), 3, 3, "..o ..o ..."),
]


@pytest.mark.parametrize(("mask", "q_len", "kv_len", "picture"), PICTURES, ids=lambda value: str(value))
def test_who_sees_whom(mask: Mask, q_len: int, kv_len: int, picture: str) -> None:
    assert drawn(mask, (1, 1, q_len, kv_len)) == picture.split()


def test_batches() -> None:
    ids = np.array([[0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(dense(masks.documents(ids), (2, 1, 3, 3))[:, 0], ids[:, :, None] == ids[:, None, :])
    np.testing.assert_array_equal(dense(masks.lengths(np.array([1, 3])), (2, 1, 1, 3))[:, 0, 0].sum(-1), [1, 3])
    assert dense(masks.prefix_lm(np.array([0, 3])), (2, 1, 3, 3)).sum() == 6 + 9


@pytest.mark.parametrize("make", [lambda x: x, np.asarray, torch.tensor, lambda x: np.array(x, np.int32)])
def test_ids_of_any_library(make: Any) -> None:
    assert drawn(masks.documents(make([0, 0, 1, -1]))) == ["oo..", "oo..", "..o.", "...."]


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_arrays_combine_from_both_sides(make: Any) -> None:
    odd = make([[True, False, True, False]])
    for mask in (odd & masks.causal(), masks.causal() & odd):
        assert isinstance(mask, Mask)
        assert drawn(mask) == ["o...", "o...", "o.o.", "o.o."]
    for mask in (odd | masks.causal(), masks.causal() | odd):
        assert drawn(mask) == ["o.o.", "ooo.", "ooo.", "oooo"]


def test_functions_combine() -> None:
    assert drawn(masks.causal() & (lambda b, h, q_idx, kv_idx: kv_idx > 0)) == ["....", ".o..", ".oo.", ".ooo"]


def test_dense_masks_broadcast_over_several_batch_dimensions() -> None:
    from rootdk.mods.trace import Tracer

    array = np.random.default_rng(0).random((2, 1, 1, 3, 1)) < 0.5
    tracer = Tracer(3, 4, 2, (2, 5))
    traced = tracer.finish(None, (masks.mask(array) & masks.sink_tokens(4)).trace(tracer, *tracer.indices))
    found = masked(traced, (10, 2, 3, 4)).reshape(2, 5, 2, 3, 4)
    np.testing.assert_array_equal(found, np.broadcast_to(array, (2, 5, 2, 3, 4)))


def test_arrays_are_read_at_the_call() -> None:
    ids = np.array([0, 0, 1, 1])
    mask = masks.documents(ids)
    assert drawn(mask)[2] == "..oo"
    ids[1] = 1
    assert drawn(mask)[2] == ".ooo"


def test_equal_arguments_are_one_mask_and_one_graph() -> None:
    assert masks.causal() is masks.causal(None)
    assert masks.sliding_window(4) is masks.sliding_window(np.int64(4), 0)
    assert masks.sink_tokens(2) is masks.sink_tokens(2)

    def graph(mask: Mask, q_len: int = 8) -> Any:
        tracer = tracer_for((1, 1, q_len, 8))
        return tracer.finish(None, mask.trace(tracer, *tracer.indices)).graph

    assert graph(masks.causal("start")) == graph(masks.causal("end"), 3) == graph(masks.causal(7), 5)
    assert graph(masks.sliding_window(4)) == graph(masks.sliding_window(100, 3, align="end"), 2)
    assert graph(masks.documents(np.arange(8))) == graph(masks.documents(np.zeros(8, np.int64)))


def test_masks_print_as_they_are_written() -> None:
    ids = np.arange(4)
    mask = (masks.causal() | masks.sink_tokens(2)) & ~masks.sliding_window(3, align="end") & masks.documents(ids)
    assert repr(mask) == ("(causal() | sink_tokens(2)) & ~sliding_window(3, 0, align='end') & documents(int64 [4])")
    assert repr(masks.mask(np.ones((2, 3), bool))) == "mask(array of shape (2, 3))"
    assert repr(~(masks.causal() & masks.causal())) == "~(causal() & causal())"


BAD: list[tuple[Any, type[RootdkError], str]] = [
    (lambda: masks.causal("middle"), ArgumentError, 'align: expected "start", "end"'),
    (lambda: masks.causal(1.5), ArgumentError, "align: .* got 1.5"),
    (lambda: masks.causal(True), ArgumentError, "align"),
    (lambda: masks.causal([1]), ArgumentError, "align"),
    (lambda: masks.sliding_window(-1), ArgumentError, "left: expected a number of keys, 0 or more"),
    (lambda: masks.sliding_window(2.0), ArgumentError, "left: .* got 2.0"),
    (lambda: masks.sliding_window(1, -2), ArgumentError, "right"),
    (lambda: masks.sliding_window("4"), ArgumentError, "left"),
    (lambda: masks.prefix_lm(-1), ArgumentError, "length"),
    (lambda: masks.prefix_lm(None), ArgumentError, "length"),
    (lambda: masks.prefix_lm(np.array([1.0])), DTypeError, "length: expected integers, got float64"),
    (lambda: masks.prefix_lm(np.ones((2, 2), int)), ShapeError, r"length: expected \[batch\]"),
    (lambda: masks.documents(np.zeros(4)), DTypeError, r"ids: .*ids.astype\(np.int64\)"),
    (lambda: masks.documents(np.zeros(4, bool)), DTypeError, "ids: expected integers"),
    (lambda: masks.documents(np.zeros((1, 1, 4), int)), ShapeError, r"ids: expected \[len\] or \[batch, len\]"),
    (lambda: masks.documents(3), ArgumentError, "ids: expected an array of integers"),
    (lambda: masks.documents([0], kv_ids=[0.5]), DTypeError, "kv_ids"),
    (lambda: masks.lengths(4), ArgumentError, r"kv_lengths: expected an array of integers \[batch\]"),
    (lambda: masks.lengths(np.zeros((2, 2), int)), ShapeError, "kv_lengths"),
    (lambda: masks.sink_tokens(-1), ArgumentError, "count"),
    (lambda: masks.sink_tokens(True), ArgumentError, "count"),
    (lambda: masks.mask(np.zeros((2, 2))), DTypeError, "bias=array"),
    (lambda: masks.mask(np.zeros((2, 2), int)), DTypeError, "mask=array != 0"),
    (lambda: masks.mask(torch.zeros(2, 2)), DTypeError, "bias=array"),
    (lambda: masks.mask(5), ArgumentError, "got int"),
    (lambda: masks.causal() & 1, ArgumentError, "got int"),
    (lambda: np.zeros(3) & masks.causal(), DTypeError, "bias=array"),
    (lambda: masks.causal() and masks.causal(), ArgumentError, "combine masks with & | ~"),
    (lambda: dense(masks.causal(), (1, 1, 3, 4)), ArgumentError, "q_len = 3 differs from kv_len = 4"),
    (lambda: dense(masks.documents([0, 1]), (1, 1, 2, 4)), ShapeError, "kv_len = 4 .* kv_ids="),
    (lambda: dense(masks.documents([0, 1]), (1, 1, 3, 3)), ShapeError, "q_len = 3"),
    (lambda: dense(masks.documents([[0, 1]]), (2, 1, 2, 2)), ShapeError, "ids: expected batch = 2"),
    (lambda: dense(masks.lengths([1]), (2, 1, 2, 2)), ShapeError, "kv_lengths: expected batch = 2"),
    (lambda: dense(masks.prefix_lm(np.array([1])), (2, 1, 2, 2)), ShapeError, "length: expected batch = 2"),
    (lambda: dense(masks.mask(np.ones((3, 4), bool)), (1, 1, 4, 4)), ShapeError, r"got \(3, 4\)"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "message"), BAD, ids=[message for _, _, message in BAD])
def test_refused(make: Any, error: type[RootdkError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
