"""The interval analysis inside kernels: bit for bit what NumPy's says."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from expressions import Draft, random_draft
from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.lower_bounds import classify
from rootdk.dtypes import FLOAT32, FLOAT64, DType, Kind
from rootdk.errors import ArgumentError
from rootdk.machine import PRESETS, Target, choose, host_features
from rootdk.mods import bounds, ranges
from rootdk.mods.expr import Graph
from rootdk.runtime.compiler import compile_object, load

ENDS = ("b", "h", "q", "kv")


def runnable(name: str) -> bool:
    try:
        choose(name, "x86_64", host_features())
    except ArgumentError:
        return False
    return True


TARGETS = [target for name, target in PRESETS.items() if runnable(name)]


def classifier(graph: Graph, target: Target, accumulator: DType) -> str:
    """A kernel over tiles: words are tiles' ends [count, 8], results [count, 2], constants, tables, count."""
    module = ir.Module()
    module.triple = target.triple
    b = Builder.define(module, "kernel", [POINTER], (target, accumulator), export=True)
    tiles, results, constants, tables = (b.load(POINTER, b.function.args[0], 8 * i) for i in range(4))
    with b.loop(0, b.load(I64, b.function.args[0], 32)) as i:
        at = b.mul(i, 64)
        ends = [b.load(I64, b.at(tiles, at), 8 * j) for j in range(8)]
        intervals = {name: (ends[2 * j], ends[2 * j + 1]) for j, name in enumerate(ENDS)}
        found = classify(b, graph, intervals, constants, tables)
        for j, bit in enumerate(found):
            b.store(b.ir.zext(bit, I64), b.at(results, b.mul(i, 16)), 8 * j)
    b.finish()
    return str(module)


def run(
    graph: Graph, draft: Draft, tiles: np.ndarray, target: Target = TARGETS[0], accumulator: DType = FLOAT32
) -> np.ndarray:
    """[count, 2]: whether each tile can be hidden, can be visible; ``tiles`` are [count, 8]."""
    tables = ranges.build_all(graph, draft.arrays)
    constants = np.array(
        [
            np.array(value, np.float64 if kind is Kind.FLOAT else np.int64).view(np.int64)
            for value, kind in zip(draft.constants, draft.kinds, strict=True)
        ],
        np.int64,
    )
    pointers = np.array([table.ctypes.data for table in tables], np.int64)
    results = np.empty((len(tiles), 2), np.int64)
    words = np.array([a.ctypes.data for a in (tiles, results, constants, pointers)] + [len(tiles)], np.int64)
    kernel = load(compile_object(classifier(graph, target, accumulator), target, ["kernel"]), ["kernel"], target)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernel["kernel"])(words.ctypes.data)
    return results.astype(bool)


def expected(graph: Graph, draft: Draft, tiles: np.ndarray, accumulator: DType = FLOAT32) -> np.ndarray:
    tables = ranges.build_all(graph, draft.arrays)
    b, _, h, _, q0, q1, k0, k1 = tiles.T
    found = bounds.analyse(graph, draft.constants, tables, q0, q1, k0, k1, b, h, accumulator)
    return np.stack(found, axis=1)


def random_tiles(rng: np.random.Generator, count: int, q_len: int = 60, kv_len: int = 60) -> np.ndarray:
    b, h = rng.integers(0, 4, (2, count))
    q0, k0 = rng.integers(0, q_len, count), rng.integers(0, kv_len, count)
    q1, k1 = q0 + rng.integers(0, 24, count), k0 + rng.integers(0, 24, count)
    return np.ascontiguousarray(np.stack([b, b, h, h, q0, q1, k0, k1], axis=1), np.int64)


@pytest.mark.parametrize("accumulator", [FLOAT32, FLOAT64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("seed", range(12))
def test_random_masks_agree_with_numpy(seed: int, accumulator: DType) -> None:
    rng = np.random.default_rng(seed)
    draft = random_draft(rng, 50)
    tiles = random_tiles(rng, 200)
    bools = [number for number, node in enumerate(draft.builder.nodes) if node.kind is Kind.BOOL]
    for mask in bools[-3:]:
        graph = replace(draft.graph(), mask=mask)
        np.testing.assert_array_equal(
            run(graph, draft, tiles, accumulator=accumulator), expected(graph, draft, tiles, accumulator)
        )


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_integer_and_table_masks_on_every_target(target: Target) -> None:
    draft = Draft()
    _b, _h, q, kv = draft.indices()
    ids = draft.array(np.sort(np.random.default_rng(0).integers(0, 5, 90)))
    half = draft.node("floor", draft.node("to_float", q) / 2.0)
    mask = (kv <= q) & (q - kv < 20) & ids[q].same(ids[kv]) & (half < 40.0)
    graph = draft.graph(mask=mask)
    tiles = random_tiles(np.random.default_rng(1), 400)
    found = run(graph, draft, tiles, target)
    np.testing.assert_array_equal(found, expected(graph, draft, tiles))
    assert 0 < found[:, 1].mean() < 1


def test_no_mask_is_all_visible() -> None:
    tiles = random_tiles(np.random.default_rng(0), 3)
    np.testing.assert_array_equal(run(Graph(), Draft(), tiles), [[False, True]] * 3)
