"""`rootdk bench`: rootdk beside its peers on this machine."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rootdk.bench import report
from rootdk.bench.questions import QUESTIONS, ask
from rootdk.bench.results import Settings
from rootdk.bench.timing import with_threads
from rootdk.cli.output import emit_json, progress

__all__ = ["bench"]

# Typer needs the choices as a type.
QuestionName = StrEnum("QuestionName", {name: name for name in QUESTIONS})  # type: ignore[misc]
_MAIN = QuestionName("forward")


def bench(
    question: Annotated[QuestionName, typer.Argument(help="What to find out.")] = _MAIN,
    peers: Annotated[str | None, typer.Option(help="Whom to compare with, separated by commas.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds; more are steadier.")] = 9,
    threads: Annotated[int | None, typer.Option(help="Cores to use; all by default.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short lengths: shows that it runs, not how fast.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Also draw the result to this .svg or .png file.")] = None,
) -> None:
    """Measure rootdk beside the peers that are installed, in turns, in one process, on the same inputs."""
    if plot:
        report.check_picture(plot)
    with progress() as tick:
        chosen = None if peers is None else tuple(filter(None, map(str.strip, peers.split(","))))
        result = ask(question.value, Settings(with_threads(threads), rounds, quick, chosen, tick))
    if plot:
        report.plot(result, plot)
    if as_json:
        emit_json(result.as_json())
        return
    console = Console()
    console.print(report.table(result))
    for line in report.footnotes(result):
        console.print(line, style="dim", markup=False, highlight=False)
    if plot:
        console.print(f"picture: {plot}", markup=False, highlight=False)
