"""Runs a user's function once, on symbols, and keeps what it did as a graph."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rootdk import dtypes
from rootdk.dtypes import Kind
from rootdk.errors import DTypeError, ModError, RootdkError
from rootdk.mods.arrays import Array, Element, Index, Written
from rootdk.mods.capture import Capture
from rootdk.mods.evaluate import evaluate
from rootdk.mods.expr import INDICES, Node
from rootdk.mods.foreign import as_ndarray, is_array
from rootdk.mods.promotion import kind_of, rule
from rootdk.mods.refusals import MissingAttributeError, refuse, site
from rootdk.mods.spellings import ATTRIBUTES, FUNCTIONS, HINTS
from rootdk.mods.symbols import Sym, Symbolic
from rootdk.mods.traced import Captured, Recording, Traced, needed

__all__ = ["Sym", "Traced", "Tracer"]


class Tracer:
    """Collects the graph of one call: its score functions and its mask.

    ``heads`` are query heads. The index ``b`` counts the flattened batch.
    """

    def __init__(self, q_len: int, kv_len: int, heads: int = 1, batch_shape: tuple[int, ...] = (1,)) -> None:
        self.q_len = q_len
        self.kv_len = kv_len
        self.heads = heads
        self.batch_shape = batch_shape
        self.recording = Recording()
        self.builder = self.recording.builder
        self.score = Sym(self, self.builder.add("score"))
        self.indices = tuple(Sym(self, self.builder.add("index", attr=name, kind=Kind.INT)) for name in INDICES)
        self.asked = False
        """A function asked for a captured number's value: the graph is of that value."""
        self.origins: dict[int, Any] = {}
        """What the user holds, by the id of the view that it is read through."""
        self.refusal: ModError | None = None
        """One that was raised where NumPy may swallow it."""
        self._elements: dict[int, int] = {}
        self._captured: dict[int, tuple[Any, Any]] = {}
        self._slots: dict[int, int] = {}
        self._capture = Capture(self)

    def array(self, array: Any, name: str) -> Any:
        """The symbol of a captured array, which symbols and integers can index; of a 0-d array, its element's symbol.

        Raises DTypeError for an array whose memory or element type rootdk cannot read.
        """
        known = self._captured.get(id(array))
        if known is None:
            # the array is kept, so that its id is not used again
            known = self._captured[id(array)] = array, self._array(array, name)
        return known[1]

    def view(self, source: Any, name: str) -> np.ndarray:
        """A captured array as an ndarray of the same memory."""
        return as_ndarray(source, name)

    def _array(self, source: Any, name: str) -> Any:
        view = self.view(source, name)
        dtype = dtypes.of(view)
        if dtype is None:
            raise DTypeError(
                f"{name}: expected a boolean, integer or floating array in native byte order, got {view.dtype}; "
                f"convert it: {name}.astype(np.float32)"
            )
        captured = Captured(view, dtype, name, source)
        read: Callable[[Index], Sym] = functools.partial(self._gather, captured)
        return Array(self, view.shape, dtype.kind, read) if view.ndim else read(())

    def _gather(self, captured: Captured, index: Index) -> Sym:
        slot = self._slots.get(id(captured.view))
        if slot is None:
            slot = self._slots[id(captured.view)] = len(self.recording.arrays)
            self.recording.arrays.append(replace(captured, name=_unique(captured.name, self.recording.arrays)))
        args = [self._index(position) for position in index]
        node = self.builder.add("gather", *args, attr=slot, kind=captured.dtype.kind)
        if node not in self.recording.sites:
            self.recording.sites[node] = site()
        return Sym(self, node)

    def _index(self, position: Any) -> int:
        if isinstance(position, Symbolic):
            return self.cast_node(position, Kind.INT)
        if isinstance(position, Element | Written):
            if position not in self._elements:
                self._elements[position] = self._constant(int(position), Kind.INT)
            return self._elements[position]
        return self._constant(int(position), Kind.INT)

    def call(self, function: Callable[..., Any], *symbols: Sym, what: str) -> Sym:
        """What ``function`` does to ``symbols``; ``what`` is "score_mod" or "mask", and says which kind to expect.

        Raises ModError, with the user's file and line, for what cannot be compiled. The function's own exceptions pass
        through, with a note that names it.
        """
        name = getattr(function, "__name__", None) or type(function).__name__
        self.refusal = None
        try:
            result = self._capture.value(function, name)(*symbols)
        except RootdkError:
            raise
        except Exception as error:
            if self.refusal is not None:
                raise self.refusal from error
            if isinstance(error, TypeError) and _no_user_code(error):
                expected = "f(b, h, q_idx, kv_idx)" if what == "mask" else "f(score, b, h, q_idx, kv_idx)"
                raise ModError(f"{what} {name}: expected {expected}, positional arguments all; {error}") from error
            error.add_note(f"raised while rootdk traced {what} {name}{_defined(function)}")
            raise
        return self.result(result, f"{what} {name}{_defined(function)}", what)

    def result(self, result: Any, label: str, what: str) -> Sym:
        """What a function returned, as a symbol of the kind that ``what`` asks for."""
        if result is None:
            raise ModError(f"{label} returned None; end it with `return` and the value")
        if isinstance(result, list | tuple | dict | str):
            raise ModError(f"{label} returned a {type(result).__name__}; return one value for the pair")
        value = self.operand(result)
        if isinstance(value, Array):
            raise ModError(f"{label} returned an array of shape {value.shape}; return one value for the pair")
        kind = kind_of(value)
        if what == "mask":
            if kind is not Kind.BOOL:
                raise ModError(
                    f"{label} returned {_an(kind)}, and a mask says True (may attend) or False; if 0 means hidden, "
                    "return value != 0; a function that changes scores is score_mod="
                )
            return self.symbol(value, Kind.BOOL)
        if kind is Kind.BOOL and isinstance(value, Sym):
            raise ModError(
                f"{label} returned a boolean, and a score function returns a score; a function that says who may "
                "attend is mask="
            )
        return self.symbol(value, Kind.FLOAT)

    def operand(self, value: Any) -> Any:
        """``value`` as a symbol, or as a Python number. Raises ModError for what is neither."""
        if isinstance(value, Symbolic):
            if value.tracer is not self:
                raise refuse(
                    "a value that an earlier call was traced with came back", "do not keep what a mod receives"
                )
            return value
        if isinstance(value, bool | int | float):
            return value
        if isinstance(value, np.generic):
            return self.operand(value.item())
        if is_array(value):
            return self.array(value, "array")
        raise refuse(f"{value!r} of type {type(value).__name__} met a traced value", "use numbers, symbols and arrays")

    def emit(self, op: str, values: Sequence[Any]) -> int:
        """The node of ``op`` on symbols and numbers, cast to the kinds that it computes in."""
        op, kinds, _ = rule(op, tuple(kind_of(value) for value in values))
        args = [self.cast_node(value, kind) for value, kind in zip(values, kinds, strict=True)]
        folded = self._folded(op, args)
        return self.builder.add(op, *args) if folded is None else folded

    def _folded(self, op: str, args: list[int]) -> int | None:
        """The node that an operation on a literal True or False comes to."""
        if not op.startswith(("logical_", "where")):
            return None
        nodes = self.builder.nodes
        truths = [nodes[arg].attr if nodes[arg].op == "literal" else None for arg in args]
        if op == "where":
            return None if truths[0] is None else args[1] if truths[0] else args[2]
        if op == "logical_not":
            return None if truths[0] is None else self._literal(not truths[0])
        for truth, other in (truths, args[1]), (truths[::-1], args[0]):
            if truth[0] is None:
                continue
            if op == "logical_xor":
                return self.emit("logical_not", [Sym(self, other)]) if truth[0] else other
            return other if truth[0] is (op == "logical_and") else self._literal(op == "logical_or")
        return None

    def symbol(self, value: Any, kind: Kind) -> Sym:
        """``value``, a symbol or a number, as a symbol of ``kind``."""
        return Sym(self, self.cast_node(self.operand(value), kind))

    def convert(self, value: Any, kind: Kind) -> Any:
        """``value``, a symbol of any shape, as ``kind``."""
        if isinstance(value, Array):
            return value.elementwise(f"to_{kind.value}", [value])
        return self.symbol(value, kind)

    def cast_node(self, value: Any, kind: Kind) -> int:
        """The node of a symbol or number as ``kind``."""
        if not isinstance(value, Sym):
            return self._constant(value, kind)
        node = value.node
        found = self.builder.nodes[node]
        if found.kind is kind:
            return node
        if kind is Kind.BOOL and found.op in ("to_int", "to_float") and self.builder.kind(found.args[0]) is kind:
            return found.args[0]
        return self.builder.add(f"to_{kind.value}", node)

    def _constant(self, value: bool | int | float, kind: Kind) -> int:
        if kind is Kind.BOOL:
            return self._literal(bool(value))
        number = float(value) if kind is Kind.FLOAT else int(value)
        if kind is Kind.FLOAT and not math.isfinite(number):
            return self._literal(number)
        if kind is Kind.INT and not -(2**63) <= number < 2**63:
            raise refuse(f"the integer {number} does not fit 64 bits", "use a smaller number, or a float")
        self.recording.constants.append(number)
        return self.builder.add("constant", attr=len(self.recording.constants) - 1, kind=kind)

    def _literal(self, value: bool | float) -> int:
        # one NaN object, as equal nodes are one node and NaN equals only itself by identity
        return self.builder.add("literal", attr=math.nan if value != value else value)

    def known(self, symbol: Sym) -> Any:
        """The value of a symbol that no pair changes, e.g. of a captured 0-d array; None of any other."""
        self.asked = True
        reached = needed(self.builder.nodes, [symbol.node])
        if any(self.builder.nodes[node].op in ("score", "index") for node in reached):
            return None
        traced = self.finish(None, symbol)
        values = evaluate(traced.graph, traced.constants, self.numbers(traced), b=0, h=0, q=0, kv=0)
        if values.outside:
            raise refuse("a captured array was indexed out of bounds", "use an index that it has")
        return values[-1].item() if traced.graph.nodes else True

    def numbers(self, traced: Traced) -> tuple[np.ndarray, ...]:
        """The captured arrays, to be read while tracing."""
        return traced.arrays

    def named(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """The result of the function that the tables call ``name``."""
        return _invoke(FUNCTIONS[name], name, args, kwargs or {})

    def function(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of a function of NumPy or torch on symbols, looked up by its name."""
        name = str(getattr(function, "__name__", function)).partition(".")[0]
        if name not in FUNCTIONS:
            raise refuse(f"{name} cannot be compiled in a mod", HINTS.get(name, _COMPOSE))
        return _invoke(FUNCTIONS[name], name, [self._argument(arg) for arg in args], kwargs)

    def _argument(self, value: Any) -> Any:
        """An argument of a library's function: an array made inside the mod becomes a symbol like any other."""
        return self.operand(value) if is_array(value) or isinstance(value, np.generic) else value

    def attribute(self, symbol: Symbolic, name: str) -> Any:
        """An attribute or a method of a symbol, as NumPy's and torch's arrays have them."""
        if name in ATTRIBUTES:
            return ATTRIBUTES[name](symbol)
        if name in FUNCTIONS:
            return functools.partial(_method, FUNCTIONS[name], name, symbol)
        if name.endswith("_") and name[:-1] in FUNCTIONS:
            raise refuse(f".{name}() would change a value in place", f"write x = x.{name[:-1]}(...)")
        raise refuse(f".{name} cannot be compiled in a mod", HINTS.get(name, _COMPOSE), MissingAttributeError)

    def finish(self, score: Sym | None, mask: Sym | None) -> Traced:
        """The graph of ``score`` and ``mask``, holding only what they need, and the values of its slots."""
        if score is not None and score.node == self.score.node:
            score = None
        if mask is not None and self.builder.nodes[mask.node] == Node("literal", (), Kind.BOOL, True):
            mask = None
        return self.recording.finished(None if score is None else score.node, None if mask is None else mask.node)


_COMPOSE = "compose it of arithmetic, comparisons, where, exp, log, tanh and the like"


def _method(function: Callable[..., Any], name: str, symbol: Symbolic, *args: Any, **kwargs: Any) -> Any:
    if name == "where":  # x.where(condition, other) keeps x where the condition holds
        return _invoke(function, name, (args[0], symbol, *args[1:]), kwargs)
    return _invoke(function, name, (symbol, *args), kwargs)


def _invoke(function: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        if isinstance(error, RootdkError) or (error.__traceback__ and error.__traceback__.tb_next):
            raise
        raise refuse(f"{name} cannot take these arguments in a mod ({error})", "leave out what is not needed") from None


def _no_user_code(error: Exception) -> bool:
    """Whether the call itself failed, before any line of the function ran."""
    return error.__traceback__ is None or error.__traceback__.tb_next is None


def _defined(function: Any) -> str:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code else ""


def _unique(name: str, others: list[Captured]) -> str:
    taken = {other.name for other in others}
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _an(kind: Kind) -> str:
    return {Kind.BOOL: "a boolean", Kind.INT: "an integer", Kind.FLOAT: "a float"}[kind]
