"""NumPy in, NumPy out."""

from rootdk.calls import attention

__all__ = ["attention"]
