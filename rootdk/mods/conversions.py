"""Casts and constructors, under any library's way of naming an element type; inside a mod there are three kinds."""

from typing import Any

import numpy as np

from rootdk.dtypes import Kind
from rootdk.mods.arrays import Array
from rootdk.mods.promotion import kind_of
from rootdk.mods.refusals import refuse
from rootdk.mods.symbols import Symbolic

__all__ = ["cast", "convert", "filled", "kind_named", "to_bool", "to_float", "to_int"]


def kind_named(dtype: Any) -> Kind | None:
    """The kind of an element type of Python, NumPy, torch or JAX; None where ``dtype`` is something else."""
    if dtype is bool:
        return Kind.BOOL
    if dtype is int:
        return Kind.INT
    if dtype is float:
        return Kind.FLOAT
    name = str(dtype).rpartition(".")[2] if type(dtype).__module__ == "torch" or isinstance(dtype, str) else None
    if name is None:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            return None
    name = name.lower().removesuffix("tensor")
    for kind, prefixes in _PREFIXES.items():
        if name.startswith(prefixes):
            return kind
    return None


_PREFIXES = {
    Kind.BOOL: ("bool",),
    Kind.INT: ("int", "uint", "long", "short", "byte", "char"),
    Kind.FLOAT: ("float", "bfloat", "double", "half"),
}


def cast(value: Any, kind: Kind) -> Any:
    """``value`` as ``kind``: a float to an integer truncates; to a boolean, whether it is not 0."""
    return value.tracer.convert(value, kind)


def to_float(input: Any) -> Any:
    """A float of the accumulator's precision, whatever precision was asked for."""
    return cast(input, Kind.FLOAT)


def to_int(input: Any) -> Any:
    """A 64-bit integer; a float is truncated."""
    return cast(input, Kind.INT)


def to_bool(input: Any) -> Any:
    """Whether the value is not 0."""
    return cast(input, Kind.BOOL)


def convert(input: Any, *targets: Any, dtype: Any = None, **options: Any) -> Any:
    """``x.to(...)``, ``x.astype(...)``, ``x.type(...)``: the first element type among the arguments decides.

    A device, a memory format and flags such as ``copy`` change nothing.
    """
    unknown = set(options) - {"device", "copy", "non_blocking", "memory_format", "other", "order", "casting", "subok"}
    if unknown:
        raise refuse(f"a cast got the unknown argument {unknown.pop()}", "give it an element type")
    for target in (dtype, *targets, options.get("other")):
        if isinstance(target, Symbolic):
            return cast(input, kind_of(target))
        if target is None or isinstance(target, bool) or _is_device(target):
            continue
        kind = kind_named(target)
        if kind is None:
            raise refuse(f"a cast to {target} has no meaning in a mod", "use a boolean, integer or floating type")
        return cast(input, kind)
    return input


def _is_device(target: Any) -> bool:
    if isinstance(target, str):
        return target.partition(":")[0] in ("cpu", "cuda", "mps", "xpu", "meta")
    return type(target).__name__ in ("device", "memory_format")


def filled(like: Symbolic, value: Any, size: Any = (), dtype: Any = None) -> Any:
    """``value`` in every element of shape ``size``, of the kind of ``dtype``, by default that of ``like``."""
    kind = kind_of(like) if dtype is None else kind_named(dtype)
    if kind is None:
        raise refuse(f"{dtype} has no meaning in a mod", "use a boolean, integer or floating type")
    number = like.tracer.symbol(value, kind)
    shape = (size,) if isinstance(size, int) else tuple(size)
    return Array(like.tracer, shape, kind, lambda at: number) if shape else number
