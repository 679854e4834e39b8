"""What a mod cannot do is refused with the user's file and line, what is wrong, and what to write instead."""

import math
import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tracing import trace_mask, trace_score

from rootdk.errors import ModError

TABLE, LIST = np.arange(8.0), [0.0, 1.0, 2.0]
TENSOR = torch.arange(8.0)


class Counter:
    calls = 0

    def score(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        self.calls += 1
        return s


def branches(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    if s > 0:
        return s
    return -s


def loops(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    while q > 0:
        q = q - 1
    return s


def counts(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    for _ in range(q):
        s = s + 1
    return s


def writes(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    TABLE[q] = s
    return s


def writes_tensor(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    TENSOR[0] = s
    return s


def asserts(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    assert q >= 0
    return s


SCORES: dict[str, tuple[Callable[..., Any], str]] = {
    "if": (branches, r"if s > 0:.*|where\(a, x, y\)"),
    "while": (loops, "a loop or an assertion can depend only on Python values"),
    "range": (counts, "loops can run only over Python values"),
    "assert": (asserts, "can depend only on Python values"),
    "conditional expression": (lambda s, b, h, q, k: s if q > k else -s, "for `x if a else y`"),
    "and": (lambda s, b, h, q, k: s * (q > 1 and k > 1), r"for `a and b` write \(a\) & \(b\)"),
    "or": (lambda s, b, h, q, k: s * (q > 1 or k > 1), r"for `a or b` write \(a\) \| \(b\)"),
    "not": (lambda s, b, h, q, k: s * (not q > 1), "for `not a` write ~a"),
    "chained": (lambda s, b, h, q, k: s * (0 < q < 5), r"for `a < b < c` write \(a < b\) & \(b < c\)"),
    "in": (lambda s, b, h, q, k: s * (q in (1, 2)), r"for `a in \(1, 2\)` write"),
    "bool": (lambda s, b, h, q, k: s * bool(q > 1), r"leave bool\(\) out"),
    "any": (lambda s, b, h, q, k: s * any([q > 1, k > 1]), r"combine with \| and &"),
    "int": (lambda s, b, h, q, k: s + int(q), r"int\(\) needs one number now"),
    "float": (lambda s, b, h, q, k: s + float(q), r"float\(\)"),
    "item": (lambda s, b, h, q, k: s + q.item(), r"\.item\(\) needs one number now"),
    "math": (lambda s, b, h, q, k: math.exp(s), "a function of math, needs one number.*from torch or numpy"),
    "index of a list": (lambda s, b, h, q, k: s + LIST[q], "make the list an array outside the function"),
    "key of a dict": (lambda s, b, h, q, k: s + {0: 1}[q], "cannot be a key of a dict"),
    "array made inside": (lambda s, b, h, q, k: s + np.arange(9)[q], "an array made inside the function"),
    "boolean index": (lambda s, b, h, q, k: s + TABLE[q > 1], "indexed by a boolean"),
    "float index": (lambda s, b, h, q, k: s + TABLE[s], "indexed by a float"),
    "too many indices": (lambda s, b, h, q, k: s + TABLE[q, k], "1 dimensions got 2 indices"),
    "index of a number": (lambda s, b, h, q, k: s[q], "it cannot be indexed"),
    "loop over a number": (lambda s, b, h, q, k: sum(s), "a loop cannot run over it"),
    "length of a number": (lambda s, b, h, q, k: len(s), "it has no length"),
    "writing": (writes, "a mod cannot write into an array"),
    "writing to a tensor": (writes_tensor, "a mod cannot write into an array"),
    "writing to an attribute": (Counter().score, r"cannot write to self\.calls"),
    "in place": (lambda s, b, h, q, k: s.add_(1), r"write x = x\.add\(\.\.\.\)"),
    "random of torch": (lambda s, b, h, q, k: s + torch.rand(()), "`rand` draws random numbers.*dropout_p="),
    "random of numpy": (lambda s, b, h, q, k: s + np.random.rand(), "`rand(om)?` draws random numbers"),
    "random of python": (lambda s, b, h, q, k: s + random.random(), "`random` draws random numbers"),
    "dropout": (lambda s, b, h, q, k: F.dropout(s, 0.5), "`dropout` draws random numbers"),
    "softmax": (lambda s, b, h, q, k: torch.softmax(s, -1), "softmax over the keys comes after it"),
    "sum": (lambda s, b, h, q, k: s.sum(-1), "the keys of a row, a mod never sees together"),
    "torch.max": (lambda s, b, h, q, k: torch.max(s, -1), "never sees together"),
    "mean": (lambda s, b, h, q, k: np.mean(s), "never sees together"),
    "cumsum": (lambda s, b, h, q, k: torch.cumsum(s, 0), "cumsum cannot be compiled"),
    "unknown function of torch": (lambda s, b, h, q, k: torch.lgamma(s), "lgamma cannot be compiled in a mod"),
    "unknown function of numpy": (lambda s, b, h, q, k: np.arctan2(s, q), "arctan2 cannot be compiled in a mod"),
    "unknown method": (lambda s, b, h, q, k: s.lgamma(), r"\.lgamma cannot be compiled in a mod"),
    "unknown argument": (lambda s, b, h, q, k: s.clamp(least=2), "clamp cannot take these arguments"),
    "unknown function of jax": (lambda s, b, h, q, k: jnp.arctan2(s, q), "arctan2 cannot be compiled in a mod"),
    "to an array": (lambda s, b, h, q, k: np.asarray(s), "asks for the values"),
    "out": (lambda s, b, h, q, k: np.exp(s, out=TABLE), "exp cannot take these arguments"),
    "reduce": (lambda s, b, h, q, k: np.add.reduce(TABLE * s), "write the elements out"),
    "strange operand": (lambda s, b, h, q, k: s + "1", "'1' of type str met a traced value"),
    "None as operand": (lambda s, b, h, q, k: s + None, "None of type NoneType met"),
    "complex": (lambda s, b, h, q, k: s * 1j, "1j of type complex met"),
    "float bits": (lambda s, b, h, q, k: s & 1, "works on integers and booleans, and got a float"),
    "boolean difference": (lambda s, b, h, q, k: s + ((q > 1) - (k > 1)), "subtract of booleans"),
    "wide integer": (lambda s, b, h, q, k: s + (q + 2**63), "does not fit 64 bits"),
    "shapes that differ": (lambda s, b, h, q, k: s + (TABLE + LIST_ARRAY)[q], "do not broadcast"),
    "truth of an array": (lambda s, b, h, q, k: s if TABLE else -s, "no single truth value"),
    "long row": (lambda s, b, h, q, k: s + LONG[q].sum(), "reduces 5000 elements"),
    "rounding to digits": (lambda s, b, h, q, k: round(s, 2), "decimal digits"),
}
LIST_ARRAY, LONG = np.zeros(3), np.zeros((8, 5000))


@pytest.mark.parametrize("name", SCORES)
def test_refused(name: str) -> None:
    function, message = SCORES[name]
    with pytest.raises(ModError, match=message) as caught:
        trace_score(function)
    code = getattr(function, "__func__", function).__code__
    text = str(caught.value)
    assert f"{__file__}:" in text, text
    line = int(text.split(f"{__file__}:")[1].partition(",")[0])
    assert code.co_firstlineno <= line <= code.co_firstlineno + 3
    assert isinstance(caught.value, TypeError)


def nothing(*args: Any) -> None:
    pass


RESULTS: dict[str, tuple[Callable[..., Any], str]] = {
    "None": (nothing, "returned None; end it with `return`"),
    "tuple": (lambda b, h, q, k: (q, k), "returned a tuple"),
    "integer": (lambda b, h, q, k: q - k, "returned an integer.*return value != 0"),
    "float": (lambda b, h, q, k: q / 2, "returned a float.*score_mod="),
    "Python integer": (lambda b, h, q, k: 1, "returned an integer"),
    "array": (lambda b, h, q, k: TABLE > 0, r"returned an array of shape \(8,\)"),
    "string": (lambda b, h, q, k: "yes", "returned a str"),
    "object": (lambda b, h, q, k: object(), "met a traced value"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_mask_result_refused(name: str) -> None:
    function, message = RESULTS[name]
    with pytest.raises(ModError, match=message):
        trace_mask(function)


def test_score_result_refused() -> None:
    with pytest.raises(ModError, match=r"score_mod <lambda> \(.*test_refusals.py:\d+\) returned a boolean.*mask="):
        trace_score(lambda s, b, h, q, k: q >= k)
    with pytest.raises(ModError, match="returned None"):
        trace_score(nothing)


def test_wrong_number_of_parameters() -> None:
    with pytest.raises(ModError, match=r"expected f\(b, h, q_idx, kv_idx\).*4 were given"):
        trace_mask(lambda q, k: q >= k)
    with pytest.raises(ModError, match=r"expected f\(score, b, h, q_idx, kv_idx\)"):
        trace_score(lambda b, h, q, k: q)


def test_values_kept_from_an_earlier_call() -> None:
    kept: list[Any] = []
    trace_score(lambda s, b, h, q, k: kept.append(q) or s)
    with pytest.raises(ModError, match="earlier call"):
        trace_score(lambda s, b, h, q, k: s + kept[0])


def test_showing_a_value_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        print(s, f"{q} {s:.3f}", TABLE[:3])
        return s

    trace_score(function)
    assert capsys.readouterr().out.startswith("<float of a pair> <int of a pair> <float of a pair> <float array [3]")


def test_asking_what_a_value_can_do_is_fine() -> None:
    trace_score(lambda s, b, h, q, k: s * 2 if hasattr(s, "tanh") and not hasattr(s, "no_such_method") else None)
