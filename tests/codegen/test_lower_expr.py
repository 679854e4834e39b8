"""The machine code of every operation against its NumPy meaning, each node on the compiled values of its arguments.

Node by node, because an error within rounding in one would be anything after a comparison or a cast in the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from expressions import Draft, random_draft
from llvmlite import ir
from small_kernels import TARGETS, call

from rootdk.codegen.builder import I32, I64, POINTER, Builder
from rootdk.codegen.gather import FAULT_WORDS
from rootdk.codegen.integer_math import element
from rootdk.codegen.lower_expr import LOWER, Environment, lower
from rootdk.dtypes import BFLOAT16_BITS, FLOAT32, FLOAT64, DType, Kind
from rootdk.machine import PRESETS, Target
from rootdk.mods.evaluate import NUMPY, evaluate
from rootdk.mods.expr import INDICES, OPS, Graph
from rootdk.runtime.compiler import assembly


@dataclass(frozen=True)
class Shape:
    """How a graph is compiled: for which target, with what in the lanes."""

    target: Target
    accumulator: DType = FLOAT32
    narrow: bool = False
    varying: str | None = "q"
    """The index that differs by lane; None compiles scalar code."""
    proven: frozenset[int] = frozenset()

    @property
    def lanes(self) -> int:
        return self.target.lanes(self.accumulator.size)


def module(graph: Graph, shape: Shape, visible: bool = False) -> str:
    """A kernel that stores every node, a row of 8 bytes a lane each; words are what ``run`` passes."""
    text = ir.Module()
    text.triple = shape.target.triple
    b = Builder.define(text, "kernel", [POINTER], (shape.target, shape.accumulator), export=True)
    argument = b.function.args[0]
    constants, arrays, fault, score, index, out, shown = (b.load(POINTER, argument, 8 * i) for i in range(4, 11))
    leaves = {name: b.load(I64, argument, 8 * i) for i, name in enumerate(INDICES)}
    kind = I32 if shape.narrow else I64
    leaves["score"] = b.load(b.real if shape.varying is None else b.vector, score)
    if shape.varying:
        wide = b.load(ir.VectorType(I64, b.lanes), index)
        leaves[shape.varying] = b.ir.trunc(wide, ir.VectorType(I32, b.lanes)) if shape.narrow else wide
    seen = None
    if visible:
        bits = b.load(ir.VectorType(I64, b.lanes), shown)
        seen = b.ir.icmp_unsigned("!=", bits, ir.Constant(bits.type, [0] * b.lanes))
    environment = Environment(leaves, constants, arrays, kind, seen, fault, shape.proven)
    for place, value in enumerate(lower(b, graph, range(len(graph.nodes)), environment)):
        value = b.splat(value)
        if isinstance(element(value.type), ir.IntType) and element(value.type) != I64:
            extend = b.ir.zext if element(value.type).width == 1 else b.ir.sext
            value = extend(value, ir.VectorType(I64, b.lanes))
        b.store(value, out, 8 * b.lanes * place)
    b.finish()
    return str(text)


@dataclass
class Result:
    nodes: list[np.ndarray]
    """The value of each node in each lane."""
    fault: list[int]


def slots(values: Sequence[float], kinds: Sequence[Kind]) -> np.ndarray:
    return np.array(
        [
            np.array(value, np.float64 if kind is Kind.FLOAT else np.int64).view(np.int64)
            for value, kind in zip(values, kinds, strict=True)
        ],
        np.int64,
    )


def run(
    graph: Graph, draft: Draft, shape: Shape, indices: dict[str, np.ndarray], score: np.ndarray,
    visible: np.ndarray | None = None,
) -> Result:  # fmt: skip
    """Compile and call; ``indices`` and ``score`` have a value for each lane."""
    lanes, real = shape.lanes, np.float64 if shape.accumulator is FLOAT64 else np.float32
    constants = slots(draft.constants, draft.kinds)
    table = np.array([word for a in draft.arrays for word in (a.ctypes.data, *a.shape, *a.strides)] or [0], np.int64)
    fault = np.zeros(FAULT_WORDS, np.int64)
    lane_index = np.ascontiguousarray(indices[shape.varying or "q"], np.int64)
    shown = np.ones(lanes, np.int64) if visible is None else visible.astype(np.int64)
    score = score.astype(real)
    out = np.zeros((len(graph.nodes), lanes), np.int64)
    buffers = [constants, table, fault, score, lane_index, out, shown]
    words = [int(indices[name][0]) for name in INDICES] + [buffer.ctypes.data for buffer in buffers]
    call(module(graph, shape, visible is not None), shape.target, *words)
    nodes = []
    for row, node in zip(out, graph.nodes, strict=True):
        if node.kind is Kind.FLOAT:
            nodes.append(row.view(real)[:lanes])
        else:
            nodes.append(row != 0 if node.kind is Kind.BOOL else row)
    return Result(nodes, fault.tolist())


# What rounding may do, in units of the last place of the result; the others are exact.
ULP = {
    "power": 3, "sin": 3, "cos": 3, "tanh": 4, "erf": 4, "sigmoid": 4, "exp": 3, "exp2": 3, "expm1": 4, "log": 3,
    "log2": 3, "log1p": 3,
}  # fmt: skip
LARGEST_QUOTIENT = 2.0**23
NARROW_OPS = [op for op in OPS if op not in ("multiply", "shift_left", "to_int")]


def expected(graph: Graph, number: int, arguments: list[np.ndarray]) -> np.ndarray:
    """The node's NumPy value at compiled ``arguments``, with more digits where the result is rounded."""
    op = graph.nodes[number].op
    if op in ULP:
        # erf is Python's, for which a double is enough: the test of vector_math is the sharper one
        wide = np.float64 if op == "erf" else np.longdouble
        arguments = [argument.astype(wide) for argument in arguments]
    with np.errstate(all="ignore"):
        if op == "to_int":
            return arguments[0].astype(np.int64)
        return arguments[0] if op == "to_float" else np.asarray(NUMPY[op](*arguments))


