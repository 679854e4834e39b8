"""Random score and mask functions through rootdk.attention, against the NumPy meaning of what they compute.

ROOTDK_FUZZ=500 tries 500 of each shape; by default there are a few, always the same.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from expressions import Draft, random_draft

import rootdk
from rootdk import problem, reference
from rootdk.dtypes import Kind
from rootdk.mods import bounds, conversions, lang, ranges
from rootdk.mods.evaluate import NUMPY, evaluate
from rootdk.mods.ranges import reachable

CASES = int(os.environ.get("ROOTDK_FUZZ", "8"))
"""Functions tried at each of ``LENGTHS``."""
HEADS, KV_HEADS = 4, 2
LENGTHS = [(37, 150), (90, 40), (1, 150), (30, 1100)]
"""(q_len, kv_len): many tiles, more queries than keys, one query, more than a chunk of keys."""
SCALE = 0.5
"""With queries and keys of small whole numbers, scores are exact: what follows differs by the mods alone."""
VALUE = {Kind.BOOL: bool, Kind.INT: int, Kind.FLOAT: float}


def function(draft: Draft, root: int, names: tuple[str, ...]) -> Callable[..., Any]:
    """A user's function of ``names``, (score and) indices, that computes node ``root`` of the draft."""
    needed = sorted(reachable(draft.graph(), [root]))

    def run(*arguments: Any) -> Any:
        given, found = dict(zip(names, arguments, strict=True)), dict[int, Any]()
        some = given["q"]
        for number in needed:
            node = draft.builder.nodes[number]
            values = [found[arg] for arg in node.args]
            match node.op:
                case "score" | "index":
                    found[number] = given[str(node.attr or "score")]
                case "literal":
                    found[number] = conversions.filled(some, node.attr, dtype=VALUE[node.kind])
                case "constant":
                    found[number] = conversions.filled(some, draft.constants[node.attr], dtype=VALUE[node.kind])
                case "gather":
                    found[number] = draft.arrays[node.attr][tuple(values)]
                case "to_float" | "to_int" | "to_bool":
                    found[number] = getattr(conversions, node.op)(*values)
                case "round":
                    found[number] = lang.nearest(*values)
                case op:
                    found[number] = getattr(lang, op)(*values)
        return found[root]

    return run


@dataclass(frozen=True)
class Case:
    """Arguments of rootdk.attention."""

    arrays: tuple[np.ndarray, ...]
    options: dict[str, Any]


def random_case(seed: int, lengths: tuple[int, int]) -> Case:
    rng = np.random.default_rng((seed, *lengths))
    q_len, kv_len = lengths
    query, key = (
        rng.integers(-2, 3, (1, heads, length, 8)).astype(np.float32)
        for heads, length in ((HEADS, q_len), (KV_HEADS, kv_len))
    )
    value = rng.standard_normal((1, KV_HEADS, kv_len, 5)).astype(np.float32)
    found = None
    while found is None:
        draft = random_draft(rng, 60, defined=True)
        found = interesting(draft, rng)
    names = ("score", "b", "h", "q", "kv")
    options = {"mask": function(draft, found[0], names[1:]), "score_mod": function(draft, found[1], names)}
    return Case((query, key, value), {**options, "scale": SCALE})


def moderate(scores: np.ndarray) -> bool:
    """Most are finite and not large, and most rows hold different ones."""
    differ = (scores != scores[..., :1]).any(axis=-1).mean()
    return bool((abs(scores) < 1000).mean() > 0.8 and differ > 0.5)


def interesting(draft: Draft, rng: np.random.Generator) -> tuple[int, int] | None:
    """A mask and a score among the draft's nodes, of the largest that leave something to compare."""
    graph = draft.graph()
    h, q, kv = np.arange(HEADS)[:, None, None], np.arange(0, 37, 4)[:, None], np.arange(0, 150, 3)
    shape = (HEADS, q.size, kv.size)
    score = rng.integers(-20, 20, shape) * np.float32(SCALE)
    values = evaluate(
        graph, tuple(draft.constants), tuple(draft.arrays), score=score, b=0, h=h, q=q, kv=kv, dtype=np.float32
    )
    of_score = ranges.varying(graph, ("score",))
    masks, scores = list[int](), list[int]()
    for number, node in enumerate(graph.nodes):
        value = np.broadcast_to(values[number], shape)
        if node.kind is Kind.BOOL and not of_score[number] and 0.1 < value.mean() < 0.9:
            masks.append(number)
        if node.kind is Kind.FLOAT and of_score[number] and moderate(value):
            scores.append(number)

    def size(root: int) -> int:
        return len(reachable(graph, [root]))

    return (max(masks, key=size), max(scores, key=size)) if masks and scores else None


