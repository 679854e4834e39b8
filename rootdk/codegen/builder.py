"""A small language over llvmlite's IRBuilder: vectors of lanes, byte-addressed memory, counted loops, mutable slots.

Kernel sources are meant to read like the algorithm, so they write accumulators as slots (stack variables) and leave it
to LLVM's mem2reg to make registers of them. Addresses are byte offsets throughout: NumPy strides are bytes, and may be
no multiple of the element size. Element loads and stores assume no alignment unless told: x86 and ARM charge nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from llvmlite import ir

from rootdk.dtypes import FLOAT64, DType
from rootdk.machine import Target

__all__ = ["BYTE", "HALF", "I1", "I16", "I32", "I64", "POINTER", "Builder", "Slot"]

I1, BYTE, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
HALF = ir.HalfType()
POINTER = ir.PointerType()

Scalar: TypeAlias = int | ir.Value
"""A 64-bit integer: known now (int) or at run time."""


class _Splat(ir.Constant):  # type: ignore[misc]  # llvmlite has no types
    """A constant in every lane, in a tenth of the text that its lanes would take: to write and to parse."""

    def __init__(self, vector: ir.VectorType, value: ir.Constant) -> None:
        super().__init__(vector, ir.Undefined)
        self._value = value

    def _get_reference(self) -> str:
        return f"splat ({self._value})"


class Slot:
    """A mutable variable of a kernel; ``value`` reads and writes it."""

    def __init__(self, builder: "Builder", initial: ir.Value) -> None:
        self._ir = builder.ir
        with builder.ir.goto_entry_block():
            self._where = builder.ir.alloca(initial.type)
        self.value = initial

    @property
    def value(self) -> ir.Value:
        return self._ir.load(self._where, typ=self._where.allocated_type)

    @value.setter
    def value(self, new: ir.Value) -> None:
        self._ir.store(new, self._where)


class Builder:
    """Emits one function; lanes are as many accumulators as one register of the target holds."""

    def __init__(self, function: ir.Function, target: Target, accumulator: DType) -> None:
        self.function = function
        self.target = target
        self.accumulator = accumulator
        self.ir = ir.IRBuilder(function.append_basic_block("entry"))
        self.real = ir.DoubleType() if accumulator is FLOAT64 else ir.FloatType()
        self.bits = I64 if accumulator is FLOAT64 else I32
        """The integer type as wide as ``real``: bit tricks on floats, and lane-wise narrow indices."""
        self.size = accumulator.size
        self.lanes = target.lanes(accumulator.size)
        self.vector = ir.VectorType(self.real, self.lanes)

    @classmethod
    def define(
        cls,
        module: ir.Module,
        name: str,
        arguments: Sequence[ir.Type],
        like: "Builder | tuple[Target, DType]",
        *,
        returns: ir.Type | None = None,
        export: bool = False,
    ) -> "Builder":
        """A builder on a new function of ``module``; private to the module unless exported."""
        function = cls.declare(module, name, arguments, returns)
        if not export:
            function.linkage = "internal"
            # One copy of each tile routine: inlining every use multiplied compile time and gained nothing.
            function.attributes.add("noinline")
        target, accumulator = (like.target, like.accumulator) if isinstance(like, Builder) else like
        return cls(function, target, accumulator)

    @staticmethod
    def declare(
        module: ir.Module, name: str, arguments: Sequence[ir.Type], returns: ir.Type | None = None
    ) -> ir.Function:
        """A function of another module, or of this one if it gets a body."""
        function = ir.Function(module, ir.FunctionType(returns or ir.VoidType(), list(arguments)), name)
        function.attributes.add("nounwind")
        return function

    # Constants -------------------------------------------------------------------------------------------------

    def index(self, value: Scalar) -> ir.Value:
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def scalar(self, value: float) -> ir.Constant:
        return ir.Constant(self.real, float(value))

    def splat(self, value: float | ir.Value, lanes: int | None = None) -> ir.Value:
        """``value`` in every lane, of which there are ``self.lanes`` unless given; a vector stays as it is."""
        if isinstance(value, int | float):
            value = self.scalar(value)
        if isinstance(value.type, ir.VectorType):
            return value
        lanes = lanes or self.lanes
        vector = ir.VectorType(value.type, lanes)
        if isinstance(value, ir.Constant):
            return _Splat(vector, value)
        one = self.ir.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
        return self.ir.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, lanes), None))  # the first lane

    def lane_numbers(self, integer: ir.IntType = I64) -> ir.Constant:
        return ir.Constant(ir.VectorType(integer, self.lanes), list(range(self.lanes)))

    # 64-bit arithmetic that folds what is known now --------------------------------------------------------------

    def add(self, a: Scalar, b: Scalar) -> Scalar:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 if isinstance(a, int) else False:
            return b
        if b == 0 if isinstance(b, int) else False:
            return a
        return self.ir.add(self.index(a), self.index(b), flags=("nsw",))

    def mul(self, a: Scalar, b: Scalar) -> Scalar:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return self.ir.mul(self.index(a), self.index(b), flags=("nsw",))

    def sub(self, a: Scalar, b: Scalar) -> Scalar:
        return self.ir.sub(self.index(a), self.index(b), flags=("nsw",))

    def less(self, a: Scalar, b: Scalar) -> ir.Value:
        return self.ir.icmp_signed("<", self.index(a), self.index(b))

    def lower_of(self, a: Scalar, b: Scalar) -> ir.Value:
        return self.ir.select(self.less(a, b), self.index(a), self.index(b))

    def higher_of(self, a: Scalar, b: Scalar) -> ir.Value:
        return self.ir.select(self.less(a, b), self.index(b), self.index(a))

    def round_down(self, a: Scalar, step: int) -> Scalar:
        """``a`` >= 0 rounded down to a multiple of ``step``."""
        if isinstance(a, int):
            return a // step * step
        return self.mul(self.ir.udiv(a, self.index(step)), step)

    def round_up(self, a: Scalar, step: int) -> Scalar:
        return self.round_down(self.add(a, step - 1), step)

    # Memory ----------------------------------------------------------------------------------------------------

    def at(self, pointer: ir.Value, offset: Scalar) -> ir.Value:
        """``pointer`` moved by ``offset`` bytes."""
        if isinstance(offset, int) and offset == 0:
            return pointer
        return self.ir.gep(pointer, [self.index(offset)], source_etype=BYTE)

    def load(self, kind: ir.Type, pointer: ir.Value, offset: Scalar = 0, align: int = 1) -> ir.Value:
        return self.ir.load(self.at(pointer, offset), align=align, typ=kind)

    def store(self, value: ir.Value, pointer: ir.Value, offset: Scalar = 0, align: int = 1) -> None:
        self.ir.store(value, self.at(pointer, offset), align=align)

    def load_lanes(self, pointer: ir.Value, offset: Scalar = 0) -> ir.Value:
        """One vector from scratch memory, which is aligned to whole vectors."""
        return self.load(self.vector, pointer, offset, self.size * self.lanes)

    def store_lanes(self, value: ir.Value, pointer: ir.Value, offset: Scalar = 0) -> None:
        self.store(value, pointer, offset, self.size * self.lanes)

    def prefetch(self, pointer: ir.Value, offset: Scalar = 0) -> None:
        """Ask for a cache line; one outside every array is no fault, and nothing is read."""
        hints = [ir.Constant(I32, hint) for hint in (0, 3, 1)]  # to read, keep close, data
        self.intrinsic("llvm.prefetch.p0", ir.VoidType(), [self.at(pointer, offset), *hints])

    # Vector arithmetic -------------------------------------------------------------------------------------------

    def intrinsic(self, name: str, result: ir.Type, arguments: Sequence[ir.Value]) -> ir.Value:
        """A call of ``llvm.<name>``, overloaded on the result's type."""
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        function = self.function.module.globals.get(name) or ir.Function(self.function.module, function_type, name)
        return self.ir.call(function, arguments)

    def suffix(self, kind: ir.Type) -> str:
        """The type as intrinsic names spell it, v8f32 for <8 x float>."""
        if isinstance(kind, ir.VectorType):
            return f"v{kind.count}{self.suffix(kind.element)}"
        return {"float": "f32", "double": "f64", "half": "f16"}.get(str(kind), str(kind))

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, fused where the target can (llvm.fma would call libm where it can't)."""
        return self.intrinsic(f"llvm.fmuladd.{self.suffix(a.type)}", a.type, [a, b, c])

    def narrowed(self, value: ir.Value) -> ir.Value:
        """A float64 as accumulator."""
        return value if value.type == self.real else self.ir.fptrunc(value, self.real)

    def maximum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The larger; ``b`` where either is NaN, so a NaN in ``b`` survives and one in ``a`` is passed over.

        The form that x86 folds into one vmaxps, whose operand order this is.
        """
        return self.ir.select(self.ir.fcmp_ordered(">", a, b), a, b)

    def any(self, condition: ir.Value) -> ir.Value:
        """True where any lane of an i1 vector is."""
        mask = ir.IntType(self.lanes)
        return self.ir.icmp_unsigned("!=", self.ir.bitcast(condition, mask), ir.Constant(mask, 0))

    # Control flow ------------------------------------------------------------------------------------------------

    def slot(self, initial: ir.Value) -> Slot:
        return Slot(self, initial)

    @contextmanager
    def loop(self, start: Scalar, stop: Scalar, step: Scalar = 1) -> Iterator[ir.Value]:
        """Counts from ``start`` while below ``stop``; ``step`` > 0. The body must not leave early."""
        b, entry = self.ir, self.ir.block
        head = self.function.append_basic_block("loop")
        done = self.function.append_basic_block("done")
        b.cbranch(self.less(start, stop), head, done)
        b.position_at_end(head)
        counter = b.phi(I64)
        counter.add_incoming(self.index(start), entry)
        yield counter
        following = b.add(counter, self.index(step), flags=("nsw",))
        counter.add_incoming(following, b.block)
        b.cbranch(self.less(following, stop), head, done)
        b.position_at_end(done)

    @contextmanager
    def when(self, condition: ir.Value, likely: bool | None = None) -> Iterator[None]:
        with self.ir.if_then(condition, likely=likely):
            yield

    def choose(self, condition: ir.Value, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        with self.ir.if_else(condition) as (yes, no):
            with yes:
                then()
            with no:
                otherwise()

    def by_number(self, number: ir.Value, bodies: Sequence[Callable[[], object]]) -> None:
        """Emits all ``bodies``, of which the first runs where ``number`` is 1, the second where it is 2, ..."""
        self.switch(number, dict(enumerate(bodies, start=1)))

    def call_by_number(self, number: Scalar, functions: Sequence[ir.Function], arguments: Sequence[ir.Value]) -> None:
        """Call the first function where ``number`` is 1, the second where it is 2, ..."""
        if isinstance(number, int):
            self.ir.call(functions[number - 1], arguments)
        else:
            self.by_number(number, [partial(self.ir.call, function, arguments) for function in functions])

    def switch(self, number: ir.Value, cases: Mapping[int, Callable[[], object]]) -> None:
        """Emits the bodies of all ``cases``, of which that of ``number`` runs, or none."""
        after = self.function.append_basic_block("after")
        switch = self.ir.switch(number, after)
        for case, body in cases.items():
            block = self.function.append_basic_block(f"case_{case}")
            switch.add_case(self.index(case), block)
            self.ir.position_at_end(block)
            body()
            self.ir.branch(after)
        self.ir.position_at_end(after)

    def finish(self) -> ir.Function:
        self.ir.ret_void()
        return self.function
