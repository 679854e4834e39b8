"""The examples run, and show what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_training_takes_the_same_course_on_rootdk_and_on_torch(tmp_path):
    picture = tmp_path / "loss.svg"
    command = [sys.executable, str(EXAMPLES / "train_char_transformer.py"), "--quick", "--steps", "4", "--json"]
    # Tests run beside each other: with more threads than cores, torch's wait for each other at every operation.
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += ["--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    losses = results["losses"]
    assert len(losses["rootdk"]) == 4
    np.testing.assert_allclose(losses["rootdk"], losses["torch"], atol=1e-4)
    assert losses["rootdk"][-1] < losses["rootdk"][0]
    np.testing.assert_allclose(results["slopes"]["rootdk"], results["slopes"]["torch"], atol=1e-3)
    assert results["seconds_per_step"].keys() == losses.keys()
    assert "</svg>" in picture.read_text()


def test_every_parameter_has_the_gradient_that_torch_finds(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from char_text import VOCABULARY, batches, text
    from char_transformer import ATTENTIONS, Transformer
    from train_char_transformer import QUICK

    inputs, targets = next(batches(text(), QUICK.batch, QUICK.context, seed=1))
    gradients = {}
    for name, attend in ATTENTIONS.items():
        torch.manual_seed(1)
        model = Transformer(QUICK, VOCABULARY, attend)
        torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        gradients[name] = {name: parameter.grad for name, parameter in model.named_parameters()}
    slopes = [name for name in gradients["rootdk"] if name.endswith("slopes")]
    assert len(slopes) == QUICK.layers
    assert all(gradients["rootdk"][name].count_nonzero() == QUICK.heads for name in slopes)
    torch.testing.assert_close(gradients["rootdk"], gradients["torch"], atol=1e-5, rtol=1e-4)


def test_the_text_is_long_and_the_targets_are_one_character_on(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from char_text import VOCABULARY, batches, text

    characters = text()
    assert len(characters) > 1_000_000
    assert 0 <= characters.min() <= characters.max() < VOCABULARY
    inputs, targets = next(batches(characters, 3, 10, seed=0))
    assert inputs.shape == targets.shape == (3, 10)
    assert inputs[:, 1:].equal(targets[:, :-1])
    assert inputs.equal(next(batches(characters, 3, 10, seed=0))[0])