def anything_goes(op: str, arguments: list[np.ndarray]) -> np.ndarray:
    """Where the value of an operation is not promised."""
    x = arguments[0]
    with np.errstate(all="ignore"):
        if op == "to_int" and x.dtype.kind == "f":
            return ~(np.abs(x) < 2**31)
        if op in ("floor_divide", "remainder") and x.dtype.kind == "f":
            return (arguments[1] != 0) & np.isfinite(x) & (np.abs(x / arguments[1]) > LARGEST_QUOTIENT)
    return np.zeros(x.shape, bool)


def check_node(graph: Graph, number: int, nodes: list[np.ndarray]) -> None:
    node, got = graph.nodes[number], nodes[number]
    arguments = [nodes[arg] for arg in node.args]
    want = expected(graph, number, arguments)
    if node.kind is Kind.FLOAT:
        with np.errstate(all="ignore"):
            rounded = want.astype(got.dtype)
            step = np.spacing(np.maximum(np.abs(rounded), np.finfo(got.dtype).tiny)).astype(np.longdouble)
            near = np.abs(got.astype(np.longdouble) - want) <= ULP.get(node.op, 0) * step
        right = (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | near
    else:
        right = got == want
    right |= anything_goes(node.op, arguments)
    assert right.all(), (node, [argument[~right] for argument in arguments], got[~right], want[~right])


def check(draft: Draft, shape: Shape, rng: np.random.Generator) -> None:
    graph = draft.graph()
    lanes = shape.lanes
    indices = {name: np.full(lanes, int(rng.integers(0, 50))) for name in INDICES}
    if shape.varying:
        indices[shape.varying] = np.arange(lanes) + int(rng.integers(0, 50))
    score = rng.normal(size=lanes) * 10.0 ** rng.integers(-3, 3)
    if shape.varying is None:
        score[:] = score[0]
    truth = evaluate(graph, tuple(draft.constants), tuple(draft.arrays), score=score, **indices)
    assert not shape.narrow or fits(graph, truth.nodes)
    result = run(graph, draft, shape, indices, score)
    for number, node in enumerate(graph.nodes):
        if OPS[node.op].arity == 0:
            continue
        if node.op == "gather":
            array = draft.arrays[node.attr]
            places = [result.nodes[arg] for arg in node.args]
            assert_gathered(array, places, result.nodes[number])
        else:
            check_node(graph, number, result.nodes)


def fits(graph: Graph, values: Sequence[np.ndarray]) -> bool:
    """Whether every integer of a graph has 32 bits."""
    return all(
        np.all(np.abs(value.astype(np.float64)) < 2**31)
        for node, value in zip(graph.nodes, values, strict=True)
        if node.kind is Kind.INT
    ) and not any(node.op == "to_int" for node in graph.nodes)


def assert_gathered(array: np.ndarray, places: list[np.ndarray], got: np.ndarray) -> None:
    """In range, ``got`` is the element."""
    inside = np.ones(got.shape, bool)
    for place, size in zip(places, array.shape, strict=True):
        inside &= (place >= -size) & (place < size)
    elements = array[tuple(place[inside] for place in places)]
    wanted = np.broadcast_to(elements, got[inside].shape).astype(got.dtype)
    assert np.array_equal(got[inside], wanted, equal_nan=got.dtype.kind == "f"), (array, places, got)


SHAPES = [
    pytest.param(Shape(target, accumulator, narrow, varying), id=f"{target.name}-{accumulator.name}-{narrow}-{varying}")
    for target in TARGETS
    for accumulator in (FLOAT32, FLOAT64)
    for narrow in (False, True)
    for varying in ("q", "kv", None)
]


def test_every_operation_has_an_emitter() -> None:
    assert LOWER.keys() == OPS.keys()


@pytest.mark.parametrize("shape", SHAPES)
def test_random_graphs(shape: Shape) -> None:
    rng = np.random.default_rng(7)
    for size in (40, 100):
        check(narrow_draft(rng, size) if shape.narrow else random_draft(rng, size), shape, rng)


def narrow_draft(rng: np.random.Generator, size: int) -> Draft:
    """A draft whose integers stay small."""
    while True:
        draft = random_draft(rng, size, ops=NARROW_OPS)
        kinds = zip(draft.constants, draft.kinds, strict=True)
        draft.constants[:] = [int(np.clip(value, -99, 99)) if kind is Kind.INT else value for value, kind in kinds]
        sample = {name: np.arange(100) for name in INDICES}
        values = evaluate(draft.graph(), tuple(draft.constants), tuple(draft.arrays), score=np.ones(100), **sample)
        if fits(draft.graph(), values.nodes):
            return draft


# Gathers ------------------------------------------------------------------------------------------------------------

TYPES = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
TYPES += [np.dtype(np.bool_), np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)]
EVERY_SHAPE = [
    pytest.param(Shape(target, accumulator, narrow), id=f"{target.name}-{accumulator.name}-{narrow}")
    for target in TARGETS
    for accumulator in (FLOAT32, FLOAT64)
    for narrow in (False, True)
]


