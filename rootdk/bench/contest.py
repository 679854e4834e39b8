"""rootdk against its peers, case by case: times in turns, ratios of medians, fractions of what the machine can do."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rootdk.bench import peers
from rootdk.bench.cases import Case, draw
from rootdk.bench.results import Column, Goal, Row, Settings, millis, percent, ratio
from rootdk.bench.timing import Timing, in_turns
from rootdk.roofline import Roofline

__all__ = ["OURS", "columns", "run"]

OURS = "rootdk"
_TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-9}
"""A peer whose output is further from ours than this did not compute the same thing."""


def columns(names: Sequence[str], fraction: str) -> tuple[Column, ...]:
    """Columns of a contest with peers and variants ``names``; ``fraction`` is "peak" or "bandwidth"."""
    return (
        Column("median", "rootdk", millis),
        Column("best", "best", millis),
        Column(fraction, f"of {fraction}", percent),
        *(Column(name, f"vs {name}", ratio) for name in names),
    )


def run(cases: Sequence[Case], names: Sequence[str], fraction: str, settings: Settings) -> list[Row]:
    """Time rootdk, the peers ``names`` and each case's variants on every case."""
    roofline = Roofline(settings.threads)
    rows = []
    for number, case in enumerate(cases):
        settings.tick(case.name, number, len(cases))
        rows.append(_contest(_quick(case) if settings.quick else case, names, fraction, settings, roofline))
    return rows


def _quick(case: Case) -> Case:
    return replace(case.shorter(), variants={name: variant.shorter() for name, variant in case.variants.items()})


def _contest(case: Case, names: Sequence[str], fraction: str, settings: Settings, roofline: Roofline) -> Row:
    row = Row(case.name, goals={name: Goal(at_least=least) for name, least in case.targets.items()})
    arrays = draw(case)
    ours = peers.prepare(OURS, case, arrays)
    expected = np.asarray(ours.output(ours.call()), np.float64)
    calls: dict[str, Callable[[], Any]] = {OURS: ours.call}
    for name in names:
        try:
            peer = peers.prepare(name, case, arrays)
            _check_same(name, case, expected, peer.output(peer.call()))
        except peers.UnavailableError as reason:
            row.missing[name] = str(reason)
        else:
            calls[name] = peer.call
    for name, variant in case.variants.items():
        calls[name] = peers.prepare(OURS, variant, draw(variant)).call
    limit = {"peak": roofline.multiply_add, "bandwidth": roofline.read}[fraction]
    times = in_turns({**calls, fraction: limit}, settings.rounds)
    _fill(row, case, times, fraction, roofline)
    return row


def _check_same(name: str, case: Case, expected: np.ndarray, output: np.ndarray) -> None:
    difference = float(np.abs(np.asarray(output, np.float64) - expected).max(initial=0))
    if not difference <= _TOLERANCE[case.dtype]:
        raise peers.UnavailableError(f"its output differs from ours by {difference:.1e}")


def _fill(row: Row, case: Case, times: dict[str, Timing], fraction: str, roofline: Roofline) -> None:
    ours = times[OURS]
    # Wide elements halve what a vector holds; 16-bit ones are computed in float32.
    width = 2 if case.dtype == "float64" else 1
    work, most = {
        "peak": (case.flops * width, roofline.flops),
        "bandwidth": (case.key_value_bytes, roofline.bytes),
    }[fraction]
    row.values |= {
        "median": ours.median,
        "best": ours.best,
        fraction: (work / ours.median) / (most / times[fraction].median),
    }
    for name, timing in times.items():
        pairs = case.variants[name].pairs if name in case.variants else case.pairs
        row.details.setdefault("seconds", {})[name] = {"median": timing.median, "best": timing.best}
        if name not in (OURS, fraction):
            row.values[name] = (timing.median / pairs) / (ours.median / case.pairs)
    row.details |= {
        "gflops": case.flops / ours.median / 1e9,
        f"{fraction}_measured": most / times[fraction].median / 1e9,
    }
