"""Nothing is read or written outside the arrays given."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected through Linux's C library")
def test_nothing_outside_the_arrays_is_touched() -> None:
    script = Path(__file__).with_name("guard_pages.py")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    last = run.stdout.splitlines()[-1:]
    assert run.returncode == 0, f"after {last}: {run.stderr}"
    assert last == ["done"]
