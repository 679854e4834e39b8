"""What a user's function receives: a value that differs from pair to pair, and records what is done to it.

``Sym`` is one number of a pair, ``Array`` (arrays.py) several. Python's operators and the protocols of NumPy and torch
all end in ``apply``, which adds one operation of the table to the graph that is being traced.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from rootdk.dtypes import Kind
from rootdk.mods.evaluate import NUMPY
from rootdk.mods.refusals import refuse, refuse_truth

if TYPE_CHECKING:
    from rootdk.mods.trace import Tracer

__all__ = ["Sym", "Symbolic", "apply", "first_symbol"]


def apply(op: str, *operands: Any) -> Any:
    """``op`` of the operation table on symbols, numbers and arrays; a number where all of them are."""
    symbol = first_symbol(operands)
    if symbol is None:
        return NUMPY[op](*operands).item()
    tracer = symbol.tracer
    values = [tracer.operand(operand) for operand in operands]
    for value in values:
        if isinstance(value, Symbolic) and not isinstance(value, Sym):
            return value.elementwise(op, values)
    return Sym(tracer, tracer.emit(op, values))


def first_symbol(operands: Iterable[Any]) -> "Symbolic | None":
    """The first symbol among the arguments of a call, or in a list among them."""
    for operand in operands:
        if isinstance(operand, Symbolic):
            return operand
        if isinstance(operand, list | tuple):
            found = first_symbol(operand)
            if found is not None:
                return found
    return None


def _unary(op: str) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return apply(op, self)

    return method


def _binary(op: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return apply(op, self, other)

    return method


def _reflected(op: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return apply(op, other, self)

    return method


class Symbolic:
    """Python's operators, and the ways in which NumPy and torch hand over a call of one of their functions."""

    __slots__ = ("tracer",)
    tracer: "Tracer"

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __lshift__, __rlshift__ = _binary("shift_left"), _reflected("shift_left")
    __rshift__, __rrshift__ = _binary("shift_right"), _reflected("shift_right")
    __and__, __rand__ = _binary("bit_and"), _reflected("bit_and")
    __or__, __ror__ = _binary("bit_or"), _reflected("bit_or")
    __xor__, __rxor__ = _binary("bit_xor"), _reflected("bit_xor")
    __eq__, __ne__ = _binary("equal"), _binary("not_equal")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _reflected("less"), _reflected("less_equal")
    __neg__, __abs__, __invert__ = _unary("negative"), _unary("absolute"), _unary("bit_not")

    def __pos__(self) -> Any:
        return self

    def __pow__(self, exponent: Any) -> Any:
        return self.tracer.named("power", (self, exponent))

    def __rpow__(self, base: Any) -> Any:
        return self.tracer.named("power", (base, self))

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __matmul__(self, other: Any) -> Any:
        return self.tracer.named("matmul", (self, other))

    def __rmatmul__(self, other: Any) -> Any:
        return self.tracer.named("matmul", (other, self))

    def __round__(self, digits: int | None = None) -> Any:
        if digits:
            raise refuse("round() to decimal digits has no counterpart", "write round(x * 10) / 10")
        return self.tracer.named("round", (self,))

    def __floor__(self) -> Any:
        return self.tracer.named("floor", (self,))

    def __ceil__(self) -> Any:
        return self.tracer.named("ceil", (self,))

    def __trunc__(self) -> Any:
        return self.tracer.named("trunc", (self,))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.tracer.attribute(self, name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _named(function, args, kwargs or {})

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise refuse(f"np.{function.__name__}.{method} cannot be compiled", "write the elements out")
        return _named(function, args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _named(function, args, kwargs)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise refuse("this asks for the values of the traced function as an array", "apply functions to it directly")

    def __jax_array__(self) -> NoReturn:
        raise refuse("a function of JAX that a mod cannot see got a traced value", "use NumPy's of the same name")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise refuse("a mod cannot write into an array", "compute the new value, with where(condition, new, old)")

    def __hash__(self) -> int:
        raise refuse(
            "a traced value cannot be a key of a dict or a member of a set", "look it up in an array: table[index]"
        )

    def __format__(self, spec: str) -> str:
        return repr(self)


def _named(function: Any, args: Any, kwargs: Any) -> Any:
    symbol = first_symbol((*args, *kwargs.values()))
    assert symbol is not None
    return symbol.tracer.function(function, args, kwargs)


class Sym(Symbolic):
    """A number of one pair: a node of the graph. Its shape is (), as in FlexAttention."""

    __slots__ = ("node",)

    def __init__(self, tracer: "Tracer", node: int) -> None:
        self.tracer = tracer
        self.node = node

    @property
    def kind(self) -> Kind:
        return self.tracer.builder.nodes[self.node].kind

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def __repr__(self) -> str:
        return f"<{self.kind.value} of a pair>"

    def __bool__(self) -> bool:
        value = self.tracer.known(self)
        if value is None:
            raise refuse_truth()
        return bool(value)

    def __int__(self) -> int:
        return int(self._number("int()"))

    def __float__(self) -> float:
        return float(self._number("float(), or a function of math,"))

    def __index__(self) -> int:
        if self.kind is Kind.FLOAT:
            raise refuse("a float cannot be an index", "convert it: .long() in torch, .astype(int) in NumPy style")
        value = self.tracer.known(self)
        if value is None:
            self.tracer.refusal = refuse(
                "a list, range() or an array made inside the function got an index that differs for every pair",
                "make the list an array outside the function (np.array, torch.tensor) and index that; loops can run "
                "only over Python values",
            )
            raise self.tracer.refusal
        return int(value)

    def _number(self, call: str) -> Any:
        value = self.tracer.known(self)
        if value is None:
            raise refuse(
                f"{call} needs one number now, but this value differs for every pair of query and key",
                "use the function of that name from torch or numpy, .float() or .long() to convert",
            )
        return value

    def item(self) -> Any:
        return self._number(".item()")

    def tolist(self) -> Any:
        return self._number(".tolist()")

    def __len__(self) -> int:
        raise refuse("this is one number per pair, it has no length", "capture what you loop over as an array")

    def __iter__(self) -> NoReturn:
        raise refuse("this is one number per pair, a loop cannot run over it", "loop over a Python range instead")

    def __getitem__(self, index: Any) -> "Sym":
        items = index if isinstance(index, tuple) else (index,)
        if all(item is None or item is Ellipsis or (isinstance(item, slice) and item == slice(None)) for item in items):
            return self
        raise refuse("this is one number per pair, it cannot be indexed", "index a captured array with it instead")
