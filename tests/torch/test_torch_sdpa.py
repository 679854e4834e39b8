"""rootdk.torch.scaled_dot_product_attention against torch's own, call by call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as torchs

import rootdk
from rootdk.torch import scaled_dot_product_attention

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
Shape = tuple[int, ...]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64).to(dtype)


def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> None:
    """Both calls give the same numbers, shape, strides and dtype."""
    found, expected = (call(query, key, value, **options) for call in (scaled_dot_product_attention, torchs))
    assert found.dtype is expected.dtype
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[found.dtype])


QUERY, KEY, VALUE = random(2, 4, 5, 8), random(2, 4, 7, 8), random(2, 4, 7, 8, seed=1)


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 8), (7, 8), (7, 3)),
        ((4, 5, 8), (4, 7, 8), (4, 7, 8)),
        ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3)),
        ((3, 2, 4, 5, 8), (3, 2, 4, 7, 8), (3, 2, 4, 7, 8)),
        ((2, 4, 5, 8), (2, 1, 7, 8), (2, 4, 7, 8)),
        ((2, 1, 5, 8), (2, 4, 7, 8), (1, 4, 7, 8)),
        ((5, 8), (2, 4, 7, 8), (4, 7, 8)),
        ((1, 3, 70, 64), (1, 3, 130, 64), (1, 3, 130, 64)),
        ((2, 4, 0, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
        ((0, 4, 5, 8), (0, 4, 7, 8), (0, 4, 7, 8)),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_any_leading_dimensions(shapes: tuple[Shape, Shape, Shape], is_causal: bool):
    check(*(random(*shape, seed=place) for place, shape in enumerate(shapes)), is_causal=is_causal)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_dtype(dtype: torch.dtype):
    check(QUERY.to(dtype), KEY.to(dtype), VALUE.to(dtype))


@pytest.mark.parametrize("shape", [(5, 7), (4, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (2, 1, 1, 7), (1, 1, 5, 1), (1, 7)])
@pytest.mark.parametrize("kind", ["bool", "float32", "own"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_of_every_dtype_and_shape(shape: Shape, kind: str, dtype: torch.dtype):
    mask = {"bool": random(*shape) > -0.5, "float32": random(*shape), "own": random(*shape, dtype=dtype)}[kind]
    check(QUERY.to(dtype), KEY.to(dtype), VALUE.to(dtype), attn_mask=mask)


def test_a_known_kind_of_call_reads_each_mask_anew():
    for seed in range(3):
        check(QUERY, KEY, VALUE, attn_mask=random(2, 1, 5, 7, seed=seed) > 0)
        check(QUERY, KEY, VALUE, attn_mask=random(2, 1, 1, 7, seed=seed))
        check(random(2, 4, 5, 8, seed=seed), KEY, VALUE)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_mask_and_is_causal_intersect(kind: str):
    mask = random(5, 7) > 0 if kind == "bool" else random(5, 7)
    check(QUERY, KEY, VALUE, attn_mask=mask, is_causal=True)


@pytest.mark.parametrize("lengths", [(5, 7), (7, 7), (1, 7)])
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_causal_biases(lengths: tuple[int, int], make: Callable[..., torch.Tensor]):
    query, key, value = random(2, 4, lengths[0], 8), random(2, 4, lengths[1], 8), random(2, 4, lengths[1], 8, seed=1)
    check(query, key, value, attn_mask=make(*lengths))


def test_a_row_that_sees_no_key_is_zero():
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    for options in ({"attn_mask": mask}, {"attn_mask": torch.zeros(5, 7).masked_fill(~mask, -torch.inf)}):
        assert not scaled_dot_product_attention(QUERY, KEY, VALUE, **options)[:, :, 2].any()


@pytest.mark.parametrize("heads", [(8, 2, 2), (8, 1, 1), (6, 3, 3), (8, 4, 2)])
def test_grouped_heads_with_the_flag(heads: tuple[int, int, int]):
    query, key, value = random(2, heads[0], 5, 8), random(2, heads[1], 7, 8), random(2, heads[2], 7, 8)
    check(query, key, value, enable_gqa=True)
    check(query[0], key[0], value[0], enable_gqa=True, is_causal=True)


@pytest.mark.parametrize("scale", [0.0, 1, 0.3, -0.5])
def test_scale(scale: float):
    check(QUERY, KEY, VALUE, scale=scale)


def test_strides_follow_torch_and_nothing_needs_to_be_contiguous():
    by_length = QUERY.transpose(1, 2).contiguous().transpose(1, 2)
    check(by_length, KEY, VALUE)
    check(by_length, KEY, VALUE[..., :3])
    check(QUERY.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3), KEY, VALUE)
    check(QUERY[..., ::2], KEY[..., ::2], VALUE)
    check(QUERY[:1].expand(2, -1, -1, -1), KEY[:, :1].expand(-1, 4, -1, -1), VALUE)
    check(QUERY.mT.contiguous().mT, KEY, VALUE)


def test_inputs_are_read_where_they_are_and_a_lazy_sign_counts():
    negated = torch.complex(QUERY, QUERY).conj().imag
    assert negated.is_neg()
    check(negated, KEY, VALUE)
    torch.testing.assert_close(scaled_dot_product_attention(negated, KEY, VALUE), torchs(-QUERY, KEY, VALUE))


X = torch.zeros(2, 4, 5, 8)
WRONG: dict[str, tuple[Callable[[], Any], type[rootdk.RootdkError], str]] = {
    "dtypes differ": (lambda: scaled_dot_product_attention(X, X.double(), X), rootdk.DTypeError, "key: expected"),
    "integers": (lambda: scaled_dot_product_attention(X.int(), X.int(), X.int()), rootdk.DTypeError, "query"),
    "one dimension": (lambda: scaled_dot_product_attention(X[0, 0, 0], X, X), rootdk.ShapeError, "query"),
    "not a tensor": (lambda: scaled_dot_product_attention(X, X, None), rootdk.DTypeError, "value"),  # type: ignore[arg-type]
    "d_k differs": (lambda: scaled_dot_product_attention(X, X[..., :3], X), rootdk.ShapeError, "d_k"),
    "lengths differ": (lambda: scaled_dot_product_attention(X, X[:, :, :3], X), rootdk.ShapeError, "kv_len"),
    "heads without the flag": (
        lambda: scaled_dot_product_attention(X, X[:, :2], X[:, :2]), rootdk.ShapeError, "enable_gqa"
    ),
    "heads that do not divide": (
        lambda: scaled_dot_product_attention(X, X[:, :3], X[:, :3], enable_gqa=True), rootdk.ShapeError, "divide"
    ),
    "integer mask": (
        lambda: scaled_dot_product_attention(X, X, X, X[0, 0].long()), rootdk.DTypeError, "attn_mask != 0"
    ),
    "mask of another float": (
        lambda: scaled_dot_product_attention(X, X, X, torch.zeros(5, 5).half()), rootdk.DTypeError, "attn_mask.to"
    ),
    "mask shape": (lambda: scaled_dot_product_attention(X, X, X, torch.zeros(5, 6)), rootdk.ShapeError, "bias"),
    "causal twice": (
        lambda: scaled_dot_product_attention(X, X, X, causal_lower_right(5, 5), is_causal=True),
        rootdk.ArgumentError, "drop one",
    ),
    "causal bias of other lengths": (
        lambda: scaled_dot_product_attention(X, X, X, causal_lower_right(5, 6)), rootdk.ShapeError, "(5, 6)"
    ),
    "probability": (lambda: scaled_dot_product_attention(X, X, X, dropout_p=2.0), rootdk.ArgumentError, "dropout_p"),
    "sparse": (lambda: scaled_dot_product_attention(X.to_sparse(), X, X), rootdk.RootdkError, "to_dense"),
    "nested": (
        lambda: scaled_dot_product_attention(*[torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged)] * 3),
        rootdk.ArgumentError, "nested",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call, kind, words", WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_runtime_errors_that_help(call: Callable[[], Any], kind: type[Exception], words: str):
    with pytest.raises(kind, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        call()
    assert isinstance(caught.value, RuntimeError)


def test_rootdk_attention_takes_and_gives_tensors():
    output, lse = rootdk.attention(QUERY, KEY, VALUE, mask=rootdk.causal("end"), return_lse=True)
    scores = (QUERY @ KEY.mT / 8**0.5).masked_fill(~torch.ones(5, 7, dtype=torch.bool).tril(2), -torch.inf)
    torch.testing.assert_close(output, scores.softmax(-1) @ VALUE)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    by_length = [tensor.transpose(1, 2) for tensor in (QUERY, KEY, VALUE)]
    other, other_lse = rootdk.attention(*by_length, mask=rootdk.causal("end"), layout="bshd", return_lse=True)
    assert torch.equal(other.transpose(1, 2), output)
    assert torch.equal(other_lse.transpose(1, 2), lse)


def test_arrays_of_numpy_beside_tensors():
    bias, mask = random(5, 7), random(2, 1, 5, 7) > 0
    found = rootdk.attention(QUERY, KEY, VALUE, bias=bias.numpy(), mask=mask.numpy())
    torch.testing.assert_close(found, rootdk.attention(QUERY, KEY, VALUE, bias=bias, mask=mask))
    torch.testing.assert_close(found, torchs(QUERY, KEY, VALUE, bias.masked_fill(~mask, -torch.inf)))
