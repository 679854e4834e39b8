"""Compiled kernels in a folder on disk, trusted only where nobody else could have written them.

A file is a header and object code. The header carries the digest of the key, the length and a checksum, so a file that
is cut short, damaged, or another key's is a miss like an absent one, and gets written anew.
"""

import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rootdk.errors import CacheError

__all__ = ["Entry", "Status", "Store", "default_folder"]

_MAGIC = b"rootdk\x00\x01"
_HEADER = struct.Struct("<8s32sQ32s")
_SUFFIX = ".kernel"
_STALE_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Status:
    """Whether kernels are kept on disk, and where or why not."""

    folder: Path | None
    reads: bool
    writes: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its name, bytes, and when it was last used (seconds since 1970)."""

    name: str
    size: int
    used: float


class Store:
    """Object code by the digest of its key, in one folder, at most ``limit`` bytes of it.

    Nothing here raises towards a caller who only wants a kernel: what cannot be read is a miss, what cannot be written
    is not kept, and the reason is remembered in ``status`` and not tried again.
    """

    def __init__(self, folder: Path | None, limit: int = 256 << 20) -> None:
        self._folder = folder
        self._limit = limit
        self._reads = self._writes = folder is not None
        self._reason: str | None = None if folder else "ROOTDK_CACHE is off"
        if folder and not folder.is_absolute():
            self._refuse(f"there is no home folder to keep {folder} in; set ROOTDK_CACHE_DIR")
        elif not hasattr(os, "geteuid") or os.open not in os.supports_dir_fd:
            self._refuse("this system has no way to tell that a folder is ours alone")

    def status(self) -> Status:
        """What is known so far; a folder is looked at when it is first used."""
        return Status(self._folder, self._reads, self._writes, self._reason)

    def read(self, digest: bytes) -> bytes | None:
        """The object code kept under ``digest``, or None."""
        if not self._reads:
            return None
        try:
            with self._opened() as folder:
                return _payload(_read_own(_name(digest), folder), digest)
        except FileNotFoundError:
            return None
        except CacheError as error:
            self._refuse(str(error))
        except OSError as error:
            self._reads = False
            self._reason = self._reason or f"{self._folder} cannot be read: {error.strerror}"
        return None

    def write(self, digest: bytes, image: bytes) -> None:
        """Keep ``image`` under ``digest``, in place of what was there."""
        if not self._writes:
            return
        assert self._folder is not None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened() as folder:
                _replace(_name(digest), _HEADER.pack(*_header(digest, image)) + image, folder)
                self._prune(folder)
        except CacheError as error:
            self._refuse(str(error))
        except OSError as error:
            self._writes = False
            self._reason = self._reason or f"{self._folder} cannot be written: {error.strerror}"

    def entries(self) -> tuple[Entry, ...]:
        """What is kept, the least recently used first.

        Raises:
            CacheError: the folder is not safe to use, or cannot be listed.
        """
        try:
            with self._opened() as folder:
                return tuple(_listed(folder))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CacheError(f"the kernel cache {self._folder} cannot be listed: {error.strerror}") from error

    def clear(self) -> tuple[Entry, ...]:
        """Delete everything that is kept, and say what it was.

        Raises:
            CacheError: the folder is not safe to use, or a file cannot be deleted.
        """
        entries = self.entries()
        try:
            for entry in entries:
                with self._opened() as folder, suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=folder)
        except OSError as error:
            raise CacheError(f"the kernel cache {self._folder} cannot be cleared: {error.strerror}") from error
        return entries

    def _refuse(self, reason: str) -> None:
        self._reads = self._writes = False
        self._reason = reason

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of the folder, after making sure that it is ours alone.

        Files are then opened relative to it: swapping the folder, or one above it, after the check changes nothing.
        """
        if self._folder is None:
            raise CacheError(f"there is no kernel cache on disk: {self._reason}")
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if fault := _fault(os.fstat(descriptor)):
                raise CacheError(f"the kernel cache folder {self._folder} {fault}; use another, or correct its owner")
            yield descriptor
        finally:
            os.close(descriptor)

    def _prune(self, folder: int) -> None:
        """Delete the least recently used files above the limit, and what a crashed writer left behind."""
        entries = list(_listed(folder))
        excess = sum(entry.size for entry in entries) - self._limit
        for entry in entries:
            stale = not entry.name.endswith(_SUFFIX) and time.time() - entry.used > _STALE_SECONDS
            if excess > 0 or stale:
                excess -= entry.size
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=folder)


def default_folder() -> Path:
    """The user's cache folder for rootdk, by the habits of the operating system."""
    from platformdirs import user_cache_path

    return user_cache_path("rootdk", appauthor=False)


def _name(digest: bytes) -> str:
    return digest.hex() + _SUFFIX


def _fault(state: os.stat_result) -> str | None:
    """Why a file or folder could hold someone else's code, or None."""
    if state.st_uid != os.geteuid():
        return f"belongs to user {state.st_uid}, not to {os.geteuid()}"
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(state.st_mode):o})"
    return None


def _header(digest: bytes, image: bytes) -> tuple[bytes, bytes, int, bytes]:
    return _MAGIC, digest, len(image), hashlib.sha256(image).digest()


def _payload(content: bytes | None, digest: bytes) -> bytes | None:
    """The object code in a file's ``content``, or None unless all of the header agrees."""
    if content is None or len(content) < _HEADER.size:
        return None
    image = content[_HEADER.size :]
    return image if _HEADER.unpack_from(content) == _header(digest, image) else None


def _read_own(name: str, folder: int) -> bytes | None:
    """The content of a regular file that only we can write, marked as used; None for any other."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or _fault(state):
            return None
        with suppress(OSError):
            os.utime(descriptor)
        return file.read()


def _replace(name: str, content: bytes, folder: int) -> None:
    """Write a file so that readers see all or nothing; after a power cut the checksum tells, so nothing is synced."""
    draft = f"{name}.{os.getpid()}.{time.monotonic_ns()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def _listed(folder: int) -> list[Entry]:
    """Our files, drafts included, the least recently used first."""
    found = []
    with os.scandir(folder) as items:
        for item in items:
            if _SUFFIX in item.name:
                with suppress(FileNotFoundError):
                    state = item.stat(follow_symlinks=False)
                    found.append(Entry(item.name, state.st_size, state.st_mtime))
    return sorted(found, key=lambda entry: entry.used)
