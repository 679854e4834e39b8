"""What `rootdk demo` computes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rootdk
from rootdk.bench import memory, peers
from rootdk.bench.cases import Case, draw
from rootdk.bench.timing import in_turns, machine
from rootdk.cli.output import Tick
from rootdk.data import minilm_layer

__all__ = ["Lap", "Layer", "Link", "as_json", "race", "real_layer"]

_LINKS = 10
_MODEL = "all-MiniLM-L6-v2"


@dataclass(frozen=True)
class Link:
    """How much one token looks at another."""

    query: str
    key: str
    position: int
    """Of the query in the sentence."""
    weight: float


@dataclass(frozen=True)
class Layer:
    """A trained layer run by rootdk and compared with the definition."""

    model: str
    number: int
    shape: tuple[int, ...]
    tokens: tuple[str, ...]
    max_error: float
    float32_error: float
    """Of the same definition in float32 NumPy: what the format itself costs."""
    head: int
    links: tuple[Link, ...]


@dataclass(frozen=True)
class Lap:
    """One contender on one pattern; None where it could not run, with the reason."""

    pattern: str
    name: str
    seconds: float | None
    extra_bytes: int | None
    reason: str | None = None


def real_layer(head: int) -> Layer:
    """Run the shipped layer, compare it with the float64 reference, and find what ``head`` links."""
    layer = minilm_layer()
    arrays = layer.query, layer.key, layer.value
    output = rootdk.attention(*arrays)
    exact = rootdk.reference.attention(*arrays)
    plain = rootdk.reference.attention(*arrays, dtype=np.float32)
    return Layer(
        model=_MODEL,
        number=layer.number,
        shape=layer.query.shape,
        tokens=layer.tokens,
        max_error=float(np.abs(output - exact.output).max()),
        float32_error=float(np.abs(plain.output - exact.output).max()),
        head=head,
        links=_strongest(layer.tokens, exact.weights[head]),
    )


def _strongest(tokens: Sequence[str], weights: np.ndarray) -> tuple[Link, ...]:
    """The strongest links between words of a sentence, in reading order; one a query, none to itself."""
    words = [position for position, token in enumerate(tokens) if token.isalpha()]
    best = []
    for position in words:
        others = [key for key in words if tokens[key] != tokens[position]]
        key = max(others, key=lambda other: weights[position, other])
        best.append(Link(tokens[position], tokens[key], position, float(weights[position, key])))
    best.sort(key=lambda link: -link.weight)
    return tuple(sorted(best[:_LINKS], key=lambda link: link.position))


def race(rounds: int, tick: Tick) -> list[Lap]:
    """N = 2048, d_model 768, 12 heads, full and causal: rootdk, torch and NumPy's naive way."""
    names = ("rootdk", "torch", "numpy")
    total = 2 * (len(names) + 1)
    laps = []
    for number, pattern in enumerate(("full", "causal")):
        case = replace(Case(pattern), pattern=pattern)
        step = number * (len(names) + 1)
        tick(f"{pattern}: time", step, total)
        calls, reasons = _prepare(names, case)
        times = in_turns(calls, rounds)
        for place, name in enumerate(names):
            tick(f"{pattern}: memory of {name}", step + 1 + place, total)
            if name in calls:
                laps.append(Lap(pattern, name, times[name].median, _memory(name, case)))
            else:
                laps.append(Lap(pattern, name, None, None, reasons[name]))
    return laps


def _prepare(names: Sequence[str], case: Case) -> tuple[dict[str, Any], dict[str, str]]:
    arrays, calls, reasons = draw(case), {}, {}
    for name in names:
        try:
            calls[name] = peers.prepare(name, case, arrays).call
        except peers.UnavailableError as reason:
            reasons[name] = str(reason)
    return calls, reasons


def _memory(name: str, case: Case) -> int | None:
    try:
        return memory.extra_memory(name, case)
    except peers.UnavailableError:
        return None


def as_json(layer: Layer, race: Sequence[Lap]) -> dict[str, Any]:
    """Both parts as plain values."""
    links = [vars(link) for link in layer.links]
    return {"layer": {**vars(layer), "links": links}, "race": [vars(lap) for lap in race], "machine": machine()}
