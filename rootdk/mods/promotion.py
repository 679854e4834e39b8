"""Which kinds an operation computes in: bool, int or float, promoted as NumPy and torch do."""

import functools
from typing import Any

from rootdk.dtypes import Kind
from rootdk.mods.expr import OPS
from rootdk.mods.refusals import refuse

__all__ = ["Rule", "kind_of", "rule"]

Rule = tuple[str, tuple[Kind, ...], Kind]
"""The operation to use, the kind that each argument is cast to, and the kind of the result."""

_ON_BOOLS = {
    "add": "logical_or",
    "multiply": "logical_and",
    "minimum": "logical_and",
    "maximum": "logical_or",
    "bit_and": "logical_and",
    "bit_or": "logical_or",
    "bit_xor": "logical_xor",
    "bit_not": "logical_not",
}


def kind_of(value: Any) -> Kind:
    """The kind of a symbol or of a Python number."""
    if isinstance(value, bool):
        return Kind.BOOL
    if isinstance(value, int):
        return Kind.INT
    if isinstance(value, float):
        return Kind.FLOAT
    kind: Kind = value.kind
    return kind


@functools.lru_cache(maxsize=1024)
def rule(op: str, kinds: tuple[Kind, ...]) -> Rule:
    """How ``op`` applies to arguments of ``kinds``. Raises ModError where it does not."""
    booleans = Kind.FLOAT not in kinds and Kind.INT not in kinds
    if op == "where":
        common = _common(kinds[1:])
        return op, (Kind.BOOL, common, common), common
    if op in ("to_bool", "to_int", "to_float"):
        return op, kinds, Kind(OPS[op].result)
    if booleans and op in _ON_BOOLS:
        return rule(_ON_BOOLS[op], kinds)
    if booleans and op in ("subtract", "negative"):
        raise refuse(f"{op} of booleans has no meaning", "use ^ or ~, or convert to integers first (x * 1)")
    result = OPS[op].result
    if op.startswith("logical_"):
        return op, (Kind.BOOL,) * len(kinds), Kind.BOOL
    if result == "float" or op == "is_nan":
        return op, (Kind.FLOAT,) * len(kinds), Kind(result)
    if result == "int":
        if Kind.FLOAT in kinds:
            raise refuse(f"{op} works on integers and booleans, and got a float", "convert it with .long(), or compare")
        return op, (Kind.INT,) * len(kinds), Kind.INT
    common = Kind.FLOAT if Kind.FLOAT in kinds else Kind.INT
    return op, (common,) * len(kinds), Kind.BOOL if result == "bool" else common


def _common(kinds: tuple[Kind, ...]) -> Kind:
    return next(kind for kind in (Kind.FLOAT, Kind.INT, Kind.BOOL) if kind in kinds)
