"""`rootdk cache`: the compiled kernels on disk, and the libraries that they share."""

import time
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import rootdk
from rootdk.cli.output import emit_json, progress
from rootdk.dtypes import BFLOAT16, BFLOAT16_BITS, FLOATS
from rootdk.errors import ArgumentError
from rootdk.runtime.cache import kernels

__all__ = ["cache"]

cache = typer.Typer(help="Show, warm or clear the compiled kernels on disk.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_NAMES = tuple(dtype.name for dtype in FLOATS)


@cache.command()
def show(as_json: JsonOption = False) -> None:
    """List what is on disk, kernels and the libraries that they share, and say where, or why nothing is kept."""
    store = kernels()
    status = store.status()
    entries = store.show() if status.reads else ()
    total = sum(entry.size for entry in entries)
    if as_json:
        emit_json(
            {
                "folder": str(status.folder) if status.folder else None,
                "reads": status.reads,
                "writes": status.writes,
                "reason": status.reason,
                "bytes": total,
                "files": [{"name": entry.name, "bytes": entry.size, "used": entry.used} for entry in entries],
            }
        )
        return
    console = Console()
    if entries:
        table = Table(header_style="bold")
        table.add_column("file")
        table.add_column("size", justify="right")
        table.add_column("last used", justify="right")
        for entry in entries:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            table.add_row(entry.name[:16], f"{entry.size / 1024:.0f} KiB", used)
        console.print(table)
    console.print(f"{len(entries)} files, {total / 1024:.0f} KiB, in {status.folder}", markup=False, highlight=False)
    if status.reason:
        console.print(status.reason, style="yellow", markup=False)


@cache.command()
def warm(
    dtype: Annotated[list[str] | None, typer.Option(help="Element types; all by default.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile plain and causal attention ahead of the first call, and the libraries that other masks share."""
    wanted = dtype or list(_NAMES)
    for name in wanted:
        if name not in _NAMES:
            raise ArgumentError(f"--dtype: expected one of {', '.join(_NAMES)}, got {name!r}")
    work = [(name, mask) for name in wanted for mask in (None, rootdk.causal())]
    before = kernels().counters()
    with progress() as tick:
        for done, (name, mask) in enumerate(work):
            tick(name, done, len(work))
            array = np.zeros((1, 1, 64, 64), BFLOAT16_BITS if name == BFLOAT16.name else name)
            rootdk.attention(array, array, array, mask=mask)
    after = kernels().counters()
    compiled, loaded = after.compilations - before.compilations, after.disk_hits - before.disk_hits
    if as_json:
        emit_json({"compiled": compiled, "on_disk": loaded})
    else:
        print(f"compiled {compiled} kernels; {loaded} were on disk already")


@cache.command()
def clear(as_json: JsonOption = False) -> None:
    """Remove every kernel and library from disk."""
    removed = kernels().clear()
    total = sum(entry.size for entry in removed)
    if as_json:
        emit_json({"removed": len(removed), "bytes": total})
    else:
        print(f"removed {len(removed)} files, {total / 1024:.0f} KiB")
