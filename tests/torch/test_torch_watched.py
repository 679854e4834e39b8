"""flex_attention and attention where torch watches: torch.func, torch.export, counters, autocast, fake tensors."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as torchs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import rootdk
from rootdk.frontends.torch import operators, second_operators
from rootdk.frontends.torch.bound_call import SINKS
from rootdk.mods import graph_text
from rootdk.score_graph import ScoreMods, trace_mods
from rootdk.torch import create_block_mask, flex_attention

Call = Callable[..., Any]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def learned(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


X, TABLE = random(3, 2, 5, 4), random(2, 12)
DOCUMENTS = torch.tensor([0, 0, 1, 1, 1])
PATTERN = np.tril(np.ones((5, 5), bool))[::-1, ::-1].T


def flex(x: Any, table: Any) -> Any:
    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.tanh(score) + table[h][q - kv + 5] * (b + 1) + table.exp()[h, DOCUMENTS[q]]

    return flex_attention(x, x.cos(), x, score_mod, create_block_mask(causal, None, None, 5, 5, BLOCK_SIZE=2))


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def attention(x: Any, table: Any) -> Any:
    return rootdk.attention(
        x, x, x, mask=rootdk.causal() | (DOCUMENTS[:, None] == 1), bias=table[:, :5, None], sinks=table[:, 0],
        score_mod=rootdk.relative_bias(table[:, :9]), layout="bhsd", return_lse=True,
    )  # fmt: skip


def patterned(x: Any, table: Any) -> Any:
    """Another layout, a mask of NumPy's that lies backwards in memory, and heads that share keys."""
    x = x.transpose(-3, -2)
    key = x[..., :1, :] * 2
    return rootdk.attention(x, key, key, mask=PATTERN, layout="bshd", score_mod=rootdk.alibi(table[:, 1]))


CALLS: dict[str, Call] = {"flex": flex, "attention": attention, "patterned": patterned}


def total(call: Call) -> Call:
    """A number made of all that ``call`` returns."""

    def summed(*inputs: Any) -> Any:
        found = call(*inputs)
        return sum(result.sin().sum() for result in (found if isinstance(found, tuple) else (found,)))

    return summed


