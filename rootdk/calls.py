"""Calls on ndarrays, whole: from arguments to results. The second call of a kind is quick."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rootdk import engine, problem
from rootdk.call_kinds import CallKind
from rootdk.mods import ranges
from rootdk.mods.signature import Signed, sign
from rootdk.mods.values import Mask, Score
from rootdk.runtime import threads

__all__ = ["attention"]


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """All of a call but the numbers in its arrays."""

    kind: CallKind
    prepared: engine.Prepared
    captured: engine.Captured | None
    """None where arrays are read, which may hold something else each time."""
    output_shape: tuple[int, ...]
    lse_shape: tuple[int, ...] | None
    lse_dtype: np.dtype | None

    def captures(self, arrays: list[Any]) -> engine.Captured | None:
        """What the kernel reads beside query, key and value; None where ``arrays`` may need another."""
        if self.captured is not None:
            return self.captured
        filled = self.kind.filled(arrays)
        if filled is None:
            return None
        bound, tables = filled
        return engine.capture(bound.problem.graph, bound.operands, tables)


_known: dict[Any, _Known] = {}
_MOST_KNOWN = 128


def attention(query: Any, key: Any, value: Any, *, return_lse: bool = False, **options: Any) -> Any:
    """Output, or (output, LSE), of one call on NumPy arrays."""
    signature, read = _signature((query, key, value), return_lse, options)
    known = _known.get(signature)
    captured = None if known is None else known.captures(read)
    if known is None or captured is None:
        return _attend((query, key, value), return_lse, options, (signature, read))
    output = np.empty(known.output_shape, query.dtype)
    lse = None if known.lse_shape is None else np.empty(known.lse_shape, known.lse_dtype)
    engine.run(known.prepared, (query, key, value), None, output, lse, captured)
    return output if lse is None else (output, lse)


def _signature(arrays: tuple[Any, Any, Any], return_lse: bool, options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Everything that a call depends on but the numbers in its arrays, and those that it reads beside query, key and
    value; None where that cannot be told."""
    query, key, value = arrays
    # subclasses, such as masked arrays, are not what they look like here
    if not type(query) is type(key) is type(value) is np.ndarray:
        return None, []
    given = (tuple(options.values()), []) if all(map(_fixed, options.values())) else sign(*options.values())
    if given is None:
        return None, []
    return (
        query.shape, query.strides, query.dtype, key.shape, key.strides, key.dtype, value.shape, value.strides,
        value.dtype, return_lse, threads.get_num_threads(), *options, *given[0],
        # True equals 1.0 and is refused
        type(options.get("scale")), type(options.get("dropout_p")),
    ), given[1]  # fmt: skip


def _attend(arrays: tuple[Any, Any, Any], return_lse: bool, options: dict[str, Any], signed: Signed) -> Any:
    """The long way; remembered by the signature where there is one."""
    bound = problem.bind(*arrays, **options)
    output, lse = engine.allocate(bound, lse=return_lse)
    tables = ranges.build_all(bound.problem.graph, bound.operands.arrays)
    prepared = engine.prepare(bound, output, lse, tables)
    captured = engine.capture(bound.problem.graph, bound.operands, tables)
    signature, read = signed
    # of dropout, a seed of None is drawn anew for every call
    if signature is not None and not bound.problem.dropout_p and bound.operands.sinks is None:
        kind = CallKind.of(bound, tables, read, options.get("bias"))
        if kind is not None:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            shape, dtype = (None, None) if lse is None else (lse.shape, lse.dtype)
            _known[signature] = _Known(kind, prepared, None if read else captured, output.shape, shape, dtype)
    engine.run(prepared, arrays, bound.operands.sinks, output, lse, captured)
    return (output, lse) if return_lse else output


def _fixed(option: Any) -> bool:
    """Whether nothing that ``option`` refers to can change."""
    if isinstance(option, tuple):
        return all(map(_fixed, option))
    return option.fixed if isinstance(option, Mask | Score) else isinstance(option, int | float | str | None)
