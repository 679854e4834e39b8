"""Derivatives of rootdk's calls on tensors, against finite differences and against plain torch operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import rootdk
from rootdk.torch import flex_attention, scaled_dot_product_attention

Call = Callable[..., Any]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def learned(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


QUERY, KEY, VALUE = random(1, 2, 3, 4), random(1, 2, 5, 4), random(1, 2, 5, 3)
BIAS, SLOPES, SINKS = random(2, 1, 5), random(2), random(2, seed=1)


def plain(query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False) -> torch.Tensor:
    """Attention of torch operations that torch differentiates any number of times."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return (scores if attn_mask is None else scores + attn_mask).softmax(-1) @ value


def learned_slopes(query: Any, key: Any, value: Any, slopes: Any) -> Any:
    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score * slopes[h].exp() + torch.tanh(score) * (q - kv)

    return flex_attention(query, key, value, score_mod)


CALLS: dict[str, tuple[Call, list[torch.Tensor]]] = {
    "plain": (scaled_dot_product_attention, [QUERY, KEY, VALUE]),
    "causal": (lambda *inputs: scaled_dot_product_attention(*inputs, is_causal=True), [QUERY, KEY, VALUE]),
    "bias": (scaled_dot_product_attention, [QUERY, KEY, VALUE, BIAS]),
    "score function": (learned_slopes, [QUERY, KEY, VALUE, SLOPES]),
    "sinks": (lambda q, k, v, sinks: rootdk.attention(q, k, v, sinks=sinks), [QUERY, KEY, VALUE, SINKS]),
    "lse": (lambda *inputs: rootdk.attention(*inputs, return_lse=True), [QUERY, KEY, VALUE]),
    "grouped heads": (
        lambda *inputs: scaled_dot_product_attention(*inputs, enable_gqa=True), [QUERY, KEY[:, :1], VALUE[:, :1]]
    ),
    "broadcast": (scaled_dot_product_attention, [QUERY, KEY[0, 0], VALUE[0]]),
    "dropout": (lambda *inputs: rootdk.attention(*inputs, dropout_p=0.5, seed=3), [QUERY, KEY, VALUE]),
}  # fmt: skip


@pytest.mark.parametrize("call, inputs", CALLS.values(), ids=CALLS.keys())
def test_every_derivative(call: Call, inputs: list[torch.Tensor]):
    assert torch.autograd.gradcheck(call, learned(*inputs), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, learned(*inputs), check_fwd_over_rev=True)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_gradients_have_their_inputs_dtype(dtype: torch.dtype, tolerance: float):
    query, key, value = random(2, 3, 40, 16), random(2, 3, 70, 16), random(2, 3, 70, 16, seed=1)
    exact, low = learned(query, key, value), learned(*(tensor.to(dtype) for tensor in (query, key, value)))
    plain(*exact).square().mean().backward()
    scaled_dot_product_attention(*low).square().mean().backward()
    for expected, found in zip(exact, low, strict=True):
        assert found.grad.dtype is dtype
        torch.testing.assert_close(found.grad.double(), expected.grad, rtol=0, atol=tolerance)


def test_one_tensor_as_all_three():
    x, y = learned(QUERY, QUERY)
    scaled_dot_product_attention(x, x, x).square().sum().backward()
    plain(y, y, y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_table_that_is_read_twice():
    (table,) = learned(torch.zeros(5, dtype=torch.float64))
    x = torch.zeros(1, 1, 5, 1, dtype=torch.float64)
    places = torch.arange(5.0, dtype=torch.float64).reshape(1, 1, 5, 1)
    flex_attention(x, x, places, lambda score, b, h, q, kv: score + table[q] + table[kv]).sum().backward()
    torch.testing.assert_close(table.grad, torch.arange(5.0, dtype=torch.float64) - 2)


def test_only_what_is_learned_gets_a_gradient():
    (bias,) = learned(BIAS)
    scaled_dot_product_attention(QUERY, KEY, VALUE, bias).sum().backward()
    assert bias.grad is not None
    assert not scaled_dot_product_attention(QUERY, KEY, VALUE, BIAS).requires_grad
    with torch.no_grad():
        assert not scaled_dot_product_attention(*learned(QUERY, KEY, VALUE)).requires_grad


def test_writing_to_what_was_read_is_an_error():
    inputs = learned(QUERY, KEY, VALUE)
    mask = torch.ones(3, 5, dtype=torch.bool)
    output = scaled_dot_product_attention(*inputs, mask)
    mask[0, 0] = False
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_a_row_that_sees_no_key_passes_nothing_on():
    query, key, value = learned(QUERY, KEY, VALUE)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    cotangent = torch.full((1, 2, 3, 3), torch.nan, dtype=torch.float64)
    cotangent[:, :, [0, 2]] = 1
    scaled_dot_product_attention(query, key, value, mask).backward(cotangent)
    assert not query.grad[:, :, 1].any()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))


