"""Whether keys and values are read where they lie or copied block by block, and why."""

import numpy as np

from rootdk.planning.schedule import Schedule
from rootdk.problem import Operands, Problem

__all__ = ["decode_packing_reasons", "packing_reasons"]


def packing_reasons(problem: Problem, operands: Operands, schedule: Schedule) -> tuple[str | None, str | None]:
    """Why blocks of keys, and of values, are copied to scratch memory before use; None where they are not.

    Some must be: other element types, elements that are not adjacent, values that end inside a tile of columns. For
    others it pays: rows that lie apart cost 25 to 38 % where many panels read them.
    """
    reused = problem.q_len > 2 * schedule.vectors
    key = _reason(problem, operands.key, reused=reused)
    value = _reason(problem, operands.value, reused=reused)
    if value is None and problem.d_v % schedule.value_rows:
        value = f"d_v is not a multiple of {schedule.value_rows}"
    return key, value


def decode_packing_reasons(problem: Problem, operands: Operands, lanes: int) -> tuple[str | None, str | None]:
    """As ``packing_reasons``, of the decode kernel."""
    value = _reason(problem, operands.value, reused=False)
    if value is None and problem.d_v % lanes:
        value = f"d_v is not a multiple of {lanes}"
    return "lanes are keys, so columns are needed", value


def _reason(problem: Problem, array: np.ndarray, *, reused: bool) -> str | None:
    size = array.dtype.itemsize
    if problem.dtype is not problem.dtype.accumulator:
        return f"{problem.dtype.name} is computed in {problem.dtype.accumulator.name}"
    if array.shape[-1] > 1 and array.strides[-1] != size:
        return "elements of a row are not adjacent"
    if reused and array.strides[-2] != array.shape[-1] * size:
        return "rows lie apart"
    return None
