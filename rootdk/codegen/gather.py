"""Elements of captured arrays by computed index: never outside the array, and a visible index out of range is recorded.

An index that is the same in all lanes is one load. Others are loaded one by one: on Zen a hardware gather is slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from rootdk.codegen.builder import I1, I32, I64, POINTER, Builder
from rootdk.codegen.elements import from_bfloat_bits, from_half_bits
from rootdk.codegen.integer_math import element, number
from rootdk.codegen.reals import shaped
from rootdk.dtypes import BFLOAT16, FLOAT16, DType, Kind
from rootdk.mods.expr import ArraySpec

__all__ = ["FAULT_WORDS", "Miss", "gather", "record", "table_offset"]

FAULT_WORDS = 5
"""int64 words of a fault record: 1 once it is written, then node, dimension, index and length."""

_WORD = 8


@dataclass(frozen=True)
class Miss:
    """Lanes whose index along one dimension is out of range."""

    dimension: int
    outside: ir.Value
    """i1, or a vector of it where the index is one."""
    index: ir.Value
    length: ir.Value


def table_offset(arrays: Sequence[ArraySpec], slot: int) -> int:
    """Where the array table describes ``slot``, in bytes: an address, then the shape, then the strides in bytes."""
    return _WORD * sum(1 + 2 * array.rank for array in arrays[:slot])


def gather(
    builder: Builder, array: ArraySpec, table: ir.Value, indices: Sequence[ir.Value], lane: ir.IntType,
    *, proven: bool, consecutive: ir.Value | None = None,
) -> tuple[ir.Value, list[Miss]]:  # fmt: skip
    """``array[indices]`` as bool, int or accumulator, and where it missed: there it is another element, or 0.

    ``table`` points at the array's words. Each index is a scalar or a vector of ``lane`` integers, and so is an integer
    result. ``proven`` tells that every index is in range; ``consecutive`` when the one index that varies by lane counts
    up by one from lane to lane, so that a vector can be read at once where the array's elements are adjacent.
    """
    i = builder.ir
    base, *sizes = [_word(builder, table, number) for number in range(1 + 2 * array.rank)]
    lengths, strides = sizes[: array.rank], sizes[array.rank :]
    base = i.inttoptr(base, POINTER)
    misses: list[Miss] = []
    if proven:
        inside = [_from_start(builder, index, length)[0] for index, length in zip(indices, lengths, strict=True)]
    else:
        if array.rank:
            empty = _any_empty(builder, lengths)
            base = i.select(empty, _zeros(builder), base)
            strides = [i.select(empty, builder.index(0), stride) for stride in strides]
        inside = []
        for dimension, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            from_start, limit = _from_start(builder, index, length)
            outside = i.icmp_unsigned(">=", from_start, limit)
            misses.append(Miss(dimension, outside, index, length))
            inside.append(i.select(outside, number(0, index), from_start))
    raw = _load(builder, _storage(array.dtype), base, inside, strides, consecutive if proven else None)
    return _widened(builder, array.dtype, raw, lane if isinstance(raw.type, ir.VectorType) else I64), misses


def _word(builder: Builder, table: ir.Value, number: int) -> ir.Value:
    return _read(builder, I64, builder.at(table, _WORD * number))


def _read(builder: Builder, kind: ir.Type, address: ir.Value) -> ir.Value:
    """A load of what no kernel writes: LLVM may keep it across stores, hence move it out of loops."""
    loaded = builder.load(kind, address)
    loaded.set_metadata("invariant.load", builder.function.module.add_metadata([]))
    return loaded


def _any_empty(builder: Builder, lengths: Sequence[ir.Value]) -> ir.Value:
    empty = ir.Constant(I1, 0)
    for length in lengths:
        empty = builder.ir.or_(empty, builder.ir.icmp_signed("==", length, builder.index(0)))
    return empty


def _zeros(builder: Builder) -> ir.Value:
    """Eight bytes of 0, to read instead of an array that has no element."""
    module = builder.function.module
    found = module.globals.get("zeros")
    if found is None:
        found = ir.GlobalVariable(module, I64, "zeros")
        found.linkage, found.global_constant, found.initializer = "internal", True, ir.Constant(I64, 0)
    return found


def _from_start(builder: Builder, index: ir.Value, length: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``index`` counted from the start, and ``length`` in the shape of ``index``."""
    i = builder.ir
    if isinstance(index.type, ir.VectorType):
        length = builder.splat(i.trunc(length, I32) if index.type.element == I32 else length)
    return i.select(i.icmp_signed("<", index, number(0, index)), i.add(index, length), index), length


# Faults --------------------------------------------------------------------------------------------------------------


