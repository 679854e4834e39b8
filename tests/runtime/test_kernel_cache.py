"""Kernels by key: what is compiled, what is found, and how much is kept."""

import dataclasses
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sample_kernels import SQUARE, SQUARES, square

from rootdk import machine
from rootdk.runtime import cache, compiler
from rootdk.runtime.cache import Counters, KernelCache, Source
from rootdk.runtime.store import Store, _name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def get(kernels: KernelCache, key: str = "square"):
    return kernels.get(Source(key, lambda: SQUARE, ("square",)), machine.host())


def no_build() -> str:
    raise AssertionError("compiled again")


NOT_AGAIN = Source("square", no_build, ("square",))


def test_compiled_once_then_found_in_memory_then_on_disk(folder):
    kernels = KernelCache(Store(folder))
    first = get(kernels)
    assert kernels.get(NOT_AGAIN, machine.host()) is first
    assert kernels.counters() == Counters(compilations=1, disk_hits=0, memory_hits=1)
    fresh = KernelCache(Store(folder))
    again = fresh.get(NOT_AGAIN, machine.host())
    assert fresh.counters() == Counters(compilations=0, disk_hits=1, memory_hits=0)
    assert square(again["square"]) == SQUARES
    assert len(fresh.show()) == 1


def test_everything_that_shapes_the_code_is_in_the_key(monkeypatch):
    host = machine.host()

    def digest(key="a", target=host, entries=("f",), functions=()):
        return cache._digest(Source(key, no_build, entries, functions), target)

    seen = {digest(), digest(key="b"), digest(entries=("g",)), digest(entries=("f", "g")), digest(functions=("f",))}
    for field in dataclasses.fields(host):
        changed = {str: "x", int: 1, bool: not getattr(host, field.name)}[field.type]
        seen.add(digest(target=dataclasses.replace(host, **{field.name: changed})))
    monkeypatch.setattr(compiler, "llvm_version", lambda: "LLVM 99")
    seen.add(digest())
    monkeypatch.setattr(cache, "_sources", lambda: "edited")
    seen.add(digest())
    assert len(seen) == 5 + len(dataclasses.fields(host)) + 2


@pytest.mark.parametrize("damage", [lambda content: content[:100], lambda content: b"", lambda content: content[::-1]])
def test_a_damaged_file_is_compiled_again_and_rewritten(folder, damage):
    get(KernelCache(Store(folder)))
    (file,) = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    kernels = KernelCache(Store(folder))
    assert square(get(kernels)["square"]) == SQUARES
    assert kernels.counters().compilations == 1
    healed = KernelCache(Store(folder))
    get(healed)
    assert healed.counters() == Counters(disk_hits=1)


def test_works_without_a_disk(tmp_path):
    (tmp_path / "file").write_text("")
    for store in (Store(None), Store(tmp_path / "file" / "kernels")):
        kernels = KernelCache(store)
        assert square(get(kernels)["square"]) == SQUARES
        assert not kernels.status().writes


def test_memory_is_bounded_and_a_kernel_in_use_outlives_its_eviction(folder):
    kernels = KernelCache(Store(folder), capacity=4)
    address = get(kernels, "first")["square"]
    for number in range(10):
        get(kernels, f"key {number}")
    assert len(kernels._memory) == 4
    assert square(address) == SQUARES
    before = kernels.counters()
    get(kernels, "first")
    assert kernels.counters().disk_hits == before.disk_hits + 1


def test_the_least_recently_used_kernel_is_evicted():
    kernels = KernelCache(Store(None), capacity=2)
    get(kernels, "a")
    get(kernels, "b")
    get(kernels, "a")
    get(kernels, "c")
    assert {key for key, _ in kernels._memory} == {"a", "c"}


DOUBLE = """
define void @double(ptr %data) {
  %x = load <16 x float>, ptr %data, align 4
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %data, align 4
  ret void
}
"""
CALLS_DOUBLE = """
declare void @double(ptr)
define void @square(ptr %context) {
  %data = load ptr, ptr %context
  call void @double(ptr %data)
  ret void
}
"""
DOUBLED = [2.0 * x for x in range(16)]


def caller(key: str) -> Source:
    libraries = (Source("double", lambda: DOUBLE, functions=("double",)),)
    return Source(key, lambda: CALLS_DOUBLE, ("square",), libraries=libraries)


def test_kernels_share_a_library_that_is_built_once(folder):
    kernels, builds = KernelCache(Store(folder)), []

    def build() -> str:
        builds.append(1)
        return DOUBLE

    for key in ("a", "b"):
        source = dataclasses.replace(caller(key), libraries=(Source("double", build, functions=("double",)),))
        assert square(kernels.get(source, machine.host())["square"]) == DOUBLED
    assert len(builds) == 1
    assert kernels.counters() == Counters(compilations=2)
    assert len(kernels.show()) == 3


