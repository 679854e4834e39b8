"""Functions written for torch tensors: traced, and equal to what torch computes pair by pair."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import _vmap_for_bhqkv, create_mask, or_masks
from tracing import dense_mask, dense_score, trace_score

SHAPE = (2, 3, 7, 7)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def eager(function: Callable[..., Any], score: torch.Tensor) -> np.ndarray:
    indices = (torch.arange(size) for size in score.shape)
    result = _vmap_for_bhqkv(function, prefix=(0,))(score, *indices)
    return np.broadcast_to(result.double().detach().numpy(), score.shape)


def check(function: Callable[..., Any], score: torch.Tensor | None = None) -> None:
    score = numbers(*SHAPE) * 3 if score is None else score
    np.testing.assert_allclose(dense_score(function, score.numpy()), eager(function, score), rtol=1e-6, atol=1e-6)


SCORES: dict[str, Callable[..., Any]] = {
    "twice": lambda s, b, h, q, k: s * 2,
    "squared": lambda s, b, h, q, k: s**2,
    "eighth power": lambda s, b, h, q, k: s**8,
    "cubed float": lambda s, b, h, q, k: s**3.0,
    "tenth more": lambda s, b, h, q, k: s + s * 0.1,
    "one more": lambda s, b, h, q, k: s + 1,
    "causal by where": lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
    "odd keys": lambda s, b, h, q, k: torch.where(k % 2 == 0, s, float("-inf")),
    "relative": lambda s, b, h, q, k: s + (q - k),
    "relative causal": lambda s, b, h, q, k: torch.where(q >= k, s + (q - k), -math.inf),
    "alibi": lambda s, b, h, q, k: s + torch.exp2(-((h + 1) * 8.0 / 3)) * (k - q),
    "alibi by power": lambda s, b, h, q, k: s + 2 ** (-((h + 1) * 8 / 3)) * (k - q),
    "integer power": lambda s, b, h, q, k: s + 2**h + 3**k + q**3,
    "softcap": lambda s, b, h, q, k: 20 * torch.tanh(s / 20),
    "methods": lambda s, b, h, q, k: s.tanh().mul(2).add(1).sub(0.5).div(3).neg().abs().exp().log(),
    "true division": lambda s, b, h, q, k: s + q / (k + 1),
    "floor division": lambda s, b, h, q, k: s + (q - 5) // 3 + (q - 5) % 3 + (k - 3).remainder(2),
    "divided by mode": lambda s, b, h, q, k: (
        torch.div(q - 5, 3, rounding_mode="trunc")
        + torch.div(s, 2, rounding_mode="floor")
        + torch.fmod(q - 5, 3)
        + torch.div(5 - q, -3, rounding_mode="trunc")
        + torch.fmod(5 - q, -3)
    ),
    "float floor division": lambda s, b, h, q, k: s // 0.7 + s % 0.7 + torch.fmod(s, 0.7),
    "bits": lambda s, b, h, q, k: s + ((q << 2) ^ (k | 4)) + (q >> 1) + (~k & 3),
    "booleans as numbers": lambda s, b, h, q, k: s * (q >= k) + (q == k) * 3 + (q > k).float() - (q < k).long(),
    "boolean arithmetic": lambda s, b, h, q, k: s + ((q > k) + (h > 0)).float() + ((q > k) * (h > 0)).int(),
    "logical functions": lambda s, b, h, q, k: torch.where(
        torch.logical_and(q > 1, k) | torch.logical_xor(q > 2, k > 2) & torch.logical_not(h), s, 0.0
    ),
    "masked_fill": lambda s, b, h, q, k: s.masked_fill(q < k, -1e9).masked_fill(k == 2, 0.5),
    "clamp": lambda s, b, h, q, k: s.clamp(-1, 1) + (q - k).clamp(min=0) + torch.clamp(k - q, max=2) + s.clip(max=0),
    "clamp by values": lambda s, b, h, q, k: torch.clamp(s, min=q - 3.0, max=k + 0.0) + s.clamp_min(0).clamp_max(1),
    "min and max": lambda s, b, h, q, k: torch.minimum(s, q * 1.0) + torch.maximum(q, k) + torch.max(s, s * 0),
    "where method": lambda s, b, h, q, k: s.where(q >= k, 0.0),
    "in-place operators": lambda s, b, h, q, k: _accumulated(s, q, k),
    "comparison functions": lambda s, b, h, q, k: torch.where(
        q.ge(k) & torch.ne(q, 3) & k.lt(5) & torch.eq(h, h), s, 0.0
    ),
    "casts": lambda s, b, h, q, k: (
        q.to(torch.float32) / 2 + s.long().double() + s.int() + q.type_as(s) + k.to(s) + q.to(dtype=s.dtype)
    ),
    "cast to boolean": lambda s, b, h, q, k: torch.where(q.bool(), s, q.to(torch.bool) * 2.0),
    "constructors": lambda s, b, h, q, k: (
        s + s.new_ones(()) + s.new_full((), 3.0) + torch.zeros_like(s) + torch.full_like(s, 2) + s.new_zeros(size=())
    ),
    "tensor constants": lambda s, b, h, q, k: s + torch.tensor(2.5, dtype=s.dtype, device=s.device) * torch.tensor(2),
    "properties": lambda s, b, h, q, k: s + len(s.shape) + s.dim() + s.ndim,
    "no-ops": lambda s, b, h, q, k: s.clone().detach().contiguous().squeeze().to(s.device) + q.view(()).reshape(()),
    "functions of one": lambda s, b, h, q, k: (
        torch.exp2(s) + torch.expm1(s) + torch.log1p(s.abs()) + s.abs().log2() + s.sin() + torch.cos(s) + torch.erf(s)
    ),
    "roots": lambda s, b, h, q, k: (
        s.abs().sqrt() + s.abs().rsqrt() + s.square() + s.reciprocal() + torch.pow(s.abs(), 0.3)
    ),
    "roundings": lambda s, b, h, q, k: (
        s.floor() + s.ceil() * 10 + s.round() * 100 + s.trunc() * 1000 + s.sign() + s.frac()
    ),
    "integer roundings": lambda s, b, h, q, k: s + q.floor() + math.floor(3.7) + torch.ceil(k),
    "tests": lambda s, b, h, q, k: (
        torch.where(
            torch.isnan(s / 0) | torch.isinf(s / 0), 1.0, torch.nan_to_num(s * math.inf, posinf=2.0, neginf=3.0)
        )
        + torch.isfinite(s).float()
    ),
    "nan_to_num": lambda s, b, h, q, k: torch.nan_to_num(torch.where(q > k, math.nan, s)),
    "relu": lambda s, b, h, q, k: (
        F.relu(s) + torch.relu(s) + s.relu() + F.relu6(s) + F.leaky_relu(s) + F.leaky_relu(s, 0.3)
    ),
    "gelu": lambda s, b, h, q, k: F.gelu(s) + F.gelu(s, approximate="tanh"),
    "silu": lambda s, b, h, q, k: (
        F.silu(s) + s.sigmoid() + torch.sigmoid(s) + F.mish(s) + F.hardswish(s) + F.hardsigmoid(s)
    ),
    "softplus": lambda s, b, h, q, k: F.softplus(s) + F.softplus(s * 30, beta=2) + F.logsigmoid(s) + F.softsign(s),
    "elu": lambda s, b, h, q, k: F.elu(s) + F.elu(s, alpha=0.5) + F.selu(s) + F.celu(s, 0.7) + F.hardtanh(s, -0.5, 2),
    "others": lambda s, b, h, q, k: (
        torch.lerp(s, s * 2, 0.25)
        + torch.hypot(s, s + 1)
        + torch.logaddexp(s, s * 2)
        + torch.sinh(s)
        + torch.cosh(s)
        + torch.tan(s)
        + torch.log10(s.abs())
        + torch.special.expit(s)
        + F.tanhshrink(s)
        + F.threshold(s, 0.1, 20.0)
        + torch.copysign(s, q - 3.0)
        + torch.fmax(s, s * 2)
        + torch.fmin(s, s * 2)
    ),
    "scaled sums": lambda s, b, h, q, k: (
        torch.add(s, q, alpha=2) + torch.sub(s, k, alpha=0.5) + torch.rsub(s, 3) + 3 - s
    ),
    "numbers first": lambda s, b, h, q, k: (
        3 / (s.abs() + 1) + 7 // (q + 1) + 7 % (k + 1) + (1 << q) + (6 & k) + (1 | k)
    ),
    "operators of tensors": lambda s, b, h, q, k: (
        torch.tensor(3.0) * s + torch.tensor(7) // (q + 1) - torch.tensor(2) ** k
    ),
    "torch.ops": lambda s, b, h, q, k: torch.ops.aten.tanh(s) + torch.ops.aten.mul.Tensor(s, s),
    "t5": lambda s, b, h, q, k: s + _bucket(k - q),
}


def _accumulated(score: Any, q: Any, k: Any) -> Any:
    total = 0.0
    for step in range(3):
        total = total + score * step
        total += q
    shown = q >= k
    shown |= q == 0
    return torch.where(shown, total, 0.0)


def _bucket(relative: Any, count: int = 8, distance: int = 16) -> Any:
    """T5's relative position bucket, as transformers writes it."""
    buckets = 0
    count //= 2
    buckets += (relative > 0).to(torch.long) * count
    relative = torch.abs(relative)
    exact = count // 2
    small = relative < exact
    large = exact + (torch.log(relative.float() / exact) / math.log(distance / exact) * (count - exact)).to(torch.long)
    large = torch.min(large, torch.full_like(large, count - 1))
    return buckets + torch.where(small, relative, large)


