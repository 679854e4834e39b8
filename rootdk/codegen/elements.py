"""Elements in memory to accumulators and back: float16 and bfloat16 are storage only, all arithmetic is wider."""

from llvmlite import ir

from rootdk.codegen.builder import BYTE, HALF, I16, I32, Builder
from rootdk.dtypes import BFLOAT16, FLOAT16, DType, Kind

__all__ = ["from_half_bits", "load_elements", "store_elements"]

_STORAGE = {
    "bool": BYTE, "float16": I16, "bfloat16": I16, "float32": ir.FloatType(), "float64": ir.DoubleType(),
}  # fmt: skip


def load_elements(
    b: Builder, dtype: DType, pointer: ir.Value, offset: int | ir.Value = 0, *, lanes: int = 1
) -> ir.Value:
    """``lanes`` consecutive elements as accumulators: a vector, or a scalar for one. A bool is 0 or 1."""
    storage = _STORAGE[dtype.name]
    raw = b.load(storage if lanes == 1 else ir.VectorType(storage, lanes), pointer, offset)
    if dtype.kind is Kind.BOOL:
        return b.ir.uitofp(b.ir.icmp_unsigned("!=", raw, _constant(raw, 0)), _like(raw, b.real))
    if dtype is BFLOAT16:
        raw = from_bfloat_bits(b, raw)
    elif dtype is FLOAT16:
        raw = from_half_bits(b, raw)
    return _as_accumulator(b, raw)


def store_elements(b: Builder, dtype: DType, value: ir.Value, pointer: ir.Value, offset: int | ir.Value = 0) -> None:
    """Accumulators, one or a vector, rounded to nearest even into memory."""
    if dtype is BFLOAT16:
        value = _to_bfloat_bits(b, value)
    elif dtype is FLOAT16:
        value = _to_half_bits(b, value)
    b.store(value, pointer, offset)


def _like(value: ir.Value, kind: ir.Type) -> ir.Type:
    return ir.VectorType(kind, value.type.count) if isinstance(value.type, ir.VectorType) else kind


def _constant(value: ir.Value, number: float) -> ir.Constant:
    """``number`` in every lane of a constant shaped as ``value``."""
    if isinstance(value.type, ir.VectorType):
        return ir.Constant(value.type, [number] * value.type.count)
    return ir.Constant(value.type, number)


def _as_accumulator(b: Builder, value: ir.Value) -> ir.Value:
    kind = _like(value, b.real)
    if value.type == kind:
        return value
    return b.ir.fpext(value, kind) if b.size == 8 else b.ir.fptrunc(value, kind)


def from_bfloat_bits(b: Builder, bits: ir.Value) -> ir.Value:
    """bfloat16 is the upper half of a float32."""
    wide = b.ir.zext(bits, _like(bits, I32))
    return b.ir.bitcast(b.ir.shl(wide, _constant(wide, 16)), _like(bits, ir.FloatType()))


def _to_bfloat_bits(b: Builder, value: ir.Value) -> ir.Value:
    bits = b.ir.bitcast(value, _like(value, I32))
    upper = b.ir.lshr(bits, _constant(bits, 16))
    # half of the dropped part, and one more where the kept part is odd: ties go to even
    bias = b.ir.add(b.ir.and_(upper, _constant(bits, 1)), _constant(bits, 0x7FFF))
    rounded = b.ir.lshr(b.ir.add(bits, bias), _constant(bits, 16))
    quiet = b.ir.or_(upper, _constant(bits, 0x40))  # the carry could turn a NaN's payload into infinity
    chosen = b.ir.select(b.ir.fcmp_unordered("uno", value, value), quiet, rounded)
    return b.ir.trunc(chosen, _like(value, I16))


def from_half_bits(b: Builder, bits: ir.Value) -> ir.Value:
    """float16 bits as float32, denormals, infinities and NaN included."""
    if b.target.converts_half:
        return b.ir.fpext(b.ir.bitcast(bits, _like(bits, HALF)), _like(bits, ir.FloatType()))
    # Baseline x86-64 has no conversion, and LLVM would call a library routine that may not be there. Exponent and
    # mantissa moved into float32's places are the value times 2^-112; the product restores it, denormals too.
    wide = b.ir.zext(bits, _like(bits, I32))
    magnitude = b.ir.shl(b.ir.and_(wide, _constant(wide, 0x7FFF)), _constant(wide, 13))
    single = _like(bits, ir.FloatType())
    scaled = b.ir.bitcast(magnitude, single)
    scaled = b.ir.bitcast(b.ir.fmul(scaled, _constant(scaled, 2.0**112)), wide.type)
    special = b.ir.icmp_unsigned(">=", magnitude, _constant(wide, 0x7C00 << 13))
    finite = b.ir.select(special, b.ir.or_(magnitude, _constant(wide, 0x7F800000)), scaled)
    sign = b.ir.shl(b.ir.and_(wide, _constant(wide, 0x8000)), _constant(wide, 16))
    return b.ir.bitcast(b.ir.or_(finite, sign), single)


def _to_half_bits(b: Builder, value: ir.Value) -> ir.Value:
    if b.target.converts_half:
        return b.ir.bitcast(b.ir.fptrunc(value, _like(value, HALF)), _like(value, I16))
    bits = b.ir.bitcast(value, _like(value, I32))
    magnitude = b.ir.and_(bits, _constant(bits, 0x7FFFFFFF))
    # normal results: rebias the exponent by -112 and round the 13 dropped bits to nearest even
    odd = b.ir.and_(b.ir.lshr(magnitude, _constant(bits, 13)), _constant(bits, 1))
    rebias = (0xFFF - (112 << 23)) & 0xFFFFFFFF
    normal = b.ir.lshr(b.ir.add(b.ir.add(magnitude, odd), _constant(bits, rebias)), _constant(bits, 13))
    # denormal results: adding 0.5 aligns the mantissa, and the adder rounds it
    real = b.ir.bitcast(magnitude, value.type)
    aligned = b.ir.bitcast(b.ir.fadd(real, _constant(real, 0.5)), bits.type)
    denormal = b.ir.sub(aligned, _constant(bits, 0x3F000000))
    result = b.ir.select(b.ir.icmp_unsigned("<", magnitude, _constant(bits, 113 << 23)), denormal, normal)
    # 65520 and above round to infinity; NaN stays NaN
    result = b.ir.select(
        b.ir.icmp_unsigned(">=", magnitude, _constant(bits, 0x477FF000)), _constant(bits, 0x7C00), result
    )
    nan = b.ir.icmp_unsigned(">", magnitude, _constant(bits, 0x7F800000))
    result = b.ir.select(nan, _constant(bits, 0x7E00), result)
    sign = b.ir.and_(b.ir.lshr(bits, _constant(bits, 16)), _constant(bits, 0x8000))
    return b.ir.trunc(b.ir.or_(result, sign), _like(value, I16))