def ramp(shape: Shape, start: int = 0) -> dict[str, np.ndarray]:
    indices = {name: np.full(shape.lanes, place) for place, name in enumerate(INDICES)}
    return indices | {"q": np.arange(start, start + shape.lanes)}


def score(shape: Shape) -> np.ndarray:
    return np.zeros(shape.lanes)


def sample_array(dtype: np.dtype, narrow: bool) -> np.ndarray:
    """[40, 6, 5] of any bits, or of integers that fit in 32."""
    bits = np.random.default_rng(3).integers(0, 256, (40, 6, 5, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        return bits[..., 0] % 2 == 1
    data = bits.view(dtype)[..., 0]
    return (data >> 8 * (dtype.itemsize - 3)) if narrow and dtype.kind in "iu" and dtype.itemsize > 3 else data


@pytest.mark.parametrize("shape", EVERY_SHAPE)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_gather_reads_any_type_and_strides(shape: Shape) -> None:
    draft = Draft()
    _, h, q, _ = draft.indices()
    gathered = []
    for dtype in TYPES:
        data = sample_array(dtype, shape.narrow)
        turned = data[:, :, 1].T[:, ::-1]
        views = [data[::2, 1], data[::-1, 2, 3], np.broadcast_to(data[0, 0, 0], (40, 3)), turned, turned]
        indices = [(q, h), (q - 30,), (q, 2), (h, q), (h, 7)]
        gathered += [draft.array(view)[index] for view, index in zip(views, indices, strict=True)]
    result = run(draft.graph(), draft, shape, ramp(shape), score(shape))
    assert result.fault[0] == 0
    for term in gathered:
        node = draft.builder.nodes[term.number]
        assert_gathered(draft.arrays[node.attr], [result.nodes[arg] for arg in node.args], result.nodes[term.number])


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_gather_reads_bfloat16(shape: Shape) -> None:
    bits = np.arange(0, 2**16, 97, np.uint16)
    draft = Draft()
    q = draft.indices()[2]
    draft.arrays.append(bits.view(BFLOAT16_BITS))
    term = draft.node("gather", q, attr=0, kind=Kind.FLOAT)
    got = run(draft.graph(), draft, shape, ramp(shape, 100), score(shape)).nodes[term.number]
    wanted = (bits.astype(np.uint32) << 16).view(np.float32)[100 : 100 + shape.lanes]
    assert np.array_equal(got, wanted.astype(got.dtype), equal_nan=True)


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_index_out_of_range_is_recorded_and_not_read(shape: Shape) -> None:
    draft = Draft()
    q = draft.indices()[2]
    term = draft.array(np.ones(shape.lanes - 1, np.float32))[q]
    result = run(draft.graph(), draft, shape, ramp(shape), score(shape))
    assert result.fault == [1, term.number, 0, shape.lanes - 1, shape.lanes - 1]
    before = run(draft.graph(), draft, shape, ramp(shape, -shape.lanes), score(shape))
    assert before.fault == [1, term.number, 0, -shape.lanes, shape.lanes - 1]


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_only_visible_pairs_fault(shape: Shape) -> None:
    draft = Draft()
    q = draft.indices()[2]
    term = draft.array(np.ones((2, 1), np.float32))[0, q - q + 5]
    visible = np.arange(shape.lanes) < 2
    graph = draft.graph()
    result = run(graph, draft, shape, ramp(shape), score(shape), visible)
    assert result.fault == [1, term.number, 1, 5, 1]
    assert run(graph, draft, shape, ramp(shape), score(shape), visible & False).fault[0] == 0


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_a_mask_hides_the_faults_of_its_own_gathers(shape: Shape) -> None:
    draft = Draft()
    q = draft.indices()[2]
    ids = draft.array(np.array([3, 4]))
    inside = (q < 2) & (ids[q] <= 4)
    assert run(draft.graph(mask=inside), draft, shape, ramp(shape, 1), score(shape)).fault[0] == 0
    shown = (q < 3) & (ids[q] <= 4)
    graph = draft.graph(mask=shown)
    assert run(graph, draft, shape, ramp(shape, 1), score(shape)).fault[3:] == [2, 2]


@pytest.mark.parametrize("varying", ["q", None])
@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_empty_arrays_read_as_zero(shape: Shape, varying: str | None) -> None:
    shape = replace(shape, varying=varying)
    draft = Draft()
    q = draft.indices()[2]
    empty = np.zeros((0, 1 << 40), np.int8)
    terms = [draft.array(empty)[q, q + 1000], draft.array(empty)[0, 1 << 20], draft.array(empty.T)[1 << 20, q]]
    result = run(draft.graph(), draft, shape, ramp(shape), score(shape))
    assert result.fault[0] == 1
    assert all((result.nodes[term.number] == 0).all() for term in terms)


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_proven_gathers_are_not_checked(shape: Shape) -> None:
    draft = Draft()
    q = draft.indices()[2]
    term = draft.array(np.arange(100.0))[q - 50]
    shape = replace(shape, proven=frozenset([term.number]))
    graph = draft.graph()
    assert "record_fault" not in module(graph, shape)
    result = run(graph, draft, shape, ramp(shape), score(shape))
    assert np.array_equal(result.nodes[term.number], 50.0 + np.arange(shape.lanes))


# Code ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("accumulator", [FLOAT32, FLOAT64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("target", PRESETS.values(), ids=lambda target: target.name)
def test_nothing_is_called(target: Target, accumulator: DType, narrow: bool) -> None:
    """The C library may lack it, and its results differ between machines."""
    rng = np.random.default_rng(11)
    for varying in ("q", None):
        draft = random_draft(rng, 300)
        text = assembly(module(draft.graph(), Shape(target, accumulator, narrow, varying)), target)
        calls = {line.split()[-1] for line in text.splitlines() if line.split()[:1] in (["callq"], ["bl"], ["jmpq"])}
        assert calls <= {"record_fault", "reduce_turns"}


def test_uniform_nodes_stay_scalar() -> None:
    draft = Draft()
    b, h, _, kv = draft.indices()
    term = (b * 3 + h) // (kv + 1)
    text = ir.Module()
    builder = Builder.define(text, "kernel", [POINTER] + [I64] * 4, (TARGETS[0], FLOAT32), export=True)
    null, *indices = builder.function.args
    environment = Environment(dict(zip(INDICES, indices, strict=True)), null, null)
    (value,) = lower(builder, draft.graph(), [term.number], environment)
    assert value.type == I64
