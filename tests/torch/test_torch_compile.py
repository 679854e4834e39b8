"""flex_attention and attention under torch.compile, in one graph: functions, gradients, values that change."""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import AuxRequest
from torch.utils.checkpoint import checkpoint

import rootdk
from rootdk.torch import create_block_mask, flex_attention

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


LENGTH = 9
X, KEY, TABLE = random(2, 4, LENGTH, 16), random(2, 2, LENGTH, 16), random(4, 30)
DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
OTHERS = ~rootdk.documents(DOCUMENTS)
PATTERN = np.tril(np.ones((LENGTH, LENGTH), bool))
FACTOR = 0.5


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def learned(table: torch.Tensor) -> Callable[..., Any]:
    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        score = score * FACTOR + table[h][q - kv + 10] + table[h, DOCUMENTS[q]]
        return torch.where(kv <= q + 3, score + table.exp()[h, 0], -float("inf"))

    return score_mod


BLOCKS = create_block_mask(causal, None, None, LENGTH, LENGTH, BLOCK_SIZE=4)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda x, table: flex_attention(x, x, x),
    "score function": lambda x, table: flex_attention(x, x, x, learned(table)),
    "block mask": lambda x, table: flex_attention(x, x, x, block_mask=BLOCKS),
    "grouped, lse": lambda x, table: flex_attention(
        x, KEY, KEY, learned(table), BLOCKS, enable_gqa=True, return_lse=True
    ),
    "parts of one tensor": lambda x, table: flex_attention(
        *x.chunk(2, -1), x, lambda score, b, h, q, kv: score + table[:, 0][h] * table[:, 1][h] + x[0, h, q, 0]
    ),
    "causal": lambda x, table: rootdk.attention(x, x, x, mask=rootdk.causal()),
    "causal and alibi": lambda x, table: rootdk.attention(x, x, x, mask=rootdk.causal(), score_mod=rootdk.alibi()),
    "steps": lambda x, table: rootdk.attention(
        x, x, x, mask=causal, score_mod=(rootdk.softcap(3.0), learned(table), rootdk.alibi(table[:, 0]))
    ),
    "algebra of masks": lambda x, table: rootdk.attention(
        x, x, x, mask=(rootdk.sliding_window(3) | rootdk.sink_tokens(2)) & OTHERS | rootdk.mask(causal)
    ),
    "bias and sinks": lambda x, table: rootdk.attention(
        x, x, x, bias=table[:, :LENGTH, None], sinks=table[:, 0], scale=0.3, return_lse=True
    ),
    "dense mask": lambda x, table: rootdk.attention(x, x, x, mask=X[0, 0, :, :LENGTH] > 0),
    "NumPy's mask": lambda x, table: rootdk.attention(x, x, x, mask=PATTERN),
    "other layout": lambda x, table: rootdk.attention(
        x, x, x, layout="bshd", mask=rootdk.causal(), score_mod=rootdk.softcap(table[0, 0].abs()), return_lse=True
    ),
    "one head": lambda x, table: rootdk.attention(x[0, 0], x[0, 1], x[0, 1], mask=causal, return_lse=True),
    "broadcast": lambda x, table: rootdk.attention(x, x[0], x[0], score_mod=rootdk.relative_bias(table[:, :29])),
    "dropout": lambda x, table: rootdk.attention(x, x, x, dropout_p=0.5, seed=3),
}


