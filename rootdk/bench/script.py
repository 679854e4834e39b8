"""The command line that every script of benchmarks/ has: --json, --threads, --rounds, --quick."""

import argparse
import json

from rich.console import Console

from rootdk.bench import report
from rootdk.bench.questions import QUESTIONS, ask
from rootdk.bench.results import Settings
from rootdk.bench.timing import with_threads
from rootdk.errors import RootdkError

__all__ = ["main"]


def main(question: str) -> None:
    """Answer one question on the terminal, or as JSON on standard output."""
    parser = argparse.ArgumentParser(description=QUESTIONS[question].title)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--threads", type=int, help="cores to use (default: all)")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: 9)")
    parser.add_argument("--quick", action="store_true", help="short lengths: shows that it runs, not how fast")
    parser.add_argument("--peers", help="names separated by commas, instead of the usual ones")
    arguments = parser.parse_args()
    notes = Console(stderr=True)
    try:
        settings = Settings(
            threads=with_threads(arguments.threads),
            rounds=arguments.rounds,
            quick=arguments.quick,
            peers=tuple(filter(None, arguments.peers.split(","))) if arguments.peers is not None else None,
            tick=lambda case, done, total: notes.print(f"[dim]{done + 1}/{total} {case}[/dim]"),
        )
        result = ask(question, settings)
    except RootdkError as error:
        parser.error(str(error))
    if arguments.json:
        print(json.dumps(result.as_json(), indent=2))
        return
    console = Console()
    console.print(report.table(result))
    for line in report.footnotes(result):
        console.print(f"[dim]{line}[/dim]", highlight=False)
