"""A small causal transformer whose only sense of position is a score function, with parameters that it learns."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from rootdk.torch import create_block_mask, flex_attention

__all__ = ["ATTENTIONS", "Attend", "Size", "Transformer"]

ScoreMod = Callable[..., Any]
"""(score, b, h, q_idx, kv_idx) -> score"""
Attend = Callable[[Tensor, Tensor, Tensor, ScoreMod], Tensor]
"""(query, key, value, score_mod) -> output, all [batch, heads, context, width of a head]."""


def attend_with_rootdk(query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod) -> Tensor:
    """Causal attention on rootdk: ``score_mod`` and its derivative are compiled into the kernels."""
    return flex_attention(query, key, value, score_mod=score_mod, block_mask=_causal(query.shape[-2]))


@cache
def _causal(context: int) -> BlockMask:
    return create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx, None, None, context, context)


def attend_with_torch(query: Tensor, key: Tensor, value: Tensor, score_mod: ScoreMod) -> Tensor:
    """Causal attention as one writes it in torch: ``score_mod`` gets the whole matrix of scores."""
    batch, heads, context, width = query.shape
    b = torch.arange(batch)[:, None, None, None]
    h = torch.arange(heads)[:, None, None]
    q_idx, kv_idx = torch.arange(context)[:, None], torch.arange(context)
    scores = score_mod(query @ key.mT * width**-0.5, b, h, q_idx, kv_idx)
    return scores.masked_fill(kv_idx > q_idx, -torch.inf).softmax(-1) @ value


ATTENTIONS: dict[str, Attend] = {"rootdk": attend_with_rootdk, "torch": attend_with_torch}


@dataclass(frozen=True)
class Size:
    """How large a model, and what it is given at once."""

    layers: int
    width: int
    heads: int
    context: int
    """Characters that the model sees."""
    batch: int


class Transformer(nn.Module):
    """Characters [batch, context] -> logits of the next ones [batch, context, vocabulary]."""

    def __init__(self, size: Size, vocabulary: int, attend: Attend) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.blocks = nn.Sequential(*(_Block(size.width, size.heads, attend) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.logits = nn.Linear(size.width, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        return self.logits(self.norm(self.blocks(self.embedding(characters))))

    def slopes(self) -> Tensor:
        """The learned slopes of all layers, [layers, heads], without their gradients."""
        return torch.stack([block.attention.slopes.detach().clone() for block in self.blocks])


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, attend)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norms[0](hidden))
        return hidden + self.feed_forward(self.norms[1](hidden))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, attend: Attend) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        # ALiBi's slopes, which its authors kept fixed.
        self.slopes = nn.Parameter(torch.exp2(-8 * torch.arange(1, heads + 1) / heads))

    def score(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """Scores fall with distance, at a rate that each head learns."""
        return score - self.slopes[h] * (q_idx - kv_idx)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.projection(hidden).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.output(self.attend(query, key, value, self.score).transpose(1, 2).flatten(2))
