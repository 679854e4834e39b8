"""What commands share: where results and progress go."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Tick", "emit_json", "progress"]


class Tick(Protocol):
    """Told what is being done, and how many of how many steps are."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


@contextmanager
def progress() -> Iterator[Tick]:
    """A bar on standard error that is gone when the work is done; silent where nobody watches."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def emit_json(value: Any) -> None:
    """Print ``value`` as JSON on standard output."""
    print(json.dumps(value, indent=2))
