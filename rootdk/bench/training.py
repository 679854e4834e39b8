"""A whole training step with rootdk's attention, with torch's fused one, and with attention written out in torch."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rootdk.bench.cases import Case
from rootdk.bench.peers import UnavailableError
from rootdk.bench.results import Column, Row, Settings, millis, ratio
from rootdk.bench.timing import in_turns

__all__ = ["columns", "rows"]

_OURS, _EAGER = "rootdk", "eager"
_TOLERANCE = 1e-4
"""Nats: a loss further from ours than this, after two steps, is of another training."""

_GPT = Case("", heads=6, kv_heads=6, d_k=64, d_v=64)
_CASES = [
    replace(_GPT, name=f"context {length}, {title}", batch=batch, q_len=length, kv_len=length, pattern=pattern)
    for batch, length in ((8, 256), (2, 1024))
    for title, pattern in (("causal", "causal"), ("learned ALiBi", "alibi causal"))
]


def columns(names: Sequence[str]) -> tuple[Column, ...]:
    """rootdk's time of a step, and how many times as long the others take."""
    others = (Column(name, f"vs {name}", ratio) for name in (*names, _EAGER))
    return (Column("median", "rootdk", millis), Column("best", "best", millis), *others)


def rows(names: Sequence[str], settings: Settings) -> list[Row]:
    """One row a model; eager attention takes part whoever else does."""
    cases = [_small(case) for case in _CASES[:2]] if settings.quick else _CASES
    result = []
    for number, case in enumerate(cases):
        settings.tick(case.name, number, len(cases))
        result.append(_row(case, (*names, _EAGER), settings.rounds))
    return result


def _small(case: Case) -> Case:
    return replace(case.shorter(64), batch=1, heads=2, kv_heads=2)


def _row(case: Case, names: Sequence[str], rounds: int) -> Row:
    row = Row(case.name)
    try:
        ours, expected = _prepare(_OURS, case)
    except UnavailableError as reason:
        row.missing[_OURS] = str(reason)
        return row
    steps = {_OURS: ours}
    for name in names:
        try:
            step, loss = _prepare(name, case)
            if not abs(loss - expected) <= _TOLERANCE:
                raise UnavailableError(f"its loss differs from ours by {abs(loss - expected):.1e}")
        except UnavailableError as reason:
            row.missing[name] = str(reason)
        else:
            steps[name] = step
    times = in_turns(steps, rounds)
    row.values |= {"median": times[_OURS].median, "best": times[_OURS].best}
    row.values |= {name: timing.median / times[_OURS].median for name, timing in times.items() if name != _OURS}
    row.details["seconds"] = {name: vars(timing) for name, timing in times.items()}
    return row


def _prepare(name: str, case: Case) -> tuple[Callable[[], float], float]:
    """``name``'s training step of ``case``, and its loss after two of them."""
    try:
        from rootdk.bench import torch_training
    except ModuleNotFoundError as error:
        raise UnavailableError(f"{error.name} is not installed") from error
    if name not in torch_training.ATTENTIONS:
        raise UnavailableError("trains no torch model")
    step = torch_training.step(case, torch_training.ATTENTIONS[name])
    step(), step()
    return step, step()