# Results of functions that are rounded, where machine code may differ from NumPy by some units of the last place, and
# of quotients too large for the promise.
ROUNDED = ("power", "sin", "cos", "tanh", "erf", "sigmoid", "exp", "exp2", "expm1", "log", "log2", "log1p")
LARGEST_QUOTIENT = 2.0**23
NUDGES = [((-4, -4), np.nan), ((4, 4), -0.7), ((-4, 4), 1e9)]
"""Least and most units of the last place that are added, and what is said where nothing is promised."""


@contextmanager
def nudged(units: tuple[int, int], anything: float) -> Iterator[None]:
    """NumPy's meaning of the operations, with other results where machine code may have other ones."""
    rng, plain = np.random.default_rng(0), dict(NUMPY)

    def rounded(op: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            exact = plain[op](*arguments)
            added = rng.integers(*units, exact.shape, endpoint=True).astype(exact.dtype)
            return np.where(np.isfinite(exact), exact + added * np.spacing(exact), exact)

        return run

    def divided(op: str) -> Callable[..., Any]:
        def run(x: Any, y: Any) -> Any:
            exact = np.asarray(plain[op](x, y))
            if exact.dtype.kind != "f":
                return exact
            return np.where(abs(x / y) > LARGEST_QUOTIENT, exact.dtype.type(anything), exact)

        return run

    try:
        NUMPY.update({op: rounded(op) for op in ROUNDED} | {op: divided(op) for op in ("floor_divide", "remainder")})
        yield
    finally:
        NUMPY.update(plain)


def compare(case: Case) -> float:
    """Check the rows whose result no permitted rounding changes much; returns their share."""
    output, lse = rootdk.attention(*case.arrays, **case.options, return_lse=True)
    plain = reference.attention(*case.arrays, **case.options, dtype=np.float32)
    spread = np.zeros(lse.shape)
    for nudge in NUDGES:
        with nudged(*nudge):
            other = reference.attention(*case.arrays, **case.options, dtype=np.float32)
        for one, two in ((plain.output, other.output), (plain.lse[..., None], other.lse[..., None])):
            with np.errstate(invalid="ignore"):
                apart = np.where((one == two) | (np.isnan(one) & np.isnan(two)), 0, abs(one - two))
            spread = np.maximum(spread, np.where(np.isnan(apart), np.inf, apart).max(axis=-1))
    finite = np.where(np.isfinite(plain.masked_scores), abs(plain.masked_scores), 0)
    tolerance = 4 * spread + 4e-6 * (4 + finite.max(axis=-1))
    stable = tolerance < 1e-2
    for found, expected in ((output, plain.output), (lse[..., None], plain.lse[..., None])):
        with np.errstate(invalid="ignore"):
            same = (found == expected) | (np.isnan(found) & np.isnan(expected))
            near = same | (abs(found - expected) <= tolerance[..., None])
        assert near.all(axis=-1)[stable].all()
    return float(stable.mean())


def check_bounds(case: Case) -> None:
    """A tile that is proven full or empty is so."""
    bound = problem.bind(*case.arrays, **case.options)
    graph, operands = bound.problem.graph, bound.operands
    tables = ranges.build_all(graph, operands.arrays)
    q_len, kv_len = bound.problem.q_len, bound.problem.kv_len
    h, q0, k0 = np.arange(HEADS)[:, None, None], np.arange(0, q_len, 5)[:, None], np.arange(0, kv_len, 16)
    q1, k1 = np.minimum(q0 + 5, q_len) - 1, np.minimum(k0 + 16, kv_len) - 1
    hidden, shown = bounds.analyse(graph, operands.constants, tables, q0, q1, k0, k1, 0, h)
    indices = {"b": 0, "h": h, "q": np.arange(q_len)[:, None], "kv": np.arange(kv_len)}
    if graph.mask is None:  # that of every pair
        return
    pairs = evaluate(graph, operands.constants, operands.arrays, **indices, dtype=np.float32)[graph.mask]
    pairs = np.broadcast_to(pairs, (HEADS, q_len, kv_len))
    tiles = [
        reduce.reduceat(reduce.reduceat(values, q0[:, 0], axis=1), k0, axis=2)
        for reduce, values in ((np.logical_or, ~pairs), (np.logical_or, pairs))
    ]
    assert (hidden | ~tiles[0]).all()
    assert (shown | ~tiles[1]).all()


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < 4 else pytest.mark.slow) for seed in range(CASES)]
)
def test_random_functions(seed: int) -> None:
    compared = []
    for lengths in LENGTHS:
        case = random_case(seed, lengths)
        check_bounds(case)
        compared.append(compare(case))
    assert sum(compared) > 1, "too few rows can be compared to mean anything"