def test_a_library_lives_as_long_as_a_kernel_that_calls_it():
    kernels = KernelCache(Store(None), capacity=1)
    address = kernels.get(caller("a"), machine.host())["square"]
    for number in range(3):
        get(kernels, f"key {number}")
    gc.collect()
    assert len(kernels._memory) == 1
    assert square(address) == DOUBLED


def test_a_library_that_is_gone_from_disk_is_built_again(folder):
    kernels = KernelCache(Store(folder))
    kernels.get(caller("a"), machine.host())
    (folder / _name(cache._digest(caller("a").libraries[0], machine.host()))).unlink()
    fresh = KernelCache(Store(folder))
    assert square(fresh.get(caller("a"), machine.host())["square"]) == DOUBLED
    assert fresh.counters() == Counters(disk_hits=1)


def test_a_library_that_is_missing_is_a_compile_error_and_nothing_stays_locked(folder):
    kernels = KernelCache(Store(folder))
    with pytest.raises(compiler.CompileError, match="loading machine code failed"):
        kernels.get(dataclasses.replace(caller("a"), libraries=()), machine.host())
    assert not kernels._turns
    assert square(kernels.get(caller("a"), machine.host())["square"]) == DOUBLED


def test_a_failing_build_passes_through_and_can_be_repeated(folder):
    kernels = KernelCache(Store(folder))
    with pytest.raises(AssertionError, match="compiled again"):
        kernels.get(NOT_AGAIN, machine.host())
    assert square(get(kernels)["square"]) == SQUARES


def test_clear_forgets_memory_and_disk(folder):
    kernels = KernelCache(Store(folder))
    get(kernels)
    assert len(kernels.clear()) == 1
    get(kernels)
    assert kernels.counters().compilations == 2


def test_many_threads_compile_a_key_once_and_other_keys_go_on():
    kernels = KernelCache(Store(None))
    started, release = threading.Event(), threading.Event()
    builds = []

    def slow_build():
        builds.append(1)
        started.set()
        assert release.wait(30)
        return SQUARE

    def ask(found):
        found.append(kernels.get(Source("slow", slow_build, ("square",)), machine.host()))

    found: list = []
    threads = [threading.Thread(target=ask, args=(found,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    assert square(get(kernels, "other")["square"]) == SQUARES  # while "slow" is being built
    release.set()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert len(set(map(id, found))) == 1
    assert not kernels._turns


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_during_a_build_leaves_a_child_that_can_build():
    code = """
import os, threading
from rootdk import machine
from rootdk.runtime.cache import KernelCache, Source
from rootdk.runtime.store import Store
from sample_kernels import SQUARE, SQUARES, square
kernels = KernelCache(Store(None))
started = threading.Event()

def never_ending_build():
    started.set()
    threading.Event().wait()

def get(build):
    return kernels.get(Source("square", build, ("square",)), machine.host())

threading.Thread(target=get, args=(never_ending_build,), daemon=True).start()
started.wait()
child = os.fork()
if child == 0:
    os._exit(0 if square(get(lambda: SQUARE)["square"]) == SQUARES else 1)
os._exit(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, timeout=60, check=False)
    assert done.returncode == 0


def test_two_processes_at_once_agree(folder):
    code = """
from rootdk import machine
from rootdk.runtime.cache import Source, kernels
from sample_kernels import SQUARE, SQUARES, square
for number in range(20):
    kernel = kernels().get(Source(f"key {number}", lambda: SQUARE, ("square",)), machine.host())
    assert square(kernel["square"]) == SQUARES
counters = kernels().counters()
assert counters.compilations + counters.disk_hits == 20
assert kernels().status().reason is None
"""
    environment = {**os.environ, "ROOTDK_CACHE_DIR": str(folder)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment) for _ in range(2)
    ]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert len(list(folder.iterdir())) == 20


def test_a_process_restricted_to_the_baseline_compiles_runs_and_keeps_its_own_kernels(folder):
    if "x86_64" not in machine.host().triple:
        pytest.skip("another architecture's preset")
    code = """
from rootdk import machine
from rootdk.runtime.cache import Source, kernels
from sample_kernels import SQUARE, SQUARES, square
kernel = kernels().get(Source("square", lambda: SQUARE, ("square",)), machine.host())
assert square(kernel["square"]) == SQUARES
print(machine.host().name, kernels().counters().compilations)
"""
    for target, compilations in (("sse", 1), ("native", int(machine.host().name != "sse")), ("sse", 0)):
        environment = {**os.environ, "ROOTDK_CACHE_DIR": str(folder), "ROOTDK_TARGET": target}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
        )
        name = machine.choose(target, "x86_64", machine.host_features()).name
        assert done.stdout.split() == [name, str(compilations)], done.stderr
