"""Kernels on several threads: every task once, whoever calls, whatever interrupts."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from sample_kernels import COUNT

import rootdk.config
from rootdk import machine
from rootdk.errors import ArgumentError
from rootdk.runtime import cache, openmp, threads
from rootdk.runtime.cache import KernelCache, Source
from rootdk.runtime.store import Store


@pytest.fixture(scope="module")
def count():
    return KernelCache(Store(None)).get(Source("count", lambda: COUNT, ("count",)), machine.host())["count"]


@pytest.fixture
def own_pool(monkeypatch):
    """As in a process without OpenMP, whatever other tests have loaded."""
    monkeypatch.setattr(openmp, "parallel", lambda: None)


def run_count(address: int, tasks: int, rounds: int, number: int) -> np.ndarray:
    done = np.zeros(tasks, dtype=np.int64)
    context = np.array([0, tasks, done.ctypes.data, rounds], dtype=np.int64)
    threads.run(address, context.ctypes.data, number)
    return done


@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize(("tasks", "rounds"), [(0, 0), (1, 0), (100, 0), (100, 3000)])
def test_every_task_runs_once(count, own_pool, number, tasks, rounds):
    for _ in range(20):
        assert (run_count(count, tasks, rounds, number) == 1).all()


def test_many_python_threads_call_at_once(count, own_pool):
    wrong = []

    def caller():
        for _ in range(50):
            if not (run_count(count, 20, 500, 4) == 1).all():
                wrong.append(1)

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(60)
        assert not each.is_alive()
    assert not wrong


def test_helpers_are_bounded_by_the_widest_call(count, own_pool):
    for _ in range(30):
        run_count(count, 4, 10, 3)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("rootdk") <= 7  # 8 is the widest in this file


def test_a_late_helper_finds_its_share_revoked():
    share = threads._Share(lambda context: pytest.fail("entered after the call"), 0)
    share.settle()
    share.settle()
    share.work()
    assert not share.left


def test_a_share_that_was_begun_is_waited_for():
    inside, leave = threading.Event(), threading.Event()

    def kernel(_context):
        inside.set()
        leave.wait(30)

    share = threads._Share(kernel, 0)
    helper = threading.Thread(target=share.work)
    helper.start()
    assert inside.wait(30)
    caller = threading.Thread(target=share.settle)
    caller.start()
    caller.join(0.05)
    assert caller.is_alive()
    leave.set()
    caller.join(30)
    helper.join(30)
    assert share.left
    share.settle()


def run_script(code: str, **environment: str) -> str:
    """What a fresh process prints; it must end well."""
    preamble = """
import os, signal, sys, threading, time
import numpy as np
from rootdk import machine
from rootdk.runtime import openmp, threads
from rootdk.runtime.cache import KernelCache, Source
from rootdk.runtime.store import Store
from sample_kernels import COUNT
signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts in the background inherits that it is ignored
COUNTER = KernelCache(Store(None)).get(Source("count", lambda: COUNT, ("count",)), machine.host())["count"]

def run_count(tasks, rounds, number):
    done = np.zeros(tasks, dtype=np.int64)
    context = np.array([0, tasks, done.ctypes.data, rounds], dtype=np.int64)
    threads.run(COUNTER, context.ctypes.data, number)
    return (done == 1).all()
"""
    done = subprocess.run(
        [sys.executable, "-c", preamble + code],
        cwd=Path(__file__).parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_helpers_are_in_the_kernel_together_with_the_caller():
    # In a process of its own: here, a helper that an earlier test's call no longer wanted may not be back yet.
    code = """
together = threading.Barrier(3)
names = []

def kernel(context):
    together.wait(60)
    names.append(threading.current_thread().name)

threads._run_on_helpers(kernel, 0, 2)
print(*sorted(names))
"""
    assert run_script(code) == "MainThread rootdk rootdk"


FORK = """
assert run_count(8, 1000, 2)
for _ in range(3):
    child = os.fork()
    if child == 0:
        ok = all(run_count(8, 1000, 3) for _ in range(20)) and openmp.parallel() is None
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert run_count(8, 1000, 2)
print("fine")
"""


def test_after_fork(own_pool):
    assert run_script(FORK) == "fine"


def test_after_fork_with_openmp():
    pytest.importorskip("torch")
    assert run_script("import torch\ntorch.ones(300, 300) @ torch.ones(300, 300)\n" + FORK) == "fine"


INTERRUPT = """
def interrupt(context):
    while context[0] == 0:  # nobody has taken a task yet
        time.sleep(0.001)
    for _ in range(2):
        time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

