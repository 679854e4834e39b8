"""Results as values: rows of plain numbers, what each number is, and what was asked of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Column",
    "Goal",
    "Result",
    "Row",
    "Settings",
    "megabytes",
    "micros",
    "millis",
    "percent",
    "ratio",
    "scientific",
]


@dataclass(frozen=True)
class Settings:
    """How to measure."""

    threads: int
    rounds: int
    quick: bool = False
    """Short lengths and few cases: to see that it runs, not to quote."""
    peers: tuple[str, ...] | None = None
    """Whom to compare with; None leaves it to the question."""
    tick: Callable[[str, int, int], None] = lambda what, done, total: None
    """Told what is being measured, and how many of how many steps are done."""


@dataclass(frozen=True)
class Goal:
    """A limit on a number."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Column:
    """One number of every row."""

    key: str
    title: str
    show: Callable[[Any], str]


@dataclass
class Row:
    """One case: its numbers by column, goals for some of them, and reasons for those that are missing."""

    case: str
    values: dict[str, float] = field(default_factory=dict)
    goals: dict[str, Goal] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """What only the JSON shows."""

    @property
    def missed(self) -> list[str]:
        """Columns whose goal is not met."""
        return [key for key, goal in self.goals.items() if key in self.values and not goal.met(self.values[key])]


@dataclass(frozen=True)
class Result:
    """The answer to one question."""

    question: str
    columns: tuple[Column, ...]
    rows: list[Row]
    machine: Mapping[str, float | str]

    def as_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "machine": dict(self.machine),
            "rows": [_row_json(row) for row in self.rows],
        }


def _row_json(row: Row) -> dict[str, Any]:
    goals = {
        key: {name: limit for name, limit in vars(goal).items() if limit is not None} for key, goal in row.goals.items()
    }
    return {
        "case": row.case, **row.values, "goals": goals, "missed": row.missed, "missing": row.missing, **row.details,
    }  # fmt: skip


def millis(seconds: float) -> str:
    """Seconds shown as milliseconds with three digits.

    >>> millis(0.0123456)
    '12.3 ms'
    """
    return f"{_three(seconds * 1e3)} ms"


def micros(seconds: float) -> str:
    return f"{_three(seconds * 1e6)} µs"


def megabytes(size: float) -> str:
    return f"{_three(size / 2**20)} MiB"


def ratio(value: float) -> str:
    return f"{_three(value)}×"


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def scientific(value: float) -> str:
    return f"{value:.1e}"


def _three(value: float) -> str:
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"