def by_autograd(call: Call, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = learned(*inputs)
    grads: tuple[torch.Tensor, ...] = torch.autograd.grad(total(call)(*leaves), leaves)
    return grads


def stacked(results: list[Any]) -> Any:
    return torch.utils._pytree.tree_map(lambda *tensors: torch.stack(tensors), *results)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_gradients_of_torch_func(call: Call):
    found = torch.func.grad(total(call), (0, 1))(X, TABLE)
    torch.testing.assert_close(found, by_autograd(call, X, TABLE))


@pytest.mark.parametrize("places", [(0, None), (1, 1), (None, 1)])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_vmap(call: Call, places: tuple[int | None, int | None]):
    """Over tensors, captured tensors and both; some of the functions read the batch index, which stays the caller's."""
    x, table = random(3, 4, 2, 5, 4), random(2, 4, 12)
    given = x if places[0] is not None else X, table if places[1] is not None else TABLE
    found = torch.func.vmap(call, places)(*given)
    size = next(tensor.shape[at] for tensor, at in zip(given, places, strict=True) if at is not None)
    each = [
        [tensor if at is None else tensor.select(at, number) for tensor, at in zip(given, places, strict=True)]
        for number in range(size)
    ]
    torch.testing.assert_close(found, stacked([call(*inputs) for inputs in each]))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_gradients_for_each_example(call: Call):
    x = random(4, 3, 2, 5, 4)
    found = torch.func.vmap(torch.func.grad(total(call), (0, 1)), (0, None))(x, TABLE)
    torch.testing.assert_close(found, stacked([by_autograd(call, one, TABLE) for one in x]))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_forward_mode_and_second_derivatives(call: Call):
    moves = X.cos(), TABLE.sin()
    value, tangent = torch.func.jvp(total(call), (X, TABLE), moves)
    torch.testing.assert_close(value, total(call)(X, TABLE))
    first = by_autograd(call, X, TABLE)
    torch.testing.assert_close(tangent, sum((grad * move).sum() for grad, move in zip(first, moves, strict=True)))

    def along(x: Any, table: Any) -> Any:
        grads = torch.func.grad(total(call), (0, 1))(x, table)
        return sum((grad * move).sum() for grad, move in zip(grads, moves, strict=True))

    leaves = learned(X, TABLE)
    grads = torch.autograd.grad(total(call)(*leaves), leaves, create_graph=True)
    expected = torch.autograd.grad(sum((g * move).sum() for g, move in zip(grads, moves, strict=True)), leaves)
    torch.testing.assert_close(torch.func.grad(along, (0, 1))(X, TABLE), expected)
    forward_over_reverse = torch.func.jvp(torch.func.grad(total(call), (0, 1)), (X, TABLE), moves)[1]
    torch.testing.assert_close(forward_over_reverse, expected)


def test_dropout_in_vmap_is_that_of_each_example():
    def call(x: Any) -> Any:
        return rootdk.attention(x, x, x, dropout_p=0.5, seed=2**63 + 5)

    torch.testing.assert_close(torch.func.vmap(call)(X), torch.stack([call(x) for x in X]))


class Model(torch.nn.Module):
    """Attention with a learned table, a parameter of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(TABLE.clone())
        self.blocks = create_block_mask(causal, None, None, 5, 5, BLOCK_SIZE=2)

    def forward(self, x: Any) -> Any:
        def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return score + self.table[h, q - kv + 5]

        return flex_attention(x, x, x, score_mod, self.blocks) + rootdk.attention(x, x, x, mask=rootdk.causal())


def test_functional_calls():
    model = Model()

    def loss(parameters: Any) -> Any:
        return torch.func.functional_call(model, parameters, (X,)).sin().sum()

    other = {"table": TABLE.cos()}
    found = torch.func.grad(loss)(other)["table"]
    with torch.no_grad():
        model.table.copy_(other["table"])
    model(X).sin().sum().backward()
    assert found.any()
    torch.testing.assert_close(found, model.table.grad)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict: bool):
    model = Model()
    program = torch.export.export(model, (X,), strict=strict)
    assert "rootdk.attention" in str(program.graph)
    with torch.no_grad():
        program.state_dict["table"].mul_(2)
    torch.testing.assert_close(program.module()(X * 2), model(X * 2))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_traced_with_proxies(call: Call):
    graph = make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)(X, TABLE)
    torch.testing.assert_close(graph(X * 2, TABLE * 3), call(X * 2, TABLE * 3))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_fake_tensors_have_the_shapes(call: Call):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = call(mode.from_tensor(X), mode.from_tensor(TABLE))
    for fake, real in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, call(X, TABLE))), strict=True):
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def test_a_value_that_is_asked_for_while_there_is_none_is_an_error():
    flag = torch.tensor(True)

    def call(x: Any, flag: Any) -> Any:
        return flex_attention(x, x, x, lambda score, b, h, q, kv: score if flag else -score)

    torch.testing.assert_close(torch.func.vmap(lambda x: call(x[None], flag)[0])(X), call(X, flag))
    with pytest.raises(rootdk.ModError, match="value of flag"):
        torch.func.vmap(call, (None, 0))(X, torch.tensor([True, False]))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool):
    one, other = learned(X, TABLE), learned(X, TABLE)
    checkpoint(flex, *one, use_reentrant=reentrant).sin().sum().backward()
    flex(*other).sin().sum().backward()
    for found, expected in zip(one, other, strict=True):
        torch.testing.assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_casts_as_torchs_does(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    x = X.to(dtype)
    with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, expected = flex_attention(x, x, x), torchs.flex_attention(x, x, x)
        ours = rootdk.attention(x, x, x)
    assert found.dtype is expected.dtype is ours.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)
    (leaf,) = learned(x)
    with torch.autocast("cpu", torch.bfloat16):
        flex_attention(leaf, leaf, leaf, lambda score, b, h, q, kv: score * 2).sum().backward()
    assert leaf.grad.dtype is dtype


def test_flops_are_counted_forwards_and_backwards():
    with FlopCounterMode(display=False) as counter:
        total(flex)(*learned(X, TABLE)).backward()
    assert counter.get_total_flops() == 2 * 3 * 2 * 5 * 5 * ((4 + 4) + (3 * 4 + 2 * 4))


def sample(seed: int | None = None) -> list[Any]:
    """Arguments of the operator: a learned table, integers, sinks."""
    mods = ScoreMods(
        score_mod=lambda score, b, h, q, kv: score + NUMPYS[0][h, kv] * (b + 1), mask=rootdk.documents(NUMPYS[1])
    )
    traced = trace_mods(mods, (3, 2, 5, 5)).traced
    arrays = [torch.from_numpy(array) for array in traced.arrays]
    arrays = [array.clone().requires_grad_(array.is_floating_point()) for array in arrays]
    number = None if seed is None else torch.tensor(seed)
    return [*learned(X, X, X), arrays, *learned(TABLE[:, 0]), number, graph_text.write(traced)]


NUMPYS = np.ones((2, 5)), DOCUMENTS.numpy()


@pytest.mark.parametrize("memory", ["query", "bhsd", "bshd"])
def test_torch_finds_nothing_wrong_with_the_operator(memory: str):
    for seed, dropout_p in ((None, 0.0), (3, 0.5)):
        found = torch.library.opcheck(operators.forward, (*sample(seed), dropout_p, None, memory))
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
def test_torch_finds_nothing_wrong_with_the_derivatives():
    query, key, value, arrays, sinks, seed, mods = (
        torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, item) for item in sample()
    )
    inputs = query, key, value, arrays, sinks, seed
    output, lse = operators.forward(*inputs, mods, 0.0, None, "bhsd")
    wanted = [next(slot for slot, array in enumerate(arrays) if array.is_floating_point()), SINKS]
    rest = wanted, mods, 0.0, None
    moves = [query, None, value, arrays[wanted[0]], sinks]
    for operator, arguments in (
        (operators.backward, (output, lse, *inputs, output, lse, *rest)),
        (second_operators.jvp, (*inputs, moves, *rest)),
        (second_operators.double_backward, (output, lse, *inputs, moves, *rest)),
    ):
        assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}