@pytest.mark.parametrize("name", SCORES)
def test_score_function(name: str) -> None:
    check(SCORES[name])


TABLE, MATRIX, FULL = numbers(3), numbers(7, 7), numbers(2, 3, 7, 7)
DISTANCES, FLAGS = torch.arange(98).reshape(2, 7, 7) % 5, torch.arange(7) % 3 == 0
SCALAR, WHICH, OFFSETS = torch.tensor(1.5, requires_grad=True), torch.tensor(1), torch.tensor([3, 0, 6, 2, 1, 5, 4])
ROWS = numbers(2, 3, 7, 4).requires_grad_()
COLUMNS = numbers(2, 1, 7, 4)

CAPTURING: dict[str, Callable[..., Any]] = {
    "per head": lambda s, b, h, q, k: s + TABLE[h],
    "absolute": lambda s, b, h, q, k: s + MATRIX[q, k] + MATRIX[k, q] + FULL[b, h, q, k],
    "row and column": lambda s, b, h, q, k: s + MATRIX[q, 0] + MATRIX[-1, k] - TABLE[h - 1],
    "relative table": lambda s, b, h, q, k: s + MATRIX.view(-1)[(q - k).abs()] + MATRIX.flatten()[q - k + 7],
    "chained": lambda s, b, h, q, k: s + FULL[b][h][q][k] + FULL[0][b, h][q] + FULL[b][h][WHICH, q],
    "ellipsis and slices": lambda s, b, h, q, k: (
        s + FULL[b, ..., k][h, q] + FULL[:, h][b][:, k][q] + FULL[b, h, q, :][k]
    ),
    "slices": lambda s, b, h, q, k: s + MATRIX[1:, ::2][q - 1, k // 2] + MATRIX[:, -2:][q][k % 2],
    "transposed": lambda s, b, h, q, k: (
        s + MATRIX.T[q, k] + FULL.transpose(1, 2)[b, q, h, k] + FULL.permute(3, 0, 1, 2)[k][b, h, q]
    ),
    "nested": lambda s, b, h, q, k: s + MATRIX[OFFSETS[q], OFFSETS[OFFSETS[k]]] + TABLE[DISTANCES[b, q, k] % 3],
    "one number": lambda s, b, h, q, k: s * SCALAR + s / SCALAR.exp() + SCALAR,
    "boolean table": lambda s, b, h, q, k: (
        s * FLAGS[q] + torch.where(FLAGS[k], 1.0, 0.0) + (FLAGS[q] & FLAGS[k]).long()
    ),
    "changed tables": lambda s, b, h, q, k: (
        s + TABLE.exp()[h] + (TABLE * 2 + 1)[h] + TABLE.to(torch.float32).double()[h] * 0
    ),
    "gates": lambda s, b, h, q, k: s * torch.sigmoid(TABLE[h].to(torch.float64)),
    "dot": lambda s, b, h, q, k: s + 0.3 * torch.dot(ROWS[b, h, q], COLUMNS[b, h // 3, k]),
    "matrix product": lambda s, b, h, q, k: (
        s + ROWS[b, h, q] @ COLUMNS[b, 0, k] + (ROWS[b, h, q] * COLUMNS[b, 0, k]).sum(-1)
    ),
    "matrices": lambda s, b, h, q, k: s + (ROWS[b, h, :4] @ ROWS[b, h, q])[k % 4],
    "norm": lambda s, b, h, q, k: s + ROWS[b, h, q].norm() + torch.linalg.norm(ROWS[b, h, k] - ROWS[b, h, q]),
    "row functions": lambda s, b, h, q, k: (
        s
        + ROWS[b, h, q].mean()
        + ROWS[b, h, q].max()
        - ROWS[b, h, k].amin(-1)
        + ROWS[b, h, q].prod()
        + (ROWS[b, h, q] > 0).any() * 1.0
        + (ROWS[b, h, q] > -1).all().float()
        + (ROWS[b, h, q] > 0).sum()
    ),
    "iterated": lambda s, b, h, q, k: s + sum(x * y for x, y in zip(ROWS[b, h, q], COLUMNS[b, 0, k], strict=True)),
    "unpacked": lambda s, b, h, q, k: _unpacked(s, ROWS[b, h, q]),
    "kept row": lambda s, b, h, q, k: (
        s + ROWS[b, h, q, None].squeeze(0).unsqueeze(0)[0, 2] + ROWS[b, h, q].reshape(2, 2)[1, 0]
    ),
    "embedding": lambda s, b, h, q, k: s + F.embedding(DISTANCES[b, q, k], MATRIX)[h],
    "stacked": lambda s, b, h, q, k: s + torch.stack([q * 1.0, k * 2.0, s]).sum(0) + torch.stack((q, k))[1],
    "two reads": lambda s, b, h, q, k: s + OFFSETS[q] + OFFSETS[k],
    "shape of a table": lambda s, b, h, q, k: (
        s / MATRIX.shape[0] + MATRIX.size(1) + len(TABLE) + MATRIX.dim() + MATRIX.numel()
    ),
}


def _unpacked(score: Any, row: Any) -> Any:
    first, _, third, fourth = row
    return score + first * third - fourth


@pytest.mark.parametrize("name", CAPTURING)
def test_captured_tensors(name: str) -> None:
    check(CAPTURING[name])


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
)
def test_element_types(dtype: str) -> None:
    table = (torch.arange(7) * 3).to(getattr(torch, dtype))

    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[q] * 2.0

    check(function)


def test_strides() -> None:
    wide = numbers(20, 14)
    for table in (wide[3:10, ::2], wide[:7, :7].T, numbers(7, 1).expand(7, 7), numbers(1).expand(7, 7)):
        check(lambda s, b, h, q, k, table=table: s + table[q, k])


def test_tensors_are_read_where_they_are() -> None:
    for table in (numbers(3), numbers(3).requires_grad_(), numbers(3).bfloat16(), torch.nn.Parameter(numbers(3))):
        view = trace_score(lambda s, b, h, q, k, table=table: s + table[h]).arrays[0]
        assert view.__array_interface__["data"][0] == table.data_ptr()


MASKS: dict[str, Callable[..., Any]] = {
    "always": lambda b, h, q, k: b.new_ones((), dtype=torch.bool),
    "never": lambda b, h, q, k: b.new_zeros((), dtype=torch.bool),
    "lower right": lambda b, h, q, k: q - 7 >= k - 7,
    "window": lambda b, h, q, k: (q >= k) & (abs(q - k) <= 2) & (torch.abs(q - k) % 2 == 0) & ((q - k).abs() < 9),
    "sinks": or_masks(lambda b, h, q, k: k < 2, lambda b, h, q, k: q - k == 1),
    "flags": lambda b, h, q, k: FLAGS[q] | FLAGS[k],
    "chunks": lambda b, h, q, k: (k - OFFSETS[b]) // 3 == (q - OFFSETS[b]) // 3,
    "equal booleans": lambda b, h, q, k: ((q < 3) == (k < 3)) ^ ((q < 4) != (k < 4)),
    "per head": lambda b, h, q, k: torch.where(h < 1, q >= k, q <= k),
    "streams": lambda b, h, q, k: torch.where(k >= 3, k - 3, k) <= torch.minimum(q, WHICH),
    "intervals": lambda b, h, q, k: (q >= DISTANCES[b, k][0]) & (q < DISTANCES[b, k][1] + 4),
    "modalities": lambda b, h, q, k: _any_modality(q, k, MODALITIES[b]),
    "tree": lambda b, h, q, k: ((q >= 3) & FLAGS[(k - 3).clamp(min=0, max=6)]) | (k < 3),
    "not": lambda b, h, q, k: ~(q >= k) & ~FLAGS[k],
    "ids": lambda b, h, q, k: (DISTANCES[b, q, 0] == DISTANCES[b, k, 0]) & (DISTANCES[b, q, 0] >= 1),
}
MODALITIES = torch.tensor([[[0, 1, 3], [0, 4, 2]], [[1, 2, 2], [0, 6, 1]]])


def _any_modality(q: Any, k: Any, modalities: Any) -> Any:
    shown = q >= k
    for _, start, length in modalities:
        shown = shown | ((q >= start) & (k < start + length))
    return shown


@pytest.mark.parametrize("name", MASKS)
def test_mask_function(name: str) -> None:
    expected = create_mask(MASKS[name], *SHAPE, device="cpu").numpy()
    np.testing.assert_array_equal(dense_mask(MASKS[name], SHAPE), expected)


def test_compiled_functions_are_unwrapped() -> None:
    compiled = torch.compile(lambda b, h, q, k: q >= k)
    np.testing.assert_array_equal(dense_mask(compiled, (1, 1, 3, 3))[0, 0], np.tri(3, dtype=bool))


def test_paged_caches() -> None:
    cache = PagedAttention(n_pages=8, page_size=2, max_batch_size=2, device="cpu")
    cache.reserve(torch.tensor([1]), torch.tensor([5]))
    cache.reserve(torch.tensor([0]), torch.tensor([7]))
    shape, lengths = (2, 1, 4, 16), torch.tensor([7, 5])
    mask = cache.get_mask_mod(lambda b, h, q, k: q >= k, lengths)
    np.testing.assert_array_equal(dense_mask(mask, shape), create_mask(mask, *shape, device="cpu").numpy())
    check(cache.get_score_mod(lambda s, b, h, q, k: s + (q - k), lengths), numbers(*shape))


class Biased(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3, dtype=torch.float64)
        self.gate = torch.nn.Parameter(numbers(3))
        self.register_buffer("distances", DISTANCES)
        self.scale = 2.0

    @property
    def doubled(self) -> torch.Tensor:
        return self.gate * 2

    def bias(self, h: Any, q: Any, k: Any, b: Any) -> Any:
        return self.embedding.weight[self.distances[b, q, k], h] * self.scale

    def forward(self, score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score * torch.sigmoid(self.gate[h]) + self.bias(h, q, k, b) + self.doubled[h]


def test_methods_of_a_module() -> None:
    module = Biased()
    check(module.forward)
    assert set(trace_score(module.forward).names) == {"self.gate", "self.embedding.weight", "self.distances"}


def test_calling_modules() -> None:
    module = Biased()
    check(lambda s, b, h, q, k: s + module.embedding(module.distances[b, q, k])[h])
    check(lambda s, b, h, q, k: module(s, b, h, q, k))
