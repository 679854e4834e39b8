"""Text that every machine has: the sources of some of Python's own modules, cut into batches of characters."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["VOCABULARY", "batches", "text"]

VOCABULARY = 128
"""ASCII; any other character becomes a question mark."""

# Rich in prose, and single files in every Python since 3.11.
_MODULES = (
    *("_pydecimal", "argparse", "ast", "calendar", "codecs", "configparser", "csv", "difflib", "doctest", "enum"),
    *("fractions", "functools", "heapq", "inspect", "ipaddress", "locale", "mailbox", "optparse", "pdb", "pickle"),
    *("pickletools", "random", "shutil", "smtplib", "socket", "statistics", "subprocess", "tarfile", "tempfile"),
    *("textwrap", "threading", "tokenize", "traceback", "turtle", "typing", "uuid"),
)


def text() -> Tensor:
    """About two million characters as numbers below ``VOCABULARY``, int64 [characters]."""
    folder = Path(sysconfig.get_path("stdlib"))
    source = "\n".join((folder / f"{module}.py").read_text(encoding="utf-8") for module in _MODULES)
    return torch.tensor(list(source.encode("ascii", "replace")))


def batches(characters: Tensor, batch: int, context: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (inputs, targets), each [batch, context]: pieces from random places, and the same one character on."""
    random = torch.Generator().manual_seed(seed)
    window = torch.arange(context + 1)
    while True:
        starts = torch.randint(len(characters) - context, (batch, 1), generator=random)
        pieces = characters[starts + window]
        yield pieces[:, :-1], pieces[:, 1:]
