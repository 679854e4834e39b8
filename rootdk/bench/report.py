"""Results as a table for the terminal and as a picture."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from rootdk.bench.questions import QUESTIONS
from rootdk.bench.results import Column, Result, Row
from rootdk.errors import ArgumentError

__all__ = ["PICTURES", "check_picture", "footnotes", "plot", "table"]

PICTURES = (".svg", ".png")


def table(result: Result) -> Table:
    """One line a case; green where a goal is met, red where it is missed, a dash where there is no number."""
    shown = [column for column in result.columns if any(column.key in row.values for row in result.rows)]
    # As Text: rich would take [batch, len, heads, d] for markup.
    grid = Table(title=Text(QUESTIONS[result.question].title), title_justify="left", header_style="bold")
    grid.add_column("case")
    for column in shown:
        grid.add_column(column.title, justify="right")
    for row in result.rows:
        grid.add_row(Text(row.case), *(_cell(row, column) for column in shown))
    return grid


def _cell(row: Row, column: Column) -> Text:
    if column.key not in row.values:
        return Text("–", style="dim")
    text = column.show(row.values[column.key])
    goal = row.goals.get(column.key)
    if goal is None:
        return Text(text)
    return Text(text, style="green" if goal.met(row.values[column.key]) else "bold red")


def footnotes(result: Result) -> list[str]:
    """Machine and settings, then every reason for a missing number, each once."""
    facts = ", ".join(f"{name} {value}" for name, value in result.machine.items())
    reasons = {f"{name}: {reason}" for row in result.rows for name, reason in row.missing.items()}
    return [facts, *sorted(reasons)]


def check_picture(path: Path) -> None:
    """Raise ArgumentError where ``path`` can't become a picture, before anything is measured for it."""
    if path.suffix not in PICTURES:
        raise ArgumentError(f"plot: expected a file ending in {' or '.join(PICTURES)}, got {path.name!r}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ArgumentError("plot: drawing needs matplotlib; pip install 'rootdk[plot]'") from error


def plot(result: Result, path: Path) -> None:
    """Draw ``result`` to an SVG or PNG file: curves over N for scaling, bars a case for the rest."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    if result.question == "scaling":
        _curves(figure, result)
    else:
        _bars(figure, result)
    figure.savefig(path)


def _bars(figure: object, result: Result) -> None:
    shown = [column for column in result.columns if column.title.startswith("vs ")] or list(result.columns)
    shown = [column for column in shown if any(column.key in row.values for row in result.rows)]
    axes = figure.subplots()  # type: ignore[attr-defined]
    width = 0.8 / max(1, len(shown))
    for number, column in enumerate(shown):
        places = [place + (number - (len(shown) - 1) / 2) * width for place in range(len(result.rows))]
        axes.bar(places, [row.values.get(column.key, 0) for row in result.rows], width, label=column.title)
    axes.set_xticks(range(len(result.rows)), [row.case for row in result.rows], rotation=30, ha="right", fontsize=8)
    if all(column.title.startswith("vs ") for column in shown):
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_ylabel("times as fast (1 = equal)")
        axes.set_yscale("log")
    axes.set_title(QUESTIONS[result.question].title)
    axes.legend(fontsize=8)


def _curves(figure: object, result: Result) -> None:
    time, memory = figure.subplots(1, 2)  # type: ignore[attr-defined]
    for column in result.columns:
        axes = memory if column.key.endswith(" bytes") else time
        points = [(row.details["length"], row.values[column.key]) for row in result.rows if column.key in row.values]
        if points:
            name = column.key.removesuffix(" bytes")
            axes.plot(*zip(*points, strict=True), marker="o", label=name, linewidth=2 if name == "rootdk" else 1)
    time.set_ylabel("seconds")
    memory.set_ylabel("extra bytes")
    for axes in (time, memory):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log" if axes is time else "symlog")
        axes.set_xlabel("N")
        axes.legend(fontsize=8)
