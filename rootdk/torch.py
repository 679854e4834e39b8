"""rootdk for PyTorch: torch's own attention functions by their names and signatures, and a switch that routes to them.

>>> with rootdk.torch.enabled():
...     model(inputs)
"""

from rootdk.frontends.torch.sdpa import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
