"""Every environment variable that rootdk reads: once, validated, typed. The table for users is docs/env_vars.md."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rootdk.errors import ArgumentError

__all__ = ["TARGETS", "Config", "config", "read"]

TARGETS = ("native", "avx512", "avx2", "sse", "neon")
_SWITCH = {"on": True, "1": True, "true": True, "off": False, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class Config:
    """What the environment asks for; None where it says nothing."""

    num_threads: int | None = None
    cache_dir: Path | None = None
    cache: bool = True
    target: str = "native"


def read(environment: Mapping[str, str]) -> Config:
    """The settings in ``environment``; an empty value counts as not set.

    Raises:
        ArgumentError: a value that makes no sense; the message lists the valid ones.

    >>> read({"ROOTDK_NUM_THREADS": "4"}).num_threads
    4
    """
    threads = environment.get("ROOTDK_NUM_THREADS", "").strip()
    folder = environment.get("ROOTDK_CACHE_DIR", "").strip()
    switch = environment.get("ROOTDK_CACHE", "").strip().lower() or "on"
    target = environment.get("ROOTDK_TARGET", "").strip().lower() or "native"
    if threads and not (threads.isascii() and threads.isdigit() and int(threads) > 0):
        raise _invalid("ROOTDK_NUM_THREADS", threads, "an integer of at least 1")
    if switch not in _SWITCH:
        raise _invalid("ROOTDK_CACHE", switch, f"one of {', '.join(_SWITCH)}")
    if target not in TARGETS:
        raise _invalid("ROOTDK_TARGET", target, f"one of {', '.join(TARGETS)}")
    return Config(
        num_threads=int(threads) if threads else None,
        cache_dir=Path(folder).expanduser().absolute() if folder else None,
        cache=_SWITCH[switch],
        target=target,
    )


@cache
def config() -> Config:
    """The settings of this process, read from its environment on the first call."""
    return read(os.environ)


def _invalid(variable: str, value: str, expected: str) -> ArgumentError:
    return ArgumentError(f"environment variable {variable}: expected {expected}, got {value!r}; correct it or unset it")
