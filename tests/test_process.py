"""Attention among processes and threads: forks, interrupts, workers that are sent masks, other instruction sets."""

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_checks import DTYPES, assert_same, random

import rootdk
from rootdk import machine

HERE = Path(__file__).parent

PREAMBLE = """
import os, signal, sys, threading, time
import numpy as np
import rootdk
from attention_checks import assert_same, random
signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts in the background inherits that it is ignored
ARRAYS = random((2, 4, 300, 64), (2, 2, 300, 64), (2, 2, 300, 64))

def attend():
    return rootdk.attention(*ARRAYS, mask=rootdk.causal(), return_lse=True)

rootdk.set_num_threads(2)
EXPECTED = attend()
assert_same(EXPECTED, attend())  # also imports, before any fork, what it needs: Python's import locks outlive threads
"""


def run_script(code: str, **environment: str) -> str:
    """What a fresh process prints; it must end well."""
    run = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code], cwd=HERE, env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


FORK = """
stop = threading.Event()
wrong = []

def keep_attending():
    while not stop.is_set():
        try:
            assert_same(attend(), EXPECTED)
        except BaseException as error:
            wrong.append(error)
            raise

callers = [threading.Thread(target=keep_attending) for _ in range(4)]
for caller in callers:
    caller.start()
for _ in range(4):
    child = os.fork()
    if not child:
        try:
            assert_same(attend(), EXPECTED)
            # a kernel that the parent has not compiled
            rootdk.attention(*ARRAYS, mask=~rootdk.causal() & rootdk.sink_tokens(7))
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for caller in callers:
    caller.join()
print(wrong or "fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("first", ["", "import torch\ntorch.ones(300, 300) @ torch.ones(300, 300)\n"])
def test_fork_while_threads_attend(first: str) -> None:
    if first:
        pytest.importorskip("torch")
    assert run_script(first + FORK) == "fine"


INTERRUPT = """
def interrupt():
    for _ in range(5):
        time.sleep(0.03)
        os.kill(os.getpid(), signal.SIGINT)

interrupted = 0
sender = threading.Thread(target=interrupt)
sender.start()
while sender.is_alive():
    try:
        attend()
    except KeyboardInterrupt:
        interrupted += 1
    try:
        assert_same(attend(), EXPECTED)
    except KeyboardInterrupt:
        interrupted += 1
assert_same(attend(), EXPECTED)
print("fine" if interrupted else "not interrupted")
"""


def test_interrupts_leave_nothing_behind() -> None:
    assert run_script(INTERRUPT) == "fine"


def test_many_threads_attend_at_once() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (dtype, options) for dtype in DTYPES for options in ({}, {"mask": rootdk.causal(align="end")})
    ]
    expected: dict[int, Any] = {}
    found: dict[int, list[Any]] = {number: [] for number in range(len(cases))}

    def attend(number: int) -> Any:
        dtype, options = cases[number]
        query, key, value = random((2, 4, 40, 24), (2, 2, 90, 24), (2, 2, 90, 16), dtype=dtype, seed=number)
        return rootdk.attention(query, key, value, return_lse=True, **options)

    def attend_to_all(first: int) -> None:
        for step in range(3 * len(cases)):
            number = (first + step) % len(cases)
            found[number].append(attend(number))

    threads = [threading.Thread(target=attend_to_all, args=(first,)) for first in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for number in range(len(cases)):
        expected[number] = attend(number)
        assert len(found[number]) == 3 * len(cases)
        for pair in found[number]:
            assert_same(pair, expected[number])


# masks that travel


def earlier(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx < q_idx


def doubled(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 2 * score


VALUES = {
    "causal": {"mask": rootdk.causal()},
    "composed": {"mask": rootdk.sliding_window(3) & ~rootdk.sink_tokens(1) | rootdk.prefix_lm(2)},
    "documents": {"mask": rootdk.documents(np.array([0, 0, 1, 1, 2, 2]))},
    "lengths": {"mask": rootdk.lengths(np.array([4]))},
    "array": {"mask": rootdk.mask(np.tri(6, dtype=np.bool_)) & rootdk.causal()},
    "function": {"mask": rootdk.mask(earlier)},
    "softcap": {"score_mod": rootdk.softcap(2.0)},
    "alibi": {"score_mod": rootdk.alibi()},
    "relative bias": {"score_mod": rootdk.relative_bias(np.arange(10.0).reshape(2, 5))},
    "score function": {"score_mod": rootdk.score(doubled)},
}
ARRAYS = random((1, 2, 6, 4), (1, 2, 6, 4), (1, 2, 6, 4))


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_of_masks_and_scores(name: str, again: Any) -> None:
    copied = {role: again(value) for role, value in VALUES[name].items()}
    assert repr(copied) == repr(VALUES[name])
    assert_same(rootdk.attention(*ARRAYS, **copied), rootdk.attention(*ARRAYS, **VALUES[name]))


@pytest.mark.parametrize("value", [rootdk.mask(lambda b, h, q, kv: q > kv), rootdk.score(lambda s, b, h, q, kv: s)])
def test_pickling_a_lambda_says_what_cannot_be_pickled(value: Any) -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="<lambda>"):
        pickle.dumps(value)


def test_spawned_worker() -> None:
    options = {"mask": rootdk.mask(earlier), "score_mod": rootdk.score(doubled)}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(rootdk.attention, ARRAYS, options)
    assert_same(found, rootdk.attention(*ARRAYS, **options))


# other instruction sets

CORE = ["test_bits.py", "test_cases.py", "test_poison.py", "test_properties.py"]


def other_targets() -> list[str]:
    """Of this machine's architecture, narrower than what it has."""
    runnable = []
    for name in machine.PRESETS:
        try:
            target = machine.choose(name, machine._architecture(), machine.host_features())
        except rootdk.ArgumentError:
            continue
        if target != machine.host():
            runnable.append(name)
    return runnable


@pytest.mark.slow
@pytest.mark.parametrize("target", other_targets())
def test_core_on_another_instruction_set(target: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "core", "-p", "no:cacheprovider", *CORE],
        cwd=HERE, env={**os.environ, "ROOTDK_TARGET": target}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:]
