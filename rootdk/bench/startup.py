"""How long until a kernel is ready: compiled, loaded from disk, and as the first thing that a process does.

Run as a program, ``python -m rootdk.bench.startup PEER PATTERN DTYPE COLD|WARM|AFTER`` prints seconds as JSON. WARM
runs a kernel of another element type first, so that Python's modules are loaded and threads are there; AFTER runs one
of the same type too, with whose libraries the kernel is linked.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rootdk.bench import peers
from rootdk.bench.cases import Case, draw
from rootdk.bench.results import Column, Goal, Row, Settings, millis

__all__ = ["columns", "rows"]

_KERNELS = (
    ("full", "float32"),
    ("causal", "float32"),
    ("window", "float32"),
    ("alibi causal", "float32"),
    ("softcap", "float32"),
    ("causal", "float16"),
    ("causal", "float64"),
)
_GOALS = {"compile": 0.7, "another": 0.7, "load": 10e-3, "first": 60e-3}


def columns(names: Sequence[str]) -> tuple[Column, ...]:
    """Compile in an empty cache, and after another mask; load, first call; a peer's first call with nothing cached."""
    ours = {"compile": "compile", "another": "after another", "load": "load", "first": "first call"}
    theirs = {name: f"{name}, new" for name in names}
    return tuple(Column(name, title, millis) for name, title in (ours | theirs).items())


def rows(names: Sequence[str], settings: Settings) -> list[Row]:
    """One row a kernel; medians over a few processes each."""
    kernels = _KERNELS[:2] if settings.quick else _KERNELS
    repeats = 1 if settings.quick else min(settings.rounds, 5)
    result = []
    for number, (pattern, dtype) in enumerate(kernels):
        row = Row(f"{pattern}, {dtype}", goals={name: Goal(at_most=most) for name, most in _GOALS.items()})
        settings.tick(row.case, number, len(kernels))
        samples = [_ours(pattern, dtype) for _ in range(repeats)]
        row.values |= {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}
        for name in names:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    row.values[name] = _child(name, pattern, dtype, "WARM", folder)["extra"]
            except peers.UnavailableError as reason:
                row.missing[name] = str(reason)
        result.append(row)
    return result


def _ours(pattern: str, dtype: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other_folder:
        return {
            "compile": _child("rootdk", pattern, dtype, "WARM", folder)["extra"],
            "another": _child("rootdk", pattern, dtype, "AFTER", other_folder)["extra"],
            "load": _child("rootdk", pattern, dtype, "WARM", folder)["extra"],
            "first": _child("rootdk", pattern, dtype, "COLD", folder)["first"],
        }


def _child(peer: str, pattern: str, dtype: str, start: str, folder: str) -> dict[str, float]:
    command = [sys.executable, "-m", "rootdk.bench.startup", peer, pattern, dtype, start]
    environment = {**os.environ, "ROOTDK_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise peers.UnavailableError((done.stderr.strip().splitlines() or ["failed"])[-1])
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def _measure(peer: str, pattern: str, dtype: str, start: str) -> dict[str, float]:
    case = Case("", heads=2, kv_heads=2, q_len=64, kv_len=64, pattern=pattern, dtype=dtype)
    if start != "COLD":
        # Another element type makes another kernel for certain.
        _call(replace(case, pattern="full", dtype="float32" if dtype == "float64" else "float64"))
    if start == "AFTER":
        _call(replace(case, pattern="causal" if pattern == "window" else "window"))
    arrays = draw(case)
    first = _seconds(lambda: peers.prepare(peer, case, arrays).call())
    call = peers.prepare(peer, case, arrays).call if peer == "rootdk" else None
    again = min(_seconds(call) for _ in range(5)) if call else 0.0
    return {"first": first, "extra": first - again}


def _call(case: Case) -> None:
    peers.prepare("rootdk", case, draw(case)).call()


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _main() -> None:
    try:
        print(json.dumps(_measure(*sys.argv[1:])))
    except peers.UnavailableError as reason:
        raise SystemExit(str(reason)) from None


if __name__ == "__main__":
    _main()
