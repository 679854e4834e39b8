"""Tensors in, tensors out. ``rootdk.torch`` offers what torch's users call; this package is how it works."""

from typing import Any

from rootdk.frontends.torch.arguments import Options
from rootdk.frontends.torch.calls import attend
from rootdk.frontends.torch.errors import runtime_errors

__all__ = ["attention"]


@runtime_errors
def attention(query: Any, key: Any, value: Any, *, return_lse: bool = False, **options: Any) -> Any:
    """Output, or (output, LSE), of one call on tensors."""
    output, lse = attend((query, key, value), Options(**options), return_lse=return_lse)
    return (output, lse) if return_lse else output
