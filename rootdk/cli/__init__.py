"""The command line: parse, ask, print. Nothing imports it."""

import sys
from collections.abc import Sequence
from typing import Any

import typer

from rootdk.cli.bench import bench
from rootdk.cli.cache import cache
from rootdk.cli.demo import demo
from rootdk.errors import RootdkError

__all__ = ["main"]

# Typer carries a click of its own or uses the installed one, by version; either way this is its base of usage errors.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Scaled dot-product attention for CPUs, compiled from Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(bench)
app.add_typer(cache, name="cache")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, 2 with one line on standard error where the input is bad."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = app(given or ["--help"], prog_name="rootdk", standalone_mode=False)
    except _UsageError as error:
        return _refuse(error.format_message())
    except RootdkError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        print("rootdk: interrupted", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0


def _refuse(message: str) -> int:
    # A group without a command has printed its help already, and has no message.
    if message:
        print(f"rootdk: {' '.join(message.split())}", file=sys.stderr)
    return 2
