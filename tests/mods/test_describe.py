"""Expressions as text."""

import numpy as np
import pytest
from expressions import Draft, where

from rootdk.mods.describe import describe


def texts() -> list[tuple[str, str]]:
    draft = Draft()
    b, h, q, kv = draft.indices()
    ids, scale = draft.array(np.zeros((2, 3), int)), draft.array(np.array(2.0))
    terms = {
        "kv <= q": kv <= q,
        "(kv <= q) & (q - kv < 3)": (kv <= q) & (q - kv < 3),
        "~((q < kv) | (h == 0))": ~((q < kv) | h.same(0)),
        "q - (kv - h)": q - (kv - h),
        "q - kv - h": q - kv - h,
        "(q + kv) // 4 % 2": (q + kv) // 4 % 2,
        "q * -2": q * -2,
        "h <= q": h <= q + 0 - 0,
        "ids[b, q + 1] == ids[b, kv]": ids[b, q + 1].same(ids[b, kv]),
        "score * scale + 0.5 * q": None,
        "where(q < kv, q, abs(q - kv))": where(q < kv, q, abs(q - kv)),
        "tanh(score / 30)": draft.node("tanh", draft.score() / 30.0),
        "(q < kv) == (q < h)": draft.node("equal", *(draft.node("to_int", x) for x in (q < kv, q < h))),
    }
    terms["score * scale + 0.5 * q"] = draft.score() * scale[()] + draft.term(0.5) * q
    graph = draft.graph()
    return [(describe(graph, term.number, draft.constants, ["ids", "scale"]), text) for text, term in terms.items()]


@pytest.mark.parametrize(("found", "text"), texts(), ids=[text for _, text in texts()])
def test_reads_as_python(found: str, text: str) -> None:
    assert found == text


def test_without_values() -> None:
    draft = Draft()
    _b, _h, q, _kv = draft.indices()
    term = draft.array(np.zeros(3, int))[q + 7] < 5
    assert describe(draft.graph(), term.number) == "array0[q + c0] < c1"
