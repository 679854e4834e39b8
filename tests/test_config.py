"""Environment variables: what is accepted, and what each wrong value is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rootdk.config import Config, read
from rootdk.errors import ArgumentError


def test_empty_environment_gives_the_defaults():
    assert read({}) == Config(num_threads=None, cache_dir=None, cache=True, target="native")
    assert (
        read(dict.fromkeys(("ROOTDK_NUM_THREADS", "ROOTDK_CACHE_DIR", "ROOTDK_CACHE", "ROOTDK_TARGET"), "")) == Config()
    )


def test_values_are_typed(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    settings = read(
        {
            "ROOTDK_NUM_THREADS": " 3 ",
            "ROOTDK_CACHE_DIR": "~/kernels",
            "ROOTDK_CACHE": "OFF",
            "ROOTDK_TARGET": "AVX2",
        }
    )
    assert settings == Config(3, Path("/home/someone/kernels"), False, "avx2")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ROOTDK_NUM_THREADS", "0", "ROOTDK_NUM_THREADS: expected an integer of at least 1, got '0'"),
        ("ROOTDK_NUM_THREADS", "-2", "ROOTDK_NUM_THREADS: expected an integer of at least 1, got '-2'"),
        ("ROOTDK_NUM_THREADS", "two", "ROOTDK_NUM_THREADS: expected an integer of at least 1, got 'two'"),
        ("ROOTDK_NUM_THREADS", "2.0", "ROOTDK_NUM_THREADS: expected an integer of at least 1, got '2.0'"),
        ("ROOTDK_CACHE", "maybe", "ROOTDK_CACHE: expected one of on, 1, true, off, 0, false, got 'maybe'"),
        ("ROOTDK_TARGET", "gpu", "ROOTDK_TARGET: expected one of native, avx512, avx2, sse, neon, got 'gpu'"),
    ],
)
def test_wrong_values_are_refused_with_the_valid_ones(variable, value, message):
    with pytest.raises(ArgumentError) as caught:
        read({variable: value})
    assert message in str(caught.value)


def test_every_variable_is_in_the_table_of_the_documentation():
    root = Path(__file__).parent.parent
    documented = (root / "docs" / "env_vars.md").read_text()
    source = (root / "rootdk" / "config.py").read_text()
    for variable in ("ROOTDK_NUM_THREADS", "ROOTDK_CACHE_DIR", "ROOTDK_CACHE", "ROOTDK_TARGET"):
        assert f'"{variable}"' in source
        assert f"`{variable}`" in documented


def test_a_wrong_value_does_not_stop_the_import():
    done = subprocess.run(
        [sys.executable, "-c", "import rootdk, rootdk.config"], env={**os.environ, "ROOTDK_TARGET": "gpu"}, check=False
    )
    assert done.returncode == 0
