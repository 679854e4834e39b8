"""scaled_dot_product_attention where torch has to see an operator: compiled, exported, counted, traced, cast."""

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention as torchs
from torch.utils.flop_counter import FlopCounterMode

import rootdk
from rootdk.frontends.torch import operators
from rootdk.torch import flex_attention, scaled_dot_product_attention


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def learned(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


QUERY, KEY, VALUE = random(2, 4, 9, 16), random(2, 4, 7, 16), random(2, 4, 7, 16, seed=1)
BY_LENGTH = random(2, 9, 4, 16).transpose(1, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        (*learned(QUERY, KEY, VALUE), [], None, None, "dense start ", 0.0, None, "query"),
        (*learned(QUERY, KEY, VALUE), learned(random(9, 7)), None, None, "dense  bias", 0.0, 0.3, "query"),
        (*learned(QUERY, KEY[:, :2], VALUE[:, :2]), [random(9, 7) > 0], None, None, "dense  mask", 0.0, None, "bhsd"),
        (*learned(QUERY, KEY, VALUE), [], None, torch.tensor(3), "dense  ", 0.5, None, "bshd"),
        (
            *learned(random(2, 9, 4, 16).transpose(1, 2), KEY, VALUE[..., :3]),
            [],
            *[None] * 2,
            "dense  ",
            0.0,
            None,
            "query",
        ),
    ],
    ids=["causal", "bias", "grouped", "dropout", "strides"],
)
@pytest.mark.slow
def test_torch_finds_nothing_wrong_with_the_operator(arguments: tuple[Any, ...]):
    found = torch.library.opcheck(operators.forward, arguments)
    assert set(found.values()) == {"SUCCESS"}


def results(function: Any, options: dict[str, Any]) -> list[torch.Tensor]:
    """The output, and the gradients of all three inputs."""
    inputs = learned(QUERY, KEY, VALUE)
    output = function(*inputs, **options)
    output.sin().sum().backward()
    return [output, *(tensor.grad for tensor in inputs)]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": random(9, 7)}, {"scale": 0.5}])
def test_compiled_in_one_graph_with_gradients(options: dict[str, Any]):
    def function(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return scaled_dot_product_attention(query * 2, key, value, **options)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for found, expected in zip(results(compiled, options), results(function, options), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_lengths_may_change_without_a_new_graph():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(scaled_dot_product_attention, fullgraph=True, dynamic=True, backend=counter)
    compiled(QUERY[:, :, :3], KEY, VALUE)
    graphs = counter.frame_count
    for length in (5, 8, 4):
        query = QUERY[:, :, :length]
        torch.testing.assert_close(compiled(query, KEY, VALUE), torchs(query, KEY, VALUE))
    assert counter.frame_count == graphs


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_compiled_code_leaves_functions_of_the_users_to_rootdk():
    def function(x: torch.Tensor) -> torch.Tensor:
        scores = flex_attention(x * 2, x, x, lambda score, b, h, q, kv: score * 2)
        return scores.sin() + rootdk.attention(x, x, x, mask=rootdk.causal()).cos()

    compiled = torch.compile(function, backend="aot_eager")
    torch.testing.assert_close(compiled(QUERY), function(QUERY))


def test_exported():
    class Attention(torch.nn.Module):
        def forward(self, query: Any, key: Any, value: Any) -> Any:
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    program = torch.export.export(Attention(), (QUERY, KEY, VALUE))
    torch.testing.assert_close(program.module()(QUERY, KEY, VALUE), torchs(QUERY, KEY, VALUE, is_causal=True))


def test_flops_are_counted_forwards_and_backwards():
    query, key, value = learned(QUERY, KEY, VALUE[..., :5])
    with FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(query, key, value).sum().backward()
    pairs = 2 * 4 * 9 * 7
    assert counter.get_total_flops() == 2 * pairs * ((16 + 5) + (3 * 16 + 2 * 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_precision_as_torchs_does(dtype: torch.dtype):
    with torch.autocast("cpu", dtype):
        found, expected = (call(QUERY, KEY, VALUE) for call in (scaled_dot_product_attention, torchs))
    assert found.dtype is expected.dtype is dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


def test_shapes_without_memory():
    meta = [tensor.to("meta") for tensor in (QUERY, KEY, VALUE)]
    found, expected = (call(*meta) for call in (scaled_dot_product_attention, torchs))
    assert (found.shape, found.stride(), found.device) == (expected.shape, expected.stride(), expected.device)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traced():
    traced = torch.jit.trace(scaled_dot_product_attention, (QUERY, KEY, VALUE))
    torch.testing.assert_close(traced(QUERY * 2, KEY, VALUE), torchs(QUERY * 2, KEY, VALUE))