def test_third_derivatives_are_refused():
    (query,) = learned(QUERY)
    (first,) = torch.autograd.grad(
        scaled_dot_product_attention(query, KEY, VALUE).sin().sum(), query, create_graph=True
    )
    (second,) = torch.autograd.grad(first.sin().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="third derivatives"):
        torch.autograd.grad(second.sum(), query)


def test_forward_mode_is_not_silently_zero():
    tangent = random(1, 2, 3, 4, seed=5)
    with forward_ad.dual_level():
        query = forward_ad.make_dual(QUERY, tangent)
        found, expected = (
            forward_ad.unpack_dual(call(query, KEY, VALUE)).tangent for call in (scaled_dot_product_attention, plain)
        )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool):
    one, other = learned(QUERY, KEY, VALUE), learned(QUERY, KEY, VALUE)
    checkpoint(scaled_dot_product_attention, *one, use_reentrant=reentrant).square().sum().backward()
    plain(*other).square().sum().backward()
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


def test_dropout_repeats_with_torchs_generator():
    torch.manual_seed(0)
    first, second = (scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(first, scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_p=0.5))
    assert not torch.equal(first, second)
    assert not scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_p=1.0).any()
    (query,) = learned(QUERY)
    torch.manual_seed(1)
    checkpoint(
        lambda x: scaled_dot_product_attention(x, KEY, VALUE, dropout_p=0.5), query, use_reentrant=False
    ).sum().backward()
    (again,) = learned(QUERY)
    torch.manual_seed(1)
    scaled_dot_product_attention(again, KEY, VALUE, dropout_p=0.5).sum().backward()
    assert torch.equal(query.grad, again.grad)


FUNCTIONS: dict[str, Callable[[Call], Any]] = {
    "grad": lambda call: torch.func.grad(lambda x: call(x, KEY, VALUE).sin().sum())(QUERY),
    "jacrev": lambda call: torch.func.jacrev(call, (0, 1, 2, 3))(QUERY, KEY, VALUE, BIAS),
    "jacfwd": lambda call: torch.func.jacfwd(call, (0, 1, 2, 3))(QUERY, KEY, VALUE, BIAS),
    "jvp": lambda call: torch.func.jvp(lambda x: call(x, KEY, VALUE, is_causal=True), (QUERY,), (QUERY.cos(),)),
    "hessian": lambda call: torch.func.hessian(lambda *x: call(*x).sin().sum(), (0, 1, 2))(QUERY, KEY, VALUE),
    "second reverse": lambda call: torch.func.jacrev(
        torch.func.jacrev(lambda x, bias: call(x, KEY, VALUE, bias).sin().sum(), (0, 1)), (0, 1)
    )(QUERY, BIAS),
    "vmap": lambda call: torch.func.vmap(call, (1, None, 0))(QUERY, KEY[0, 0], VALUE[0]),
    "vmap of masks": lambda call: torch.func.vmap(call, (None, None, None, 0))(QUERY, KEY, VALUE, BIAS),
    "gradients for each example": lambda call: torch.func.vmap(
        torch.func.grad(lambda *x: call(*x).sin().sum(), (0, 1, 2, 3)), (0, None, 0, None)
    )(QUERY[0], KEY[0, 0], VALUE[0], BIAS[0]),
    "hessians for each example": lambda call: torch.func.vmap(
        torch.func.hessian(lambda x: call(x, KEY[0, 0], VALUE[0, 0]).sin().sum())
    )(QUERY[0]),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_transforms_of_torch_func(function: Callable[[Call], Any]):
    torch.testing.assert_close(function(scaled_dot_product_attention), function(plain))