def results(call: Callable[..., Any], x: torch.Tensor, table: torch.Tensor) -> list[Any]:
    """Outputs, and the gradients of both tensors."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, table)]
    found = call(leaves[0] * 2, leaves[1] * 1)
    outputs = found if isinstance(found, tuple) else (found,)
    torch.stack([output.sin().sum() for output in outputs]).sum().backward()
    return [*outputs, *(leaf.grad for leaf in leaves)]


def check(call: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    for found, expected in zip(results(compiled, X, TABLE), results(call, X, TABLE), strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


QUICK = ("nothing", "score function", "block mask", "causal and alibi", "bias and sinks", "other layout")


@pytest.mark.parametrize(
    "call",
    [pytest.param(call, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, call in CALLS.items()],
)
def test_one_graph_forwards_and_backwards(call: Callable[..., Any]):
    check(call, torch.compile(call, fullgraph=True, backend="aot_eager"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("call", ["grouped, lse", "steps"])
def test_other_backends(call: str, backend: str):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor needs g++")
    check(CALLS[call], torch.compile(CALLS[call], fullgraph=True, backend=backend))


def test_a_parameter_that_a_function_captured_learns():
    table = torch.nn.Parameter(TABLE.clone())
    compiled = torch.compile(lambda x: flex_attention(x, x, x, learned(table)), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        gradients = []
        for call in (compiled, lambda x: flex_attention(x, x, x, learned(table))):
            table.grad = None
            call(X).sin().sum().backward()
            gradients.append(table.grad)
        assert gradients[0].any()
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            table.sub_(gradients[0])


def test_values_that_change_between_calls_are_not_stale():
    captured = {"factor": 0.5, "window": 3, "table": TABLE.clone()}

    def call(x: torch.Tensor) -> torch.Tensor:
        def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
            return score * captured["factor"] + captured["table"][h, kv]

        window = captured["window"]
        mask = rootdk.sliding_window(window) & rootdk.mask(lambda b, h, q, kv: kv != window + 1)
        return rootdk.attention(x, x, x, mask=mask, score_mod=score_mod)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    changes = [("factor", 0.7), ("factor", -1.5), ("window", 4), ("window", 2), ("table", -TABLE)]
    torch.testing.assert_close(compiled(X), call(X))
    for name, value in changes:
        captured[name] = value
        torch.testing.assert_close(compiled(X), call(X), msg=lambda text, name=name: f"{name}: {text}")
    captured["table"].mul_(3)
    torch.testing.assert_close(compiled(X), call(X))


def test_a_mask_that_comes_as_an_argument_may_be_another_one():
    compiled = torch.compile(lambda x, mask: rootdk.attention(x, x, x, mask=mask), fullgraph=True, backend="aot_eager")
    for mask in (rootdk.causal(), rootdk.sliding_window(2), rootdk.sliding_window(3), rootdk.sliding_window(4), causal):
        torch.testing.assert_close(compiled(X, mask), rootdk.attention(X, X, X, mask=mask))


def test_a_block_mask_that_comes_as_an_argument_may_be_another_one():
    compiled = torch.compile(
        lambda x, mask: flex_attention(x, x, x, block_mask=mask), fullgraph=True, backend="aot_eager"
    )
    for width in (2, 5, 8):
        mask = create_block_mask(lambda b, h, q, kv: q - kv < width, None, None, LENGTH, LENGTH, BLOCK_SIZE=4)  # noqa: B023
        torch.testing.assert_close(compiled(X, mask), flex_attention(X, X, X, block_mask=mask))


def test_lengths_may_change_without_a_new_graph():
    counter = CompileCounterWithBackend("aot_eager")

    def call(x: torch.Tensor) -> torch.Tensor:
        return flex_attention(x, x, x, lambda score, b, h, q, kv: score - (q - kv) * 0.1)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    compiled(X)
    graphs = counter.frame_count
    for length in (5, 7, 4):
        shorter = X[:, :, :length].contiguous()
        torch.testing.assert_close(compiled(shorter), call(shorter))
    assert counter.frame_count == graphs


def test_dropout_without_a_seed_follows_torchs_generator():
    compiled = torch.compile(lambda x: rootdk.attention(x, x, x, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    first, second = compiled(X), compiled(X)
    torch.manual_seed(0)
    assert torch.equal(compiled(X), first)
    assert not torch.equal(first, second)


def one_table(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return flex_attention(x, x.cos(), x, lambda score, b, h, q, kv: score + table[h, q - kv + 10])


INSIDE: dict[str, Callable[[Any, Any], Any]] = {
    "grad": torch.func.grad(lambda x, table: one_table(x, table).sin().sum(), (0, 1)),
    "vmap": torch.func.vmap(lambda x, table: one_table(x[None], table), (0, None)),
    "gradients for each example": torch.func.vmap(
        torch.func.grad(lambda x, table: one_table(x[None], table).sin().sum(), (0, 1)), (0, None)
    ),
    "autocast": torch.autocast("cpu", torch.bfloat16)(one_table),
    "no gradients": torch.no_grad()(one_table),
}


@pytest.mark.parametrize("call", INSIDE.values(), ids=INSIDE.keys())
def test_transforms_and_modes_inside_compiled_code(call: Callable[[Any, Any], Any]):
    compiled = torch.compile(lambda x, table: call(x, table), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X, TABLE), call(X, TABLE))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_checkpoints_inside_compiled_code(fullgraph: bool):
    def call(x: torch.Tensor, table: torch.Tensor) -> Any:
        return checkpoint(one_table, x, table, use_reentrant=False)

    # without it Dynamo leaves what is checkpointed out of its graph, as indexing enters a mode of torch's there
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=fullgraph):
        check(call, torch.compile(call, fullgraph=fullgraph, backend="aot_eager"))


def test_what_dynamo_cannot_follow_breaks_the_graph_and_stays_right():
    seen = []

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        torch._dynamo.graph_break()
        seen.append(type(score).__name__)
        return score * 2

    def call(x: torch.Tensor) -> torch.Tensor:
        return flex_attention(x * 2, x, x, score_mod, BLOCKS).sin()

    compiled = torch.compile(call, backend="aot_eager")
    torch.testing.assert_close(compiled(X), call(X))
    assert set(seen) == {"Sym"}


def test_the_greatest_scores_are_left_out_of_graphs():
    def call(x: torch.Tensor) -> Any:
        output, aux = flex_attention(x * 2, x, x, block_mask=BLOCKS, return_aux=AuxRequest(max_scores=True))
        return output, aux.max_scores

    torch.testing.assert_close(torch.compile(call, backend="aot_eager")(X), call(X))
    with pytest.raises(rootdk.ArgumentError, match="max_scores"):
        torch.func.vmap(call)(X[None])


@pytest.mark.parametrize("mod, words", [
    (lambda score, b, h, q, kv: score.cumsum(0), "cumsum cannot be compiled in a mod"),
    (lambda score, b, h, q, kv: score + TABLE, "returned an array of shape"),
])  # fmt: skip
def test_mistakes_are_named(mod: Any, words: str):
    compiled = torch.compile(lambda x: flex_attention(x, x, x, mod), backend="aot_eager")
    with pytest.raises(Exception, match=words):
        compiled(X)
