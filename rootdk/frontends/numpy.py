"""NumPy in, NumPy out."""

from functools import partial
from typing import TYPE_CHECKING, Any

from rootdk.calls import attention

if TYPE_CHECKING:
    from rootdk.planning.plan import Plan

__all__ = ["attention", "plan"]


def plan(query: Any, key: Any, value: Any, **options: Any) -> "Plan":
    """How ``attention`` will run with the same arguments."""
    from rootdk import plans  # what analyses and measures is not for every program to load

    return plans.plan((query, key, value), partial(attention, **options), **options)
