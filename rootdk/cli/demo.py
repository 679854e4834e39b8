"""`rootdk demo`: a real layer checked against float64, then a race beside NumPy and torch."""

from typing import Annotated

import typer

from rootdk.cli import demo_view, demo_work
from rootdk.cli.output import emit_json, progress

__all__ = ["demo"]


def demo(
    head: Annotated[int, typer.Option(min=0, max=11, help="Which head to draw; 5 and 8 are readable ones.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of the race.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attention on a real layer of a trained model, checked; then speed and memory at N = 2048."""
    layer = demo_work.real_layer(head)
    if not as_json:
        demo_view.show_layer(layer)
    with progress() as tick:
        race = demo_work.race(rounds, tick)
    if as_json:
        emit_json(demo_work.as_json(layer, race))
    else:
        demo_view.show_race(race)