for _ in range(3):
    tasks = 40
    done = np.zeros(tasks, dtype=np.int64)
    context = np.array([0, tasks, done.ctypes.data, 20_000_000], dtype=np.int64)
    sender = threading.Thread(target=interrupt, args=(context,))
    sender.start()
    try:
        threads.run(COUNTER, context.ctypes.data, 2)
        print("not interrupted")
    except KeyboardInterrupt:
        assert (done == 1).all()  # so nobody is left in the kernel
    sender.join()
    assert run_count(8, 100, 2)
print("fine")
"""


def test_ctrl_c_is_raised_after_the_last_thread_has_left():
    assert run_script(INTERRUPT) == "fine"


def test_ctrl_c_with_openmp():
    pytest.importorskip("torch")
    assert run_script("import torch\n" + INTERRUPT) == "fine"


def test_an_interrupt_while_waiting_for_a_helper_waits_on():
    code = """
inside, leave = threading.Event(), threading.Event()

def kernel(context):
    if threading.current_thread() is threading.main_thread():
        inside.wait()
        return
    inside.set()
    leave.wait()

def interrupt():
    inside.wait()
    for _ in range(3):
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)
    leave.set()

threading.Thread(target=interrupt).start()
try:
    threads._run_on_helpers(kernel, 0, 1)
except KeyboardInterrupt:
    assert leave.is_set()
    print("fine")
"""
    assert run_script(code) == "fine"


def test_at_interpreter_exit():
    code = """
import atexit
atexit.register(lambda: print("fine" if run_count(8, 1000, 3) else "wrong"))
assert run_count(8, 1000, 2)
"""
    assert run_script(code) == "fine"


def test_openmp_is_used_once_torch_is_there():
    pytest.importorskip("torch")
    code = """
assert openmp.parallel() is None
assert run_count(8, 1000, 2)
import torch
assert openmp.parallel() is not None
helpers = threading.active_count()
assert all(run_count(100, 500, number) for number in (1, 2, 3) for _ in range(50))
assert threading.active_count() == helpers
print("fine")
"""
    assert run_script(code) == "fine"


def test_the_machine_code_of_openmp_callers_from_many_threads():
    pytest.importorskip("torch")
    code = """
import torch
wrong = []

def caller():
    for _ in range(30):
        if not run_count(20, 500, 2):
            wrong.append(1)

callers = [threading.Thread(target=caller) for _ in range(4)]
for each in callers:
    each.start()
for each in callers:
    each.join()
print("wrong" if wrong else "fine")
"""
    assert run_script(code) == "fine"


@pytest.fixture
def unset(monkeypatch):
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(rootdk.config, "config", rootdk.config.Config)
    monkeypatch.setattr(threads, "config", rootdk.config.Config)


def test_the_default_is_the_cores_or_torchs_setting(unset, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert threads.get_num_threads() == machine.cores()

    class Torch:
        @staticmethod
        def get_num_threads():
            return 5

    monkeypatch.setitem(sys.modules, "torch", Torch)
    assert threads.get_num_threads() == 5


def test_the_environment_comes_before_torch_and_a_choice_before_both(unset, monkeypatch):
    monkeypatch.setattr(threads, "config", lambda: rootdk.config.Config(num_threads=3))
    assert threads.get_num_threads() == 3
    threads.set_num_threads(np.int64(2))
    assert threads.get_num_threads() == 2
    assert type(threads.get_num_threads()) is int


@pytest.mark.parametrize("wrong", [0, -1, 1.0, "2", None, True, float("nan")])
def test_wrong_counts_are_refused(unset, wrong):
    with pytest.raises(ArgumentError, match="count: expected an integer of at least 1, got"):
        threads.set_num_threads(wrong)
    assert threads.get_num_threads() >= 1


def test_the_process_has_one_cache():
    assert cache.kernels() is cache.kernels()
