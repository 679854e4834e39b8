"""The backward pass alone, and forward with backward of what torch trains over whole score matrices.

Run as a program, ``python -m rootdk.bench.backward CONTENDER WORK`` prints one call's extra memory in bytes; WORK is
the work's fields as JSON.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import rootdk
from rootdk.bench import memory
from rootdk.bench.cases import Case, draw
from rootdk.bench.peers import UnavailableError
from rootdk.bench.results import Column, Goal, Row, Settings, megabytes, millis, percent, ratio
from rootdk.bench.timing import Timing, in_turns
from rootdk.roofline import Roofline

__all__ = ["WORK", "Work", "columns", "extra_memory", "rows"]

_OURS, _VJP, _EAGER, _PEAK = "rootdk", "attention_vjp", "eager", "peak"
_TOLERANCE = 1e-4
"""Of the largest entry: a gradient further from ours than this is of another function."""


@dataclass(frozen=True)
class Work:
    """What is differentiated, and which part of that is timed; float32, patterns "full" and "causal"."""

    case: Case
    forward: bool = False
    """Whether the forward pass is timed too."""
    learned: str = ""
    """What else has a gradient: "bias" [1, heads, q_len, kv_len], or "table" [heads, distances], added to scores."""
    dropout_p: float = 0.0

    @property
    def flops(self) -> int:
        """Of five products backwards, S, dP, dV, dQ and dK, and two forwards where timed; over visible pairs only."""
        case = self.case
        backward = 2 * case.batch * case.heads * case.pairs * (3 * case.d_k + 2 * case.d_v)
        return backward + self.forward * case.flops

    @property
    def small(self) -> "Work":
        """The same with few heads and lengths, to see that it runs and to have its kernels compiled."""
        return replace(self, case=replace(self.case.shorter(64), heads=2, kv_heads=2))


def _plain(width: int, pattern: str, least: float) -> Work:
    name = f"backward, N 2048, d {width}, {pattern}"
    return Work(Case(name, d_k=width, d_v=width, pattern=pattern, targets={"torch": least}))


def _whole(name: str, width: tuple[int, int] = (64, 64), **options: Any) -> Work:
    d_k, d_v = width
    return Work(Case(f"both, N 1024, {name}", q_len=1024, kv_len=1024, d_k=d_k, d_v=d_v), forward=True, **options)


WORK = [
    _plain(64, "full", 1.4),
    _plain(64, "causal", 1.65),
    _plain(128, "full", 1.12),
    _plain(128, "causal", 1.45),
    _whole("bias gradient", learned="bias"),
    _whole("dropout 0.1", dropout_p=0.1),
    _whole("d 80 / 48", (80, 48)),
    _whole("learned relative table", learned="table"),
]


def columns(names: Sequence[str]) -> tuple[Column, ...]:
    """rootdk's time and share of the peak, how many times as long the others take, and everybody's extra memory."""
    return (
        Column("median", "rootdk", millis),
        Column("best", "best", millis),
        Column(_PEAK, "of peak", percent),
        *(Column(name, f"vs {name}", ratio) for name in (_VJP, *names, _EAGER)),
        *(Column(f"{name} bytes", f"{name} memory", megabytes) for name in (_OURS, *names, _EAGER)),
    )


def rows(names: Sequence[str], settings: Settings) -> list[Row]:
    """One row a piece of work; attention_vjp takes part in backward passes alone, eager attention in whole ones."""
    chosen = [work.small for work in WORK[3:5]] if settings.quick else WORK
    roofline = Roofline(settings.threads)
    result = []
    for number, work in enumerate(chosen):
        settings.tick(work.case.name, number, len(chosen))
        result.append(_row(work, (*names, _EAGER if work.forward else _VJP), settings.rounds, roofline))
    return result


def _row(work: Work, names: Sequence[str], rounds: int, roofline: Roofline) -> Row:
    row = Row(work.case.name, goals={name: Goal(at_least=least) for name, least in work.case.targets.items()})
    calls: dict[str, Callable[[], Any]] = {}
    expected: list[np.ndarray] = []
    for name in (_OURS, *names):
        try:
            # Nobody drops what another drops: results are compared without.
            found = _arrays(_prepare(name, replace(work, dropout_p=0.0))())
            expected = expected or found
            _check_same(expected, found)
            calls[name] = _prepare(name, work)
            if name != _VJP:
                row.values[f"{name} bytes"] = extra_memory(name, work)
        except UnavailableError as reason:
            row.missing[name] = str(reason)
    if _OURS in calls:
        _fill(row, work, in_turns({**calls, _PEAK: roofline.multiply_add}, rounds), roofline)
    return row


def _fill(row: Row, work: Work, times: dict[str, Timing], roofline: Roofline) -> None:
    ours, peak = times[_OURS], times.pop(_PEAK)
    row.values |= {
        "median": ours.median,
        "best": ours.best,
        _PEAK: (work.flops / ours.median) / (roofline.flops / peak.median),
    }
    row.values |= {name: timing.median / ours.median for name, timing in times.items() if name != _OURS}
    row.details["seconds"] = {name: vars(timing) for name, timing in times.items()}
    row.details["gflops"] = work.flops / ours.median / 1e9
    row.details["peak_measured"] = roofline.flops / peak.median / 1e9


def _prepare(name: str, work: Work) -> Callable[[], tuple[Any, ...]]:
    """``name``'s call of ``work``: gradients by query, key, value and what is learned, after the output where timed."""
    if name == _VJP:
        return _vjp(work.case)
    try:
        from rootdk.bench import torch_gradients
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{error.name} is not installed") from error
    if name not in torch_gradients.ATTENTIONS:
        raise UnavailableError("differentiates no torch tensors")
    return torch_gradients.call(work, torch_gradients.ATTENTIONS[name])


def _vjp(case: Case) -> Callable[[], tuple[np.ndarray, ...]]:
    _, pullback = rootdk.attention_vjp(*draw(case), **case.rule.options(case.heads))
    grad_output = draw(case, seed=1)[2]

    def call() -> tuple[np.ndarray, ...]:
        grads = pullback(grad_output)
        return grads.query, grads.key, grads.value

    return call


def _arrays(results: tuple[Any, ...]) -> list[np.ndarray]:
    return [np.asarray(array, np.float64) for array in results]


def _check_same(expected: list[np.ndarray], found: list[np.ndarray]) -> None:
    difference = max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(expected, found, strict=True))
    if not difference <= _TOLERANCE:
        raise UnavailableError(f"a result differs from ours by {difference:.1e} of its largest entry")


def extra_memory(name: str, work: Work) -> int:
    """Bytes that ``name`` needs for ``work`` beyond its inputs and results; UnavailableError where none can tell."""
    return memory.in_a_process("rootdk.bench.backward", name, json.dumps(dataclasses.asdict(work)))


def _measure(name: str, fields: dict[str, Any]) -> int:
    work = Work(**{**fields, "case": Case(**fields["case"])})
    _prepare(name, work.small)()
    return memory.beyond_result(_prepare(name, work), lambda results: sum(array.nbytes for array in results))


if __name__ == "__main__":
    memory.answer(partial(_measure, sys.argv[1], json.loads(sys.argv[2])))
