"""What a trace depends on, as a value: two mods with equal signatures come to the same graph and the same numbers.

A signature holds code, captured numbers, and the shapes and types of captured arrays; the arrays themselves come apart,
as their contents may change. Only functions of which all that is captured is plain have one: numbers, arrays, strings,
tuples of these, functions like themselves, and what libraries define. Any other is traced at each call.
"""

import functools
from dataclasses import fields
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from rootdk.mods.capture import global_names
from rootdk.mods.foreign import is_array
from rootdk.mods.refusals import is_library
from rootdk.mods.values import Made, Mask, Score

__all__ = ["Signed", "sign"]

Signed = tuple[Any, list[Any]]
"""A signature, hashable, and the arrays in the order in which it counts them."""

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic)


def sign(*values: Any) -> Signed | None:
    """The signature of masks, score functions, arrays and numbers; None where one of them has none."""
    signer = _Signer()
    try:
        return tuple(map(signer.of, values)), signer.arrays
    except _UnsignedError:
        return None


class _UnsignedError(Exception):
    """Something may change without a trace."""


class _Signer:
    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self._places: dict[int, int] = {}
        self._functions: dict[int, int] = {}

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _NUMBERS or isinstance(value, np.generic):
            # -0.0 equals 0.0, and True 1; NaN not even itself
            return kind, repr(value) if kind is float or isinstance(value, np.generic) else value
        if kind is FunctionType:
            return self._function(value)
        if is_array(value):
            return self._array(value)
        if kind is tuple or kind is list:
            return kind, tuple(map(self.of, value))
        if isinstance(value, Mask | Score | Made):
            names = (field.name for field in fields(kind))
            return kind, tuple(self.of(getattr(value, name)) for name in names)
        if kind is functools.partial:
            keywords = tuple((name, self.of(item)) for name, item in value.keywords.items())
            return kind, self.of(value.func), self.of(value.args), keywords
        if _is_constant(value):
            return kind, value
        raise _UnsignedError

    def _array(self, array: Any) -> Any:
        place = self._places.setdefault(id(array), len(self.arrays))
        if place == len(self.arrays):
            self.arrays.append(array)
        return "array", place, str(array.dtype), tuple(array.shape), type(array)

    def _function(self, function: FunctionType) -> Any:
        if function.__dict__:  # wrappers that tracing looks through, and attributes that code may read
            raise _UnsignedError
        known = self._functions.get(id(function))
        if known is not None:  # it calls itself
            return "function", known
        self._functions[id(function)] = len(self._functions)
        try:
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # a variable that is not set yet
            raise _UnsignedError from None
        scope = function.__globals__
        names = () if is_library(function.__module__) else global_names(function.__code__)
        return (
            function.__code__, tuple(map(self.of, cells)), self.of(function.__defaults__),
            tuple((name, self.of(item)) for name, item in (function.__kwdefaults__ or {}).items()),
            tuple((name, self.of(scope[name])) for name in names if name in scope),
        )  # fmt: skip


def _is_constant(value: Any) -> bool:
    """Whether ``value`` is what a library defines: a module, a class, a function."""
    if isinstance(value, ModuleType):
        return is_library(value.__name__)
    if isinstance(value, BuiltinFunctionType):
        owner = value.__self__
        return owner is None or isinstance(owner, ModuleType) or _is_constant(owner)
    return isinstance(value, type | np.ufunc) and is_library(getattr(value, "__module__", "numpy"))
