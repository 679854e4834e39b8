"""Extra memory of one call, measured in a process of its own: the peak during the call over what was there before.

Run as a program, ``python -m rootdk.bench.memory PEER CASE`` prints the bytes; CASE is the case's fields as JSON.
"""

import ctypes
import dataclasses
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rootdk.bench import peers
from rootdk.bench.cases import Case, draw

__all__ = ["answer", "beyond_result", "extra_memory", "in_a_process"]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def extra_memory(peer: str, case: Case) -> int:
    """Bytes that ``peer`` needs for ``case`` beyond its inputs and output; at least 0.

    Raises:
        UnavailableError: the peer can't run the case, or this system does not tell peak memory.
    """
    fields = {name: value for name, value in vars(case).items() if name in _FIELDS}
    return in_a_process("rootdk.bench.memory", peer, json.dumps(fields))


def in_a_process(module: str, *arguments: str) -> int:
    """What ``python -m module arguments``, which ends in ``answer``, measures; UnavailableError where it can't."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise peers.UnavailableError((done.stderr.strip().splitlines() or ["failed"])[-1])
    return int(done.stdout.splitlines()[-1])


def answer(measure: Callable[[], int]) -> None:
    """Print what ``measure`` returns, or exit with the reason why it can't."""
    try:
        print(measure())
    except peers.UnavailableError as reason:
        raise SystemExit(str(reason)) from None


def beyond_result(call: Callable[[], Any], result_bytes: Callable[[Any], int]) -> int:
    """Peak bytes that ``call()`` adds to this process, less those of what it returns; at least 0."""
    if not _CLEAR.exists():
        raise peers.UnavailableError("this system does not tell peak memory")
    _give_back_freed()
    _CLEAR.write_text("5")
    before = _status("VmRSS")
    result = call()
    peak = _status("VmHWM")
    return max(0, peak - before - result_bytes(result))


def _give_back_freed() -> None:
    """Return what was freed to the system: the call would find it resident, and not be billed for using it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


_FIELDS = {field.name for field in dataclasses.fields(Case)} - {"targets", "variants"}


def _measure(peer: str, case: Case) -> int:
    arrays = draw(case)
    prepared = peers.prepare(peer, case, arrays)
    # A tiny case first: libraries load and kernels compile on their first call, which is not memory of attention. One
    # head and a few keys, so that no work buffer grows that the real call would then find ready and not be billed for.
    small = dataclasses.replace(case.shorter(8), batch=1, heads=case.heads // case.kv_heads, kv_heads=1)
    peers.prepare(peer, small, draw(small)).call()
    return beyond_result(prepared.call, lambda output: case.output_bytes)


def _status(field: str) -> int:
    """Bytes, from a line such as ``VmHWM:   12345 kB``."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    answer(partial(_measure, sys.argv[1], Case(**json.loads(sys.argv[2]))))
