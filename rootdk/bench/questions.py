"""The questions that benchmarks answer: one function each, from Settings to Result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import rootdk
from rootdk.bench import backward, contest, memory, overhead, peers, startup, suites, training
from rootdk.bench.cases import Case, draw
from rootdk.bench.results import Column, Goal, Result, Row, Settings, megabytes, millis, ratio, scientific
from rootdk.bench.timing import in_turns, machine
from rootdk.errors import ArgumentError

__all__ = ["QUESTIONS", "Question", "ask"]


@dataclass(frozen=True)
class Question:
    """One thing to find out."""

    title: str
    peers: tuple[str, ...]
    """Whom it compares with unless told otherwise."""
    rows: Callable[[Sequence[str], Settings], list[Row]]
    columns: Callable[[Sequence[str]], tuple[Column, ...]]


def ask(name: str, settings: Settings) -> Result:
    """Measure the answer to ``QUESTIONS[name]``; raises ArgumentError for a peer that nobody knows."""
    question = QUESTIONS[name]
    names = question.peers if settings.peers is None else settings.peers
    if unknown := sorted(set(names) - set(peers.RIVALS)):
        raise ArgumentError(f"peers: expected some of {', '.join(peers.RIVALS)}, got {', '.join(unknown)}")
    rows = question.rows(names, settings)
    facts = {**machine(), "threads": settings.threads, "rounds": settings.rounds}
    return Result(name, question.columns(names), rows, facts)


def _contest(title: str, cases: Sequence[Case], names: tuple[str, ...], fraction: str = "peak") -> Question:
    variants = tuple(dict.fromkeys(variant for case in cases for variant in case.variants))
    return Question(
        title,
        names,
        lambda names, settings: contest.run(cases, names, fraction, settings),
        lambda names: contest.columns((*names, *variants), fraction),
    )


def _scaling(names: Sequence[str], settings: Settings) -> list[Row]:
    lengths = (256, 512) if settings.quick else (256, 512, 1024, 2048, 4096, 8192, 16384)
    rows = []
    for number, length in enumerate(lengths):
        case = replace(Case(f"N {length}"), heads=4, kv_heads=4, q_len=length, kv_len=length)
        settings.tick(case.name, number, len(lengths))
        row, arrays, calls = Row(case.name, details={"length": length}), draw(case), {}
        for name in ("rootdk", *names):
            try:
                calls[name] = peers.prepare(name, case, arrays).call
                row.values[f"{name} bytes"] = memory.extra_memory(name, case)
            except peers.UnavailableError as reason:
                row.missing[name] = str(reason)
        # A call at 16384 takes seconds, and its median is steady.
        for name, timing in in_turns(calls, settings.rounds if length <= 4096 else min(settings.rounds, 3)).items():
            row.values[name] = timing.median
        rows.append(row)
    return rows


def _scaling_columns(names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(
        column
        for name in ("rootdk", *names)
        for column in (Column(name, name, millis), Column(f"{name} bytes", "memory", megabytes))
    )


def _accuracy(names: Sequence[str], settings: Settings) -> list[Row]:
    cases = [case for case in (*suites.FORWARD, *suites.DTYPES[2:], *suites.MODS) if case.batch == 1]
    rows = []
    for number, case in enumerate(case.shorter(256 if settings.quick else 2048) for case in cases):
        # Two heads say as much as twelve, and float64 scores of 2048 x 2048 take their time.
        case = replace(case, heads=2, kv_heads=2)
        settings.tick(case.name, number, len(cases))
        row, arrays = Row(case.name), draw(case)
        wide = [array.astype(np.float64) for array in arrays]
        exact = rootdk.reference.attention(*wide, **case.rule.options(case.heads)).output
        for name in ("rootdk", *names):
            try:
                prepared = peers.prepare(name, case, arrays)
            except peers.UnavailableError as reason:
                row.missing[name] = str(reason)
            else:
                error = np.abs(np.asarray(prepared.output(prepared.call()), np.float64) - exact).max()
                row.values[name] = float(error)
        if row.values.get("torch"):
            row.values["ratio"] = row.values["rootdk"] / row.values["torch"]
            row.goals["ratio"] = Goal(at_most=1.5)
        rows.append(row)
    return rows


def _accuracy_columns(names: Sequence[str]) -> tuple[Column, ...]:
    errors = (Column(name, name, scientific) for name in ("rootdk", *names))
    return (*errors, Column("ratio", "ours / torch", ratio))


_EVERYBODY = ("numpy", "torch", "ort", "ort-mha", "openvino", "jax")
QUESTIONS = {
    "forward": _contest("How fast is the forward pass beside the peers?", suites.FORWARD, _EVERYBODY),
    "dtypes": _contest("Does it hold for every element type?", suites.DTYPES, ("torch",)),
    "strides": _contest("What does [batch, len, heads, d] cost?", suites.STRIDES, ("torch",)),
    "mods": _contest("How fast are masks and score functions?", suites.MODS, ("flex", "torch")),
    "decode": _contest("How near to memory bandwidth is a single query?", suites.DECODE, ("torch",), "bandwidth"),
    "scaling": Question("How do time and memory grow with N?", ("numpy", "torch"), _scaling, _scaling_columns),
    "overhead": Question("What does a call cost before it computes?", ("torch",), overhead.rows, overhead.columns),
    "accuracy": Question(
        "How far from float64 is the result?",
        ("torch",),
        _accuracy,
        _accuracy_columns,
    ),
    "backward": Question("How fast is the backward pass beside torch's?", ("torch",), backward.rows, backward.columns),
    "training": Question("How fast is a GPT's whole training step?", ("torch",), training.rows, training.columns),
    "compile": Question("How long until a kernel is ready?", (), startup.rows, lambda names: startup.columns(names)),
}
