"""How `rootdk demo` looks on a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rootdk.cli.demo_work import Lap, Layer

__all__ = ["show_layer", "show_race"]

_BAR = 24
_NAMES = {"rootdk": "rootdk", "torch": "torch SDPA", "numpy": "NumPy, naive"}


def show_layer(layer: Layer) -> None:
    """The sentence, the check against float64, and who looks at whom in one head."""
    console = Console(highlight=False)
    heads, tokens, d_k = layer.shape
    console.print(Text("\nA real layer", style="bold"))
    console.print(f"Layer {layer.number} of {layer.model}: {heads} heads, {tokens} tokens, d_k {d_k}, on the sentence")
    words = " ".join(layer.tokens[1:-1]).replace(" ,", ",").replace(" .", ".")
    console.print(Padding(Text(words, style="italic"), (1, 4)))
    console.print(f"Largest error against the definition in float64: [bold]{layer.max_error:.1e}[/bold]", end=" ")
    console.print(f"(the definition itself in float32: {layer.float32_error:.1e})\n")
    console.print(f"Who looks at whom in head {layer.head}, the strongest links:\n")
    console.print(Padding(_links(layer), (0, 4)))


def _links(layer: Layer) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right")
    for _ in range(3):
        grid.add_column()
    for link in layer.links:
        length = max(1, round(link.weight * _BAR))
        bar = Text("━" * length + "▶", style="cyan")
        grid.add_row(Text(link.query, style="bold"), bar, link.key, Text(f"{link.weight:.2f}", style="dim"))
    return grid


def show_race(race: Sequence[Lap]) -> None:
    """Time and memory, one line a contender and pattern."""
    console = Console(highlight=False)
    table = Table(header_style="bold", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for title in ("attention", "by"):
        table.add_column(title)
    for title in ("time", "rootdk is", "extra memory"):
        table.add_column(title, justify="right")
    ours = {lap.pattern: lap.seconds for lap in race if lap.name == "rootdk"}
    for lap in race:
        base = ours[lap.pattern]
        if lap.seconds is None or base is None:
            table.add_row(lap.pattern, _NAMES[lap.name], Text("–", style="dim"))
            continue
        table.add_row(
            lap.pattern,
            _NAMES[lap.name],
            f"{lap.seconds * 1e3:.1f} ms",
            "" if lap.name == "rootdk" else _compare(lap.seconds / base),
            "unknown" if lap.extra_bytes is None else f"{lap.extra_bytes / 2**20:.1f} MiB",
            style="bold green" if lap.name == "rootdk" else "",
        )
    console.print(Text("\nA race", style="bold"))
    console.print("2048 tokens, d_model 768, 12 heads, float32; medians, timed in turns\n")
    console.print(Padding(table, (0, 4)))
    notes = {f"{_NAMES[lap.name]}: {lap.reason}" for lap in race if lap.reason}
    console.print("\nNumPy stores 2048 × 2048 scores for every head; rootdk never stores them.", style="dim")
    console.print("\n".join(sorted(notes)), style="dim")


def _compare(times: float) -> str:
    return f"{times:.2f}× as fast" if times < 10 else f"{times:.0f}× as fast"
