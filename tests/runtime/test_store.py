"""The folder of compiled kernels: damage, crashes, other writers, other users, and no folder at all."""

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rootdk.errors import CacheError
from rootdk.runtime import store
from rootdk.runtime.store import Store

DIGEST = bytes(range(32))
OTHER = bytes(32)
IMAGE = b"object code " * 100

as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files to another user")
not_as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "below" / "kernels"


@pytest.fixture
def kept(folder: Path) -> Path:
    """A file with IMAGE in it."""
    Store(folder).write(DIGEST, IMAGE)
    (file,) = folder.iterdir()
    return file


def test_what_is_written_is_read_by_another_process(folder):
    Store(folder).write(DIGEST, IMAGE)
    assert Store(folder).read(DIGEST) == IMAGE
    assert Store(folder).read(OTHER) is None
    assert Store(folder).status() == store.Status(folder, reads=True, writes=True, reason=None)


def test_folder_and_files_are_for_their_owner_alone(folder, kept):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


@pytest.mark.parametrize("size", [0, 1, 40, 79, 80, 81, -1])
def test_a_truncated_file_is_a_miss_and_is_replaced(folder, kept, size):
    kept.write_bytes(kept.read_bytes()[:size])
    assert Store(folder).read(DIGEST) is None
    Store(folder).write(DIGEST, IMAGE)
    assert Store(folder).read(DIGEST) == IMAGE


@pytest.mark.parametrize("position", [0, 7, 8, 39, 40, 47, 48, 79, 80, 500, -1])
def test_one_wrong_bit_anywhere_is_a_miss(folder, kept, position):
    content = bytearray(kept.read_bytes())
    content[position] ^= 1
    kept.write_bytes(content)
    assert Store(folder).read(DIGEST) is None


def test_a_longer_file_is_a_miss(folder, kept):
    kept.write_bytes(kept.read_bytes() + b"\0")
    assert Store(folder).read(DIGEST) is None


def test_another_keys_file_under_this_name_is_a_miss(folder, kept):
    kept.rename(folder / store._name(OTHER))
    assert Store(folder).read(OTHER) is None


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: os.mkfifo(path)], ids=["folder", "pipe"])
def test_something_that_is_no_file_is_a_miss(folder, kept, make):
    kept.unlink()
    make(kept)
    assert Store(folder).read(DIGEST) is None


def test_a_link_is_a_miss(folder, kept, tmp_path):
    kept.rename(tmp_path / "elsewhere")
    kept.symlink_to(tmp_path / "elsewhere")
    assert Store(folder).read(DIGEST) is None


@as_root
def test_a_folder_of_another_user_is_refused(folder, kept):
    os.chown(folder, 12345, -1)
    refused = Store(folder)
    assert refused.read(DIGEST) is None
    refused.write(OTHER, IMAGE)
    assert list(folder.iterdir()) == [kept]
    status = refused.status()
    assert not status.reads
    assert not status.writes
    assert "belongs to user 12345, not to 0" in status.reason
    with pytest.raises(CacheError, match="belongs to user 12345"):
        refused.entries()
    with pytest.raises(CacheError, match="belongs to user 12345"):
        refused.clear()


@as_root
def test_a_file_of_another_user_is_a_miss(folder, kept):
    os.chown(kept, 12345, -1)
    assert Store(folder).read(DIGEST) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720])
def test_a_folder_that_others_can_write_is_refused(folder, kept, mode):
    folder.chmod(mode)
    refused = Store(folder)
    assert refused.read(DIGEST) is None
    assert f"can be written by others (mode {mode:o})" in refused.status().reason


def test_a_file_that_others_can_write_is_a_miss(folder, kept):
    kept.chmod(0o666)
    assert Store(folder).read(DIGEST) is None


def test_a_missing_folder_is_a_miss(folder):
    assert Store(folder).read(DIGEST) is None
    assert Store(folder).entries() == ()
    assert Store(folder).clear() == ()
    assert not folder.exists()


def test_a_folder_that_disappears_is_made_again(folder):
    kernels = Store(folder)
    kernels.write(DIGEST, IMAGE)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert kernels.read(DIGEST) is None
    kernels.write(DIGEST, IMAGE)
    assert kernels.read(DIGEST) == IMAGE


