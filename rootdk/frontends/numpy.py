"""NumPy in, NumPy out."""

from functools import partial
from typing import TYPE_CHECKING, Any

from rootdk import problem
from rootdk.calls import attention

if TYPE_CHECKING:
    from rootdk.planning.plan import Plan

__all__ = ["attention", "attention_vjp", "plan"]


def attention_vjp(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """``attention``'s results and their pullback."""
    from rootdk import pullback  # programs that only infer need nothing of it

    return pullback.attention_vjp(query, key, value, **options)


def plan(query: Any, key: Any, value: Any, *, return_lse: bool = False, **options: Any) -> "Plan":
    """How ``attention`` will run with the same arguments."""
    from rootdk import plans  # what analyses and measures is not for every program to load

    bound = problem.bind(query, key, value, **options)
    run = partial(attention, return_lse=return_lse, **options)
    return plans.plan(bound, run, (query.shape, key.shape, value.shape), return_lse=return_lse)
