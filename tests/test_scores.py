"""The ready-made score functions: what they give, and what they refuse."""

from typing import Any

import numpy as np
import pytest
import torch
from tracing import over_pairs, tracer_for

from rootdk import masks, scores
from rootdk.errors import ArgumentError, DTypeError, RootdkError, ShapeError
from rootdk.mods.values import Score

RNG = np.random.default_rng(0)
SCORE = RNG.normal(size=(2, 3, 5, 5)) * 40
H, Q, K = np.ogrid[:3, :5, :5]


def applied(score_mod: Score, score: np.ndarray = SCORE) -> np.ndarray:
    tracer = tracer_for(score.shape)
    traced = tracer.finish(score_mod.trace(tracer, tracer.score, *tracer.indices), None)
    assert traced.graph.score is not None
    found: np.ndarray = over_pairs(traced, score.shape, score)[traced.graph.score]
    return found


@pytest.mark.parametrize("cap", [30.0, 30, np.float32(30), np.array(30.0), torch.tensor(30.0, requires_grad=True)])
def test_softcap(cap: Any) -> None:
    found = applied(scores.softcap(cap))
    np.testing.assert_allclose(found, 30 * np.tanh(SCORE / 30))
    assert (np.abs(found) < 30).all()


def test_alibi() -> None:
    slopes = np.array([0.5, 0.25, 0.0])
    for given in (slopes, list(slopes), torch.tensor(slopes)):
        np.testing.assert_allclose(applied(scores.alibi(given)), SCORE - slopes[H] * abs(Q - K))
    np.testing.assert_allclose(applied(scores.alibi()), SCORE - np.array([2**-4, 2**-8, 2**-2])[H] * abs(Q - K))


def test_alibi_slopes_of_the_paper() -> None:
    np.testing.assert_allclose(scores.alibi_slopes(8), 2.0 ** -np.arange(1, 9))
    np.testing.assert_allclose(scores.alibi_slopes(3), [2**-4, 2**-8, 2**-2])
    halves = [0.5, 1.5, 2.5, 3.5]
    np.testing.assert_allclose(scores.alibi_slopes(12), 2.0 ** -np.array([*range(1, 9), *halves]))
    assert len(scores.alibi_slopes(0)) == 0 and scores.alibi_slopes(1) == [2**-8]


def test_positions() -> None:
    score = RNG.normal(size=(1, 1, 2, 5))
    distance = abs(np.arange(2)[:, None] + 3 - np.arange(5))
    np.testing.assert_allclose(applied(scores.alibi([1.0], align="end"), score)[0, 0], score[0, 0] - distance)
    table = RNG.normal(size=(1, 3))
    relative = np.clip(np.arange(5) - np.arange(2)[:, None] - 1, -1, 1) + 1
    np.testing.assert_allclose(
        applied(scores.relative_bias(table, align=1), score)[0, 0], score[0, 0] + table[0, relative]
    )


def test_relative_bias() -> None:
    table = RNG.normal(size=(3, 5)).astype(np.float32)
    np.testing.assert_allclose(applied(scores.relative_bias(table)), SCORE + table[H, np.clip(K - Q, -2, 2) + 2])


def test_score() -> None:
    np.testing.assert_allclose(applied(scores.score(lambda s, b, h, q_idx, kv_idx: 2 * s)), 2 * SCORE)
    given = scores.softcap(20)
    assert scores.score(given) is given


def test_values_print_and_are_shared() -> None:
    assert scores.softcap(30) is scores.softcap(30.0)
    assert scores.alibi(align="end") is scores.alibi(align="end")
    shown = [scores.softcap(30), scores.alibi(), scores.alibi([1.0]), scores.relative_bias(np.zeros((8, 65)))]
    assert [repr(value) for value in shown] == [
        "softcap(30.0)", "alibi()", "alibi(float64 [1])", "relative_bias(float64 [8, 65])",
    ]  # fmt: skip


BAD: list[tuple[Any, type[RootdkError], str]] = [
    (lambda: scores.softcap(0), ArgumentError, "cap: expected a positive number, got 0"),
    (lambda: scores.softcap(-3.0), ArgumentError, "cap"),
    (lambda: scores.softcap(float("inf")), ArgumentError, "cap: .* got inf"),
    (lambda: scores.softcap(float("nan")), ArgumentError, "cap: .* got nan"),
    (lambda: scores.softcap("30"), ArgumentError, "cap"),
    (lambda: scores.softcap(np.ones(3)), ShapeError, "cap: expected a number or a 0-d floating array"),
    (lambda: scores.alibi(0.5), ArgumentError, r"slopes: expected a floating array \[heads\]"),
    (lambda: scores.alibi(np.array([1, 2])), DTypeError, "slopes: expected floats, got int64"),
    (lambda: scores.alibi(np.ones((2, 2))), ShapeError, "slopes"),
    (lambda: scores.alibi(align="middle"), ArgumentError, "align"),
    (lambda: scores.relative_bias(np.ones((2, 4))), ShapeError, r"table: expected \[heads, 2 r \+ 1\], an odd number"),
    (lambda: scores.relative_bias(np.ones(3)), ShapeError, "table"),
    (lambda: scores.score(masks.causal()), ArgumentError, "got a mask; pass it as mask="),
    (lambda: scores.score(np.ones(3)), ArgumentError, "bias="),
    (lambda: scores.score(3), ArgumentError, "got int"),
    (lambda: masks.mask(scores.alibi()), ArgumentError, "score_mod="),
    (lambda: applied(scores.alibi([1.0])), ShapeError, "each of the 3 query heads"),
    (lambda: applied(scores.relative_bias(np.ones((2, 3)))), ShapeError, "table: .* 3 query heads"),
    (lambda: applied(scores.alibi(), SCORE[..., :2, :]), ArgumentError, "align: q_len = 2 differs"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD, ids=[message for _, _, message in BAD])
def test_refused(make: Any, error: type[RootdkError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
