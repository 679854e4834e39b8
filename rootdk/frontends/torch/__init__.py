"""Tensors in, tensors out. ``rootdk.torch`` offers what torch's users call; this package is how it works."""

from functools import partial
from typing import TYPE_CHECKING, Any

from rootdk.frontends.torch.arguments import Options, bind
from rootdk.frontends.torch.errors import runtime_errors
from rootdk.frontends.torch.modes import outside_graphs
from rootdk.frontends.torch.routes import attend

if TYPE_CHECKING:
    from rootdk.planning.plan import Plan

__all__ = ["attention", "plan"]


@runtime_errors
def attention(query: Any, key: Any, value: Any, *, return_lse: bool = False, **options: Any) -> Any:
    """Output, or (output, LSE), of one call on tensors."""
    output, lse = attend((query, key, value), Options(**options), return_lse=return_lse)
    return (output, lse) if return_lse else output


@outside_graphs
@runtime_errors
def plan(query: Any, key: Any, value: Any, *, return_lse: bool = False, **options: Any) -> "Plan":
    """How ``attention`` will run with the same arguments."""
    from rootdk import plans  # what analyses and measures is not for every program to load

    bound = bind((query, key, value), Options(**options))
    run = partial(attention, return_lse=return_lse, **options)
    shapes = tuple(query.shape), tuple(key.shape), tuple(value.shape)
    return plans.plan(bound, run, shapes, return_lse=return_lse)
