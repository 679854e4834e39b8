"""How a call will run, in numbers and in words: what ``rootdk.plan`` returns."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rootdk.errors import ShapeError
from rootdk.planning.cost import Cost, Peaks
from rootdk.planning.tile_map import Cut, TileMap
from rootdk.problem import Problem

__all__ = ["Plan", "si"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """One call, planned: print it to read it, or call it with arrays of the same shapes to run it."""

    problem: Problem
    path: str
    """Which kernel serves the call."""
    reason: str
    """Why it does, and why with so many threads."""
    derivatives: tuple[str, str]
    """Which path serves its gradients, and which the derivatives of second order and forward mode."""
    threads: int
    tasks: int
    """What threads share: some panels of queries of one head."""
    cut: Cut
    tiles: TileMap
    packing: tuple[str | None, str | None]
    """Why blocks of keys, and of values, are copied before use; None: they are read where they lie."""
    cost: Cost
    peaks: Peaks
    kernel: str
    """Where the machine code came from: memory, disk or the compiler."""
    shapes: tuple[tuple[int, ...], ...]
    run: Callable[..., Any] = field(repr=False)

    @property
    def flops(self) -> int:
        """Computed, those of masked pairs included."""
        return self.cost.flops

    @property
    def bytes(self) -> int:
        """Of query, key, value and output, each once."""
        return self.cost.bytes

    @property
    def seconds(self) -> float:
        """The least that the call can take on this machine, by its measured peaks."""
        return self.cost.seconds(self.peaks)

    def __call__(self, query: Any, key: Any, value: Any) -> Any:
        """The planned call on other arrays of the same shapes, with the same options.

        Raises:
            ShapeError: an array of another shape.
        """
        for name, array, shape in zip(("query", "key", "value"), (query, key, value), self.shapes, strict=True):
            if tuple(array.shape) != shape:
                raise ShapeError(
                    f"{name}: expected shape {shape}, as planned, got {tuple(array.shape)}; make a new plan"
                )
        return self.run(query, key, value)

    def __repr__(self) -> str:
        return "\n".join(f"{name:<9} {text}" for name, text in self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        problem, cost, peaks = self.problem, self.cost, self.peaks
        sizes = ("heads", "kv_heads", "q_len", "kv_len", "d_k", "d_v")
        shape = ", ".join(f"{name} {getattr(problem, name)}" for name in sizes)
        operands = [
            f"{name} {'read in place' if reason is None else f'copied block by block: {reason}'}"
            for name, reason in zip(("keys", "values"), self.packing, strict=True)
        ]
        return [
            ("problem", f"batch {list(problem.batch_shape)}, {shape}, {problem.dtype.name}, scale {problem.scale:g}"),
            ("path", f"{self.path}: {self.reason}"),
            *self._tile_lines(),
            ("operands", "; ".join(operands)),
            ("compute", f"{si(cost.flops, 'FLOP')}, {_share(cost.useful_flops, cost.flops)} of it on visible pairs"),
            ("memory", f"{si(cost.bytes, 'B')}, each operand once; tasks read {si(cost.reread_bytes, 'B')} of keys and "
                       f"values; a score matrix would move {si(cost.naive_bytes, 'B')}"),
            ("estimate", f"{si(self.seconds, 's')} at best: {si(cost.intensity, 'FLOP/B')}, and peaks of "
                         f"{si(peaks.flops, 'FLOP/s')} (float32) and {si(peaks.bytes, 'B/s')}"),
            ("kernel", self.kernel),
            ("gradients", self.derivatives[0]),
            ("", self.derivatives[1]),
        ]  # fmt: skip

    def _tile_lines(self) -> list[tuple[str, str]]:
        tiles, schedule = self.tiles, self.cut.schedule
        about = "" if tiles.exact else "about "
        queries = min(schedule.vectors * self.cut.lanes, self.problem.q_len)
        counts = {"skipped": tiles.skipped, "full": tiles.full, "masked": tiles.masked}
        shares = ", ".join(f"{about}{count} {name} ({_share(count, tiles.tiles)})" for name, count in counts.items())
        lines = [("tiles", f"up to {queries} queries × {schedule.block} keys: {shares}")]
        lines += [("", f"masked for {blocker.text} in {about}{blocker.tiles}") for blocker in tiles.blockers]
        return lines


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def si(value: float, unit: str) -> str:
    """``value`` with three digits and a decimal prefix.

    >>> si(12_345_678, "B")
    '12.3 MB'
    """
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value / 1e-9:.3g} n{unit}" if value else f"0 {unit}"
