"""rootdk for PyTorch: torch's own attention functions by their names and signatures, and a switch that routes to them.

>>> with rootdk.torch.enabled():
...     model(inputs)
"""

from torch.nn.attention.flex_attention import and_masks, or_masks

from rootdk.frontends.torch.create_block_mask import create_block_mask
from rootdk.frontends.torch.enabled import enabled
from rootdk.frontends.torch.flex import flex_attention
from rootdk.frontends.torch.sdpa import scaled_dot_product_attention

__all__ = [
    "and_masks", "create_block_mask", "enabled", "flex_attention", "or_masks", "scaled_dot_product_attention",
]  # fmt: skip
