"""How a problem's queries are shared out: panels of lanes, and tasks of panels."""

from dataclasses import dataclass

from rootdk.planning.schedule import Schedule
from rootdk.problem import Problem

__all__ = ["Partition", "flops_of", "panel_bytes", "partition", "worth_threads"]

_MOST_PANELS = 4
"""Per task: enough that a block of keys, once in L1, is used several times. 2 measured 0.98, 8 no better."""
_TASKS_PER_THREAD = 4
"""So that threads that run slower do not hold up the call."""
_SERIAL_FLOPS = 4_000_000
"""Starting a second thread costs some 10 microseconds, in which one core does this much arithmetic."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Panels of ``panel_vectors`` lane vectors, the first ``wide_panels`` of a head one vector wider."""

    panels: int
    panel_vectors: int
    wide_panels: int
    panels_per_task: int

    @property
    def tasks_per_head(self) -> int:
        return -(-self.panels // self.panels_per_task)

    def first_query(self, panel: int, lanes: int) -> int:
        return (panel * self.panel_vectors + min(panel, self.wide_panels)) * lanes


def panel_bytes(d_k: int, d_v: int, schedule: Schedule, lanes: int, size: int) -> int:
    """Scratch memory of the widest panel, a multiple of 64: queries, two sets of outputs, two of statistics."""
    width = -(-d_v // schedule.value_rows) * schedule.value_rows
    return -(-(d_k + 2 * width + 4) * schedule.vectors * lanes * size // 64) * 64


def partition(q_len: int, heads: int, schedule: Schedule, lanes: int, *, threads: int, most_panels: int) -> Partition:
    """Panels as equal as they can be, none wider than the schedule allows; ``heads`` counts those of the whole batch.

    Six vectors are two panels of three, seven are 3 + 2 + 2: a lone vector would reuse nothing.
    """
    vectors = -(-q_len // lanes)
    panels = -(-vectors // schedule.vectors)
    if not panels or not heads:
        return Partition(0, 0, 0, 1)
    width, wide = divmod(vectors, panels)
    fair = panels * heads // (threads * _TASKS_PER_THREAD)
    return Partition(panels, width, wide, max(1, min(_MOST_PANELS, most_panels, panels, fair)))


def flops_of(problem: Problem) -> int:
    """Of all pairs, visible or not."""
    return 2 * problem.batch * problem.heads * problem.q_len * problem.kv_len * (problem.d_k + problem.d_v)


def worth_threads(problem: Problem) -> bool:
    """Whether a second thread saves more time than starting it takes."""
    return flops_of(problem) > _SERIAL_FLOPS