def record(builder: Builder, fault: ir.Value, node: int, miss: Miss, visible: ir.Value | None) -> None:
    """Write to ``fault`` the first miss of gather ``node`` in a visible lane (None: all are), if there is one."""
    i = builder.ir
    index, hit = miss.index, _shown(builder, miss.outside, visible)
    with builder.when(builder.any(hit) if isinstance(hit.type, ir.VectorType) else hit, likely=False):
        if isinstance(index.type, ir.VectorType):
            lane = i.cttz(i.bitcast(hit, ir.IntType(builder.lanes)), ir.Constant(I1, 0))
            index = i.extract_element(index, i.zext(lane, I32))
            index = i.sext(index, I64) if index.type != I64 else index
        i.call(_recorder(builder), [fault, builder.index(node), builder.index(miss.dimension), index, miss.length])


def _shown(builder: Builder, outside: ir.Value, visible: ir.Value | None) -> ir.Value:
    """Where ``outside`` is in a visible lane; a scalar if it is one."""
    if visible is None:
        return outside
    if not isinstance(outside.type, ir.VectorType) and isinstance(visible.type, ir.VectorType):
        visible = builder.any(visible)
    elif isinstance(outside.type, ir.VectorType):
        visible = builder.splat(visible)
    return builder.ir.and_(outside, visible)


def _recorder(builder: Builder) -> ir.Function:
    """The module's function that writes a fault record, unless a thread has written it already."""
    module = builder.function.module
    found = module.globals.get("record_fault")
    if found is not None:
        return found
    b = Builder.define(module, "record_fault", [POINTER, *[I64] * (FAULT_WORDS - 1)], builder)
    record, *words = b.function.args
    exchanged = b.ir.cmpxchg(record, b.index(0), b.index(1), "monotonic")
    with b.when(b.ir.extract_value(exchanged, 1)):
        for place, word in enumerate(words, 1):
            b.store(word, record, _WORD * place)
    return b.finish()


# Elements ------------------------------------------------------------------------------------------------------------


def _storage(dtype: DType) -> ir.Type:
    if dtype.kind is Kind.FLOAT and dtype.size > 2:
        return ir.DoubleType() if dtype.size == 8 else ir.FloatType()
    return ir.IntType(8 * dtype.size)


def _load(
    builder: Builder, kind: ir.Type, base: ir.Value, indices: Sequence[ir.Value], strides: Sequence[ir.Value],
    consecutive: ir.Value | None,
) -> ir.Value:  # fmt: skip
    """The raw element, or a vector of them where any index is one; addresses have 64 bits whatever the indices have."""
    i = builder.ir
    varying = [pair for pair in zip(indices, strides, strict=True) if isinstance(pair[0].type, ir.VectorType)]
    for index, stride in zip(indices, strides, strict=True):
        if not isinstance(index.type, ir.VectorType):
            base = builder.at(base, i.mul(index, stride))
    if not varying:
        return builder.load(kind, base)
    vector = ir.VectorType(kind, builder.lanes)
    if consecutive is None or len(varying) > 1:
        return _load_each(builder, vector, base, varying)
    (index, stride), size = varying[0], kind.width // 8 if isinstance(kind, ir.IntType) else _SIZES[kind]
    found = builder.slot(ir.Constant(vector, ir.Undefined))

    def at_once() -> None:
        first = i.extract_element(index, ir.Constant(I32, 0))
        found.value = builder.load(vector, base, i.mul(i.sext(first, I64) if first.type != I64 else first, stride))

    def one_by_one() -> None:
        found.value = _load_each(builder, vector, base, varying)

    adjacent = i.icmp_signed("==", stride, builder.index(size))
    builder.choose(i.and_(consecutive, adjacent), at_once, one_by_one)
    return found.value


_SIZES = {ir.FloatType(): 4, ir.DoubleType(): 8}


def _load_each(
    builder: Builder, vector: ir.VectorType, base: ir.Value, varying: Sequence[tuple[ir.Value, ir.Value]]
) -> ir.Value:
    i = builder.ir
    elements = ir.Constant(vector, ir.Undefined)
    for lane in range(builder.lanes):
        place, address = ir.Constant(I32, lane), base
        for index, stride in varying:
            single = i.extract_element(index, place)
            address = builder.at(address, i.mul(i.sext(single, I64) if single.type != I64 else single, stride))
        elements = i.insert_element(elements, builder.load(vector.element, address), place)
    return elements


def _widened(builder: Builder, dtype: DType, raw: ir.Value, integer: ir.IntType) -> ir.Value:
    """An element as what it is inside a mod."""
    i = builder.ir
    if dtype.kind is Kind.BOOL:
        return i.icmp_unsigned("!=", raw, number(0, raw))
    if dtype.kind is Kind.INT:
        wide = shaped(integer, raw.type)
        if element(raw.type).width > integer.width:
            return i.trunc(raw, wide)
        if element(raw.type).width == integer.width:
            return raw
        return i.zext(raw, wide) if dtype.name.startswith("u") else i.sext(raw, wide)
    if dtype is FLOAT16:
        raw = from_half_bits(builder, raw)
    elif dtype is BFLOAT16:
        raw = from_bfloat_bits(builder, raw)
    real = shaped(builder.real, raw.type)
    if raw.type == real:
        return raw
    return i.fptrunc(raw, real) if element(raw.type) == ir.DoubleType() else i.fpext(raw, real)
