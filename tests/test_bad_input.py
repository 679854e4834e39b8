"""Every wrong call has one error: its class, and a message with the argument, what was expected, and what came."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rootdk
from rootdk import masks, scores
from rootdk.errors import ArgumentError, DTypeError, ModError, RootdkError, ShapeError
from rootdk.problem import bind

CALLEES = [bind, rootdk.attention]

RIGHT: dict[str, Any] = {
    "query": np.ones((2, 4, 6, 8), np.float32),
    "key": np.ones((2, 2, 5, 8), np.float32),
    "value": np.ones((2, 2, 5, 3), np.float32),
}
SCORES = (2, 4, 6, 5)


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def bools(*shape: int) -> np.ndarray:
    return np.ones(shape, np.bool_)


def masked(array: np.ndarray) -> np.ndarray:
    return np.ma.masked_array(array)


# name of the case, error, part of the message, arguments that differ from RIGHT
WRONG: list[tuple[str, type[RootdkError], str, dict[str, Any]]] = [
    # what an array is
    (
        "query list",
        DTypeError,
        "query: expected an array .* got list; convert it: np.asarray(query)",
        {"query": [[1.0]]},
    ),
    ("key None", DTypeError, "key: expected an array, got NoneType", {"key": None}),
    ("value number", DTypeError, "value: expected an array, got float", {"value": 1.0}),
    (
        "query masked",
        DTypeError,
        "query: expected a plain array, got a masked array",
        {"query": masked(RIGHT["query"])},
    ),
    (
        "query integer",
        DTypeError,
        "got int64; convert it: query.astype(np.float32)",
        {"query": floats(2, 4, 6, 8, dtype=int)},
    ),
    (
        "key bool",
        DTypeError,
        "key: expected one of float16, bfloat16, float32, float64, got bool",
        {"key": bools(2, 2, 5, 8)},
    ),
    (
        "query complex",
        DTypeError,
        "query: expected one of float16, .* got complex64",
        {"query": floats(2, 4, 6, 8, dtype="c8")},
    ),
    (
        "query object",
        DTypeError,
        "query: expected one of float16, .* got object",
        {"query": floats(2, 4, 6, 8, dtype=object)},
    ),
    (
        "value longdouble",
        DTypeError,
        "value: expected one of float16",
        {"value": floats(2, 2, 5, 3, dtype=np.longdouble)},
    ),
    (
        "query big-endian",
        DTypeError,
        "query: expected native byte order, got >f4; convert it",
        {"query": floats(2, 4, 6, 8, dtype=">f4")},
    ),
    (
        "key other dtype",
        DTypeError,
        "key: expected float32, as query is, got float64; convert it: key.astype(query.dtype)",
        {"key": floats(2, 2, 5, 8, dtype=np.float64)},
    ),
    (
        "value other dtype",
        DTypeError,
        "value: expected float32, as query is, got float16",
        {"value": floats(2, 2, 5, 3, dtype=np.float16)},
    ),
    # how shapes fit
    (
        "query 0-d",
        ShapeError,
        "query: expected [..., heads, len, d] or [len, d], got shape ()",
        {"query": floats()},
    ),
    (
        "key 1-d",
        ShapeError,
        "key: expected [..., heads, len, d] or [len, d], got shape (8,); of a vector: key[None]",
        {"key": floats(8)},
    ),
    (
        "d_k differs",
        ShapeError,
        "key: expected d_k = 8 as last dimension, as query has, got 7 (query (2, 4, 6, 8)",
        {"key": floats(2, 2, 5, 7)},
    ),
    ("kv_len differs", ShapeError, "value: expected kv_len = 5, as key has, got 4", {"value": floats(2, 2, 4, 3)}),
    ("kv_heads differ", ShapeError, "value: expected kv_heads = 2, as key has, got 4", {"value": floats(2, 4, 5, 3)}),
    ("one value head", ShapeError, "value: expected kv_heads = 2, as key has, got 1", {"value": floats(2, 1, 5, 3)}),
    (
        "6 heads, 4 key heads",
        ShapeError,
        "key: expected kv_heads that divide the 6 heads of query, got 4",
        {"query": floats(2, 6, 6, 8), "key": floats(2, 4, 5, 8), "value": floats(2, 4, 5, 3)},
    ),
    ("fewer heads than key heads", ShapeError, "divide the 1 heads of query, got 2", {"query": floats(6, 8)}),
    (
        "heads but no key heads",
        ShapeError,
        "divide the 4 heads of query, got 0",
        {"key": floats(2, 0, 5, 8), "value": floats(2, 0, 5, 3)},
    ),
    (
        "other layout meant",
        ShapeError,
        'divide the 6 heads of query, got 5 .* if the other order of heads and len is meant, pass layout="bhsd"',
        {"layout": "bshd"} | {"query": floats(2, 4, 6, 8)},
    ),
    (
        "batch differs",
        ShapeError,
        "query, key, value: expected batch dimensions that broadcast, got (2,), (3,), (3,)",
        {"key": floats(3, 2, 5, 8), "value": floats(3, 2, 5, 3)},
    ),
    (
        "second batch dimension differs",
        ShapeError,
        "got (4, 2), (3, 2), (1, 1)",
        {"query": floats(4, 2, 4, 6, 8), "key": floats(3, 2, 2, 5, 8), "value": floats(1, 1, 2, 5, 3)},
    ),
    (
        "unknown layout",
        ArgumentError,
        'layout: expected "bhsd" ([batch, heads, len, d]) or "bshd" ([batch, len, heads, d]), got \'sbhd\'',
        {"layout": "sbhd"},
    ),
    ("layout None", ArgumentError, 'layout: expected "bhsd"', {"layout": None}),
    # masks
    (
        "integer mask",
        DTypeError,
        "mask: expected booleans (True = may attend), got int64; write mask=array != 0",
        {"mask": floats(6, 5, dtype=np.int64)},
    ),
    (
        "byte mask",
        DTypeError,
        "got uint8; write mask=array != 0 where 1 means may attend, mask=array == 0 where 1 means hidden",
        {"mask": floats(6, 5, dtype=np.uint8)},
    ),
    (
        "float mask",
        DTypeError,
        "got float32; an array that is added to the scores is bias=array",
        {"mask": floats(6, 5)},
    ),
    (
        "half mask",
        DTypeError,
        "got float16; an array that is added to the scores is bias=array",
        {"mask": floats(6, 5, dtype=np.float16)},
    ),
    (
        "mask without heads",
        ShapeError,
        "mask: expected a shape that broadcasts to [batch, heads, q_len, kv_len] = (2, 4, 6, 5), got (2, 6, 5); "
        "reshape it: mask.reshape(2, 1, 6, 5)",
        {"mask": bools(2, 6, 5)},
    ),
    ("mask by batch", ShapeError, "got (2, 5); reshape it: mask.reshape(2, 1, 1, 5)", {"mask": bools(2, 5)}),
    (
        "mask transposed",
        ShapeError,
        "got (5, 6); each of its dimensions must be 1 or the one above, counted from the right",
        {"mask": bools(5, 6)},
    ),
    ("mask too deep", ShapeError, "got (2, 2, 4, 6, 5); each of its dimensions", {"mask": bools(2, 2, 4, 6, 5)}),
    (
        "mask list",
        ArgumentError,
        "mask: expected a boolean array (True = may attend), a mask such as rootdk.causal(), or "
        "f(b, h, q_idx, kv_idx) -> bool, got list",
        {"mask": [[True]]},
    ),
    ("mask False", ArgumentError, "mask: expected a boolean array .* got bool", {"mask": False}),
    ("mask name", ArgumentError, "mask: expected a boolean array .* got str", {"mask": "causal"}),
    (
        "mask is a score",
        ArgumentError,
        "mask: expected a mask, got a score function; pass it as score_mod=",
        {"mask": scores.softcap(2.0)},
    ),
    ("mask without align", ArgumentError, "align", {"mask": masks.causal()}),
    ("mask function returns a number", ModError, "mask", {"mask": lambda b, h, q, kv: q - kv}),
    # biases
    (
        "integer bias",
        DTypeError,
        "bias: expected a floating array that is added to the scores, got int32; convert it: "
        "bias.astype(np.float32), or, to hide pairs where it is 0, pass mask=bias != 0",
        {"bias": floats(6, 5, dtype=np.int32)},
    ),
    ("bool bias", DTypeError, "got bool; pass it as mask=", {"bias": bools(6, 5)}),
    (
        "complex bias",
        DTypeError,
        "bias: expected one of float16, .* got complex128",
        {"bias": floats(6, 5, dtype=complex)},
    ),
    ("bias number", DTypeError, "bias: expected an array, got float", {"bias": 0.5}),
    ("big-endian bias", DTypeError, "bias: expected native byte order, got >f8", {"bias": floats(6, 5, dtype=">f8")}),
    (
        "bias shape",
        ShapeError,
        "bias: expected a shape that broadcasts to [batch, heads, q_len, kv_len] = (2, 4, 6, 5), got (6, 6)",
        {"bias": floats(6, 6)},
    ),
    ("bias by head", ShapeError, "got (4,); reshape it: bias.reshape(4, 1, 1)", {"bias": floats(4)}),
    # score functions
    (
        "score_mod is a mask",
        ArgumentError,
        "score_mod: expected a score function, got a mask; pass it as mask=",
        {"score_mod": masks.causal(align="end")},
    ),
    (
        "score_mod is an array",
        ArgumentError,
        "score_mod: expected a score function, got an array; to add it to the scores: bias=",
        {"score_mod": floats(6, 5)},
    ),
    (
        "score_mod is a number",
        ArgumentError,
        "score_mod: expected f(score, b, h, q_idx, kv_idx) -> score, got float",
        {"score_mod": 2.0},
    ),
    (
        "score_mod holds None",
        ArgumentError,
        "score_mod: expected .* got NoneType",
        {"score_mod": [scores.softcap(2.0), None]},
    ),
    ("score_mod returns None", ModError, "score_mod", {"score_mod": lambda score, b, h, q, kv: None}),
    # numbers
    (
        "scale NaN",
        ArgumentError,
        "scale: expected a finite number, or None for 1/sqrt(d_k), got nan",
        {"scale": math.nan},
    ),
    ("scale inf", ArgumentError, "scale: expected a finite number, .* got inf", {"scale": np.float32(np.inf)}),
    ("scale beyond floats", ArgumentError, "scale: expected a finite number, .* got inf", {"scale": 10**400}),
    ("scale name", ArgumentError, "scale: expected a finite number, .* got 'auto'", {"scale": "auto"}),
    ("scale True", ArgumentError, "scale: expected a finite number, .* got True", {"scale": True}),
    ("scale complex", ArgumentError, "scale: expected a finite number", {"scale": 1j}),
    (
        "scale vector",
        ArgumentError,
        "scale: expected a finite number, .* got an array of shape (4,)",
        {"scale": floats(4)},
    ),
    ("dropout above 1", ArgumentError, "dropout_p: expected a probability from 0 to 1, got 1.5", {"dropout_p": 1.5}),
    ("dropout negative", ArgumentError, "dropout_p: expected a probability from 0 to 1, got -0.1", {"dropout_p": -0.1}),
    ("dropout NaN", ArgumentError, "dropout_p: expected a probability from 0 to 1, got nan", {"dropout_p": math.nan}),
    ("dropout None", ArgumentError, "dropout_p: expected a probability from 0 to 1, got NoneType", {"dropout_p": None}),
    ("seed float", ArgumentError, "seed: expected an integer or None, got 1.0", {"seed": 1.0}),
    (
        "seed negative",
        ArgumentError,
        "seed: expected an integer from 0 to 2**64 - 1, got -1; use seed % 2**64",
        {"seed": -1, "dropout_p": 0.5},
    ),
    ("seed too large", ArgumentError, "seed: expected an integer from 0 to 2**64 - 1", {"seed": 1 << 64}),
    # sinks
    ("sinks shape", ShapeError, "sinks: expected one logit per query head, shape (4,), got (2,)", {"sinks": floats(2)}),
    ("sinks 0-d", ShapeError, "sinks: expected one logit per query head, shape (4,), got ()", {"sinks": np.array(1.0)}),
    ("sinks integer", DTypeError, "sinks: expected one of float16, .* got int64", {"sinks": floats(4, dtype=int)}),
    ("sinks list", DTypeError, "sinks: expected an array, got list", {"sinks": [1.0, 2.0, 3.0, 4.0]}),
]


@pytest.mark.parametrize("callee", CALLEES)
@pytest.mark.parametrize(("error", "message", "changed"), [pytest.param(*case[1:], id=case[0]) for case in WRONG])
def test_wrong_call_is_refused(
    callee: Callable[..., Any], error: type[RootdkError], message: str, changed: dict[str, Any]
) -> None:
    pattern = ".*".join(re.escape(part) for part in message.split(" .* "))
    with pytest.raises(error, match=f"(?s){pattern}") as caught:
        callee(**{**RIGHT, **changed})
    assert type(caught.value) is error
    assert isinstance(caught.value, ValueError | TypeError)


@pytest.mark.parametrize("callee", CALLEES)
def test_right_call_passes(callee: Callable[..., Any]) -> None:
    callee(**RIGHT)
