"""Pairs that a score function hides, hidden by the mask."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tracing import over_pairs, trace_mask, trace_score

from rootdk.mods import lang
from rootdk.mods.score_mask import with_score_mask

INF = float("inf")
SHAPE = (2, 2, 8, 8)
IDS = np.array([0, 0, 0, 1, 1, 2, 2, 2])
CUBE = np.random.default_rng(0).random((8, 8, 15)) < 0.5

HIDING: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "causal": (
        lambda score, b, h, q, kv: lang.where(q >= kv, score, -INF),
        lambda b, h, q, kv: q >= kv,
    ),
    "else": (
        lambda score, b, h, q, kv: lang.where(q < kv, -INF, 2 * score),
        lambda b, h, q, kv: q >= kv,
    ),
    "documents": (
        lambda score, b, h, q, kv: lang.where((q >= kv) & (IDS[q] == IDS[kv]), score, -INF),
        lambda b, h, q, kv: (q >= kv) & (IDS[q] == IDS[kv]),
    ),
    "nested": (
        lambda score, b, h, q, kv: lang.where(h == 0, lang.where(q < kv, -INF, score), lang.where(kv < 3, score, -INF)),
        lambda b, h, q, kv: lang.where(h == 0, q >= kv, kv < 3),
    ),
    "in sequence": (
        lambda score, b, h, q, kv: _then(lang.where(q >= kv, score, -INF), lambda s: lang.where(kv < 6, s * 2, -INF)),
        lambda b, h, q, kv: (q >= kv) & (kv < 6),
    ),
    "or": (
        lambda score, b, h, q, kv: lang.where((q < kv) | (score > 3), -INF, score),
        lambda b, h, q, kv: q >= kv,
    ),
    "not and": (
        lambda score, b, h, q, kv: lang.where(~((q >= kv) & (score < 3)), -INF, score),
        lambda b, h, q, kv: q >= kv,
    ),
}


def _then(score: Any, function: Callable[[Any], Any]) -> Any:
    """Score functions in sequence: what the first hid stays hidden."""
    return lang.where(score == -INF, -INF, function(score))


@pytest.mark.parametrize("name", HIDING)
def test_what_scores_hide_the_mask_hides(name: str) -> None:
    score_mod, mask = HIDING[name]
    traced = trace_score(score_mod, SHAPE)
    graph = with_score_mask(traced.graph)
    assert graph.nodes[: len(traced.graph.nodes)] == traced.graph.nodes
    assert graph.score == traced.graph.score and graph.mask is not None
    found = over_pairs(replace(traced, graph=graph), SHAPE)[graph.mask]
    expected = trace_mask(mask, SHAPE)
    np.testing.assert_array_equal(
        np.broadcast_to(found, SHAPE), np.broadcast_to(over_pairs(expected, SHAPE)[expected.graph.mask], SHAPE)
    )


@pytest.mark.parametrize("score_mod", [
    lambda score, b, h, q, kv: score * 2,
    lambda score, b, h, q, kv: lang.where(score > 0, score, -INF),
    lambda score, b, h, q, kv: lang.where(CUBE[q, kv, q - kv], score, -INF),
    lambda score, b, h, q, kv: lang.where(q >= kv, score, INF),
    lambda score, b, h, q, kv: lang.where((q < kv) & (score > 3), -INF, score),
    lambda score, b, h, q, kv: lang.where(q >= kv, score, -INF) + 1,
])  # fmt: skip
def test_what_no_tile_can_decide_stays(score_mod: Callable[..., Any]) -> None:
    graph = trace_score(score_mod, SHAPE).graph
    assert with_score_mask(graph) is graph


def test_a_mask_stays() -> None:
    graph = trace_mask(lambda b, h, q, kv: q >= kv).graph
    assert with_score_mask(graph) is graph
