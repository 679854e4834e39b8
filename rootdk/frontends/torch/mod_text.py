"""What changes the scores, as operators of torch take it: a text, and the tensors that it reads, by slot.

The text is that of a traced function, or says that the only array is a mask or a bias, and what causal rule there is
beside it: scaled_dot_product_attention has nothing else, and its lengths may then change without another text.
"""

from typing import Any

from torch import Tensor

from rootdk.frontends.torch.arguments import Options, WrittenMods
from rootdk.masks import causal as causal_mask
from rootdk.mods.values import as_mask

__all__ = ["dense_text", "is_dense", "options_of"]

_DENSE = "dense"


def dense_text(causal: str, kind: str) -> str:
    """The text of a causal rule, an alignment or "", and of one array of ``kind`` "mask", "bias" or ""."""
    return f"{_DENSE} {causal} {kind}"


def is_dense(text: str) -> bool:
    """Whether ``text`` is of ``dense_text``."""
    return text.startswith(_DENSE)


def options_of(text: str, arrays: tuple[Tensor, ...], **others: Any) -> Options:
    """A call's options, of which ``others`` are those that ``text`` does not say."""
    if not is_dense(text):
        return Options(score_mod=WrittenMods(text, arrays), **others)
    _, alignment, kind = text.split(" ")
    mask: Any = causal_mask(align=alignment) if alignment else None
    if kind == "mask":
        return Options(mask=arrays[0] if mask is None else as_mask(arrays[0]) & mask, **others)
    return Options(mask=mask, bias=arrays[0] if arrays else None, **others)
