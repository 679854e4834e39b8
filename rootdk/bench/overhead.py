"""What a call costs beside what it computes: on arrays with nothing to compute, and on small tensors."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rootdk.bench import peers
from rootdk.bench.cases import Case, draw
from rootdk.bench.results import Column, Goal, Row, Settings, micros
from rootdk.bench.timing import in_turns

__all__ = ["columns", "rows"]

_ONE = Case("", batch=1, heads=1, kv_heads=1, q_len=1, kv_len=1, d_k=8, d_v=8)
_ARRAYS = [
    replace(_ONE, name=f"1 query, 1 key, {pattern}", pattern=pattern)
    for pattern in ("full", "causal", "alibi", "softcap")
]
_TENSORS = [
    Case(f"tensors ({batch}, 12, {length}, 64)", batch=batch, q_len=length, kv_len=length)
    for batch, length in ((1, 16), (8, 50))
]


def columns(names: Sequence[str]) -> tuple[Column, ...]:
    """Everybody's time of a call."""
    return tuple(Column(name, name, micros) for name in ("rootdk", *names))


def rows(names: Sequence[str], settings: Settings) -> list[Row]:
    """One row a call on arrays, then one a call on tensors, which may or may not note how to go back."""
    work: list[tuple[Row, Callable[[str], Callable[[], Any]]]] = []
    for case in _ARRAYS:
        work.append((Row(case.name, goals={"rootdk": Goal(at_most=12e-6)}), _on_arrays(case)))
    for case in _TENSORS:
        for title, requires_grad in (("no grad", False), ("with grad", True)):
            work.append((Row(f"{case.name}, {title}"), _on_tensors(case, requires_grad)))
    for number, (row, prepare) in enumerate(work):
        settings.tick(row.case, number, len(work))
        calls = {}
        for name in ("rootdk", *names):
            try:
                calls[name] = prepare(name)
            except peers.UnavailableError as reason:
                row.missing[name] = str(reason)
        row.values |= {name: timing.median for name, timing in in_turns(calls, 5 * settings.rounds).items()}
    return [row for row, _ in work]


def _on_arrays(case: Case) -> Callable[[str], Callable[[], Any]]:
    arrays = draw(case)
    return lambda name: peers.prepare(name, case, arrays).call


def _on_tensors(case: Case, requires_grad: bool) -> Callable[[str], Callable[[], Any]]:
    def prepare(name: str) -> Callable[[], Any]:
        try:
            from rootdk.bench import torch_gradients
        except ModuleNotFoundError as error:
            raise peers.UnavailableError(f"{error.name} is not installed") from error
        if name not in torch_gradients.ENTRIES:
            raise peers.UnavailableError("takes no torch tensors")
        return torch_gradients.entry(name, case, requires_grad)

    return prepare