def test_a_place_that_cannot_become_a_folder_is_remembered(tmp_path):
    (tmp_path / "file").write_text("")
    kernels = Store(tmp_path / "file" / "kernels")
    assert kernels.read(DIGEST) is None
    kernels.write(DIGEST, IMAGE)
    assert not kernels.status().writes
    assert "cannot be read: Not a directory" in kernels.status().reason


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_write_that_fails_is_not_tried_again_and_leaves_nothing(folder, kept, monkeypatch, code):
    calls = []

    def fail(*_args, **_options):
        calls.append(code)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store.os, "replace", fail)
    kernels = Store(folder)
    kernels.write(OTHER, IMAGE)
    kernels.write(OTHER, IMAGE)
    assert len(calls) == 1
    assert list(folder.iterdir()) == [kept]
    assert os.strerror(code) in kernels.status().reason
    assert kernels.status().reads
    assert kernels.read(DIGEST) == IMAGE


@not_as_root
def test_a_read_only_folder_is_read(folder, kept):
    folder.chmod(0o500)
    kernels = Store(folder)
    assert kernels.read(DIGEST) == IMAGE
    kernels.write(OTHER, IMAGE)
    assert not kernels.status().writes


@as_root
def test_a_user_who_may_not_write_works_without(tmp_path):
    """In a process of another user, for root may write anywhere."""
    tmp_path.chmod(0o755)
    code = f"""
import os
from pathlib import Path
from rootdk.runtime.store import Store
kernels = Store(Path({str(tmp_path)!r}) / "kernels")
os.setuid(12345)
kernels.write(bytes(32), b"image")
print(kernels.read(bytes(32)), kernels.status())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("None Status(")
    assert "writes=False" in done.stdout
    assert "cannot be written: Permission denied" in done.stdout


def test_no_home_is_said_so():
    kernels = Store(Path("~/.cache/rootdk"))
    kernels.write(DIGEST, IMAGE)
    assert kernels.read(DIGEST) is None
    assert "no home folder" in kernels.status().reason


def test_switched_off_is_said_so():
    kernels = Store(None)
    kernels.write(DIGEST, IMAGE)
    assert kernels.read(DIGEST) is None
    assert kernels.status().reason == "ROOTDK_CACHE is off"
    with pytest.raises(CacheError, match="ROOTDK_CACHE is off"):
        kernels.entries()


def test_the_least_recently_used_files_make_room(folder):
    size = store._HEADER.size + len(IMAGE)
    kernels = Store(folder, limit=3 * size)
    for number in range(3):
        kernels.write(bytes([number] * 32), IMAGE)
        os.utime(folder / store._name(bytes([number] * 32)), (1000 + number, 1000 + number))
    assert kernels.read(bytes([0] * 32)) == IMAGE  # the oldest, now used again
    kernels.write(bytes([3] * 32), IMAGE)
    held = [number for number in range(4) if kernels.read(bytes([number] * 32))]
    assert held == [0, 2, 3]
    assert sum(entry.size for entry in kernels.entries()) <= 3 * size


def test_what_a_crashed_writer_left_is_cleared_away(folder, kept):
    old, fresh = folder / f"{kept.name}.1.1", folder / f"{kept.name}.1.2"
    for draft in (old, fresh):
        draft.write_bytes(b"half a ker")
    long_ago = time.time() - 2 * store._STALE_SECONDS
    os.utime(old, (long_ago, long_ago))
    Store(folder).write(OTHER, IMAGE)
    assert not old.exists()
    assert fresh.exists()


def test_clearing_takes_our_files_only(folder, kept):
    (folder / "notes.txt").write_text("mine")
    (cleared,) = Store(folder).clear()
    assert cleared.name == kept.name
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_two_processes_write_and_read_at_once(folder):
    code = f"""
from pathlib import Path
from rootdk.runtime.store import Store
kernels = Store(Path({str(folder)!r}))
images = [bytes([number]) * 200_000 for number in range(4)]
for round in range(100):
    for number, image in enumerate(images):
        found = kernels.read(bytes([number] * 32))
        assert found in (None, image)
        kernels.write(bytes([number] * 32), image)
assert kernels.status().reason is None, kernels.status()
"""
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert len(Store(folder).entries()) == 4


def test_the_default_folder_is_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    if sys.platform == "linux":
        assert store.default_folder() == Path("/somewhere/rootdk")
