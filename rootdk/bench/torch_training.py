"""A small GPT in torch and one step of its training, whoever computes the attention."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import rootdk
from rootdk.bench.cases import Case
from rootdk.bench.patterns import alibi_slopes
from rootdk.torch import scaled_dot_product_attention as our_scaled_dot_product_attention

__all__ = ["ATTENTIONS", "step"]

_LAYERS = 4
_VOCABULARY = 256

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(query, key, value, ALiBi slopes or None) -> output, causal."""


def _rootdk(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor | None) -> Tensor:
    if slopes is None:
        return our_scaled_dot_product_attention(query, key, value, is_causal=True)

    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slopes[h] * (q_idx - kv_idx)

    output: Tensor = rootdk.attention(query, key, value, score_mod=alibi, mask=rootdk.causal())
    return output


def _fused(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor | None) -> Tensor:
    bias = None if slopes is None else _bias(slopes, query.shape[-2])
    return scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=slopes is None)


def _eager(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor | None) -> Tensor:
    length, width = query.shape[-2:]
    weights: Tensor = (query @ key.mT * width**-0.5 + _bias(slopes, length)).softmax(-1)
    return weights @ value


def _bias(slopes: Tensor | None, length: int) -> Tensor:
    """Causality and, with slopes, ALiBi, as [length, length] or [heads, length, length]."""
    position = torch.arange(length)
    distance = position[:, None] - position
    bias = torch.zeros(length, length) if slopes is None else -slopes[:, None, None] * distance
    return bias.masked_fill(distance < 0, -torch.inf)


ATTENTIONS: Mapping[str, Attend] = {"rootdk": _rootdk, "torch": _fused, "eager": _eager}


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, case: Case, attend: Attend) -> None:
        super().__init__()
        width = case.heads * case.d_k
        self.attend = attend
        self.slopes = nn.Parameter(torch.from_numpy(alibi_slopes(case.heads))) if case.rule.score else None
        self.query_key_value = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Unflatten(-1, (3, case.heads, case.d_k))
        )
        self.output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.query_key_value(hidden).permute(2, 0, 3, 1, 4)
        heads = self.attend(query, key, value, self.slopes)
        hidden = hidden + self.output(heads.transpose(1, 2).flatten(2))
        return hidden + self.feed_forward(hidden)


def step(case: Case, attend: Attend) -> Callable[[], float]:
    """A function that trains a GPT of ``case``'s shape by one step and returns the loss before it.

    Every call of ``step`` with one case starts from the same parameters and trains on the same tokens.
    """
    torch.manual_seed(0)
    width = case.heads * case.d_k
    model = nn.Sequential(
        nn.Embedding(_VOCABULARY, width),
        *(_Block(case, attend) for _ in range(_LAYERS)),
        nn.LayerNorm(width),
        nn.Linear(width, _VOCABULARY),
    )
    tokens = torch.randint(_VOCABULARY, (case.batch, case.q_len + 1))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def train() -> float:
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return train
