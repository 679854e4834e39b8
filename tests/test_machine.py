"""Targets: which preset a machine gets, what it may use, and how it is described."""

import platform
import subprocess
import sys

import pytest

from rootdk import config, machine
from rootdk.errors import ArgumentError
from rootdk.machine import AVX2, AVX512, NEON, PRESETS, SSE

BASELINE = frozenset({"fpu", "sse", "sse2"})
HASWELL = BASELINE | machine._NEEDS["avx2"]
SKYLAKE = BASELINE | machine._NEEDS["avx512"]


def test_lanes_are_vector_bytes_over_element_bytes():
    assert [AVX512.lanes(4), AVX2.lanes(4), SSE.lanes(4), NEON.lanes(4)] == [16, 8, 4, 4]
    assert [AVX512.lanes(8), AVX2.lanes(2)] == [8, 16]


@pytest.mark.parametrize(
    ("architecture", "features", "expected"),
    [
        ("x86_64", SKYLAKE, "avx512"),
        ("x86_64", SKYLAKE - {"avx512vl"}, "avx2"),
        ("x86_64", HASWELL, "avx2"),
        ("x86_64", HASWELL - {"fma"}, "sse"),
        ("x86_64", HASWELL - {"f16c"}, "sse"),
        ("x86_64", BASELINE, "sse"),
        ("aarch64", frozenset({"neon", "fp"}), "neon"),
    ],
)
def test_native_is_the_widest_preset_whose_every_instruction_the_machine_has(architecture, features, expected):
    chosen = machine.choose("native", architecture, features)
    assert chosen.name == expected
    assert chosen.triple.startswith(architecture)


@pytest.mark.parametrize("wanted", ["avx2", "sse"])
def test_a_narrower_preset_can_be_asked_for(wanted):
    assert machine.choose(wanted, "x86_64", SKYLAKE).name == wanted


@pytest.mark.parametrize(
    ("wanted", "architecture", "features", "message"),
    [
        ("avx512", "x86_64", HASWELL, "cannot run 'avx512', it lacks avx512bw, .*; expected one of native, avx2, sse"),
        ("avx2", "x86_64", HASWELL - {"fma"}, "cannot run 'avx2', it lacks fma; expected one of native, sse"),
        ("neon", "x86_64", SKYLAKE, "cannot run 'neon', it lacks aarch64; expected one of native, avx512, avx2, sse"),
        ("native", "riscv64", frozenset(), "no kernels for this machine's architecture, riscv64"),
    ],
)
def test_what_the_machine_lacks_is_refused(wanted, architecture, features, message):
    with pytest.raises(ArgumentError, match=message):
        machine.choose(wanted, architecture, features)


def test_presets_and_environment_agree_on_the_names():
    assert {"native", *PRESETS} == set(config.TARGETS)


def test_detection_agrees_with_llvm():
    from llvmlite.binding import get_host_cpu_features

    known = get_host_cpu_features()
    for need in set().union(*machine._NEEDS.values()):
        if need in known:
            assert (need in machine.host_features()) == known[need], need


@pytest.mark.skipif(platform.machine() != "x86_64", reason="another architecture's preset")
def test_the_environment_overrides_detection():
    code = "from rootdk.machine import host; print(host().name)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"ROOTDK_TARGET": "sse"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "sse"


def test_describing_the_machine_does_not_load_llvm():
    code = "import sys; from rootdk import machine; machine.host(); print('llvmlite' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sys.platform != "linux" or done.stdout.strip() == "False"


def test_caches_and_cores_are_plausible():
    caches = machine.caches()
    assert 8 << 10 <= caches.l1 <= caches.l2 <= 256 << 20
    assert machine.cores() >= 1
