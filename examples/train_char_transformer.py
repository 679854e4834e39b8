"""Trains one small transformer twice, on rootdk and on plain torch, with a score function of learned parameters.

    python examples/train_char_transformer.py --plot loss.png

Both start from the same parameters and see the same characters in the same order, so their losses agree to rounding.
They take turns step by step, so what slows the machine down slows both, and the ratio of their times stands.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from char_text import VOCABULARY, batches, text
from char_transformer import ATTENTIONS, Attend, Size, Transformer
from torch import Tensor
from torch.nn.functional import cross_entropy

MODEL = Size(layers=4, width=128, heads=4, context=256, batch=16)
QUICK = Size(layers=2, width=32, heads=2, context=48, batch=4)
LEARNING_RATE = 1e-3


@dataclass
class Run:
    """A model in training: what one step did to it, step by step."""

    model: Transformer
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    """Nats per character."""
    seconds: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, size: Size, attend: Attend, seed: int) -> "Run":
        torch.manual_seed(seed)
        model = Transformer(size, VOCABULARY, attend)
        return cls(model, torch.optim.Adam(model.parameters(), LEARNING_RATE, fused=True))

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)


def train(size: Size, steps: int, seed: int) -> dict[str, Run]:
    """A run for each of ``ATTENTIONS``, trained in turns; progress goes to standard error."""
    runs = {name: Run.start(size, attend, seed) for name, attend in ATTENTIONS.items()}
    for step, batch in enumerate(islice(batches(text(), size.batch, size.context, seed), steps)):
        for run in in_turn(runs, step):
            run.step(*batch)
        if step % max(1, steps // 20) == 0 or step == steps - 1:
            losses = "  ".join(f"{name} {run.losses[-1]:.4f}" for name, run in runs.items())
            print(f"step {step:5}  {losses}", file=sys.stderr)
    return runs


def in_turn(runs: dict[str, Run], step: int) -> Iterator[Run]:
    """Who went last goes first."""
    return iter(runs.values()) if step % 2 == 0 else reversed(runs.values())


def summary(size: Size, runs: dict[str, Run]) -> dict[str, Any]:
    """Everything that the runs showed, as plain numbers."""
    first, second = runs.values()
    # The first step compiles, and no step after it does.
    seconds = {name: statistics.median(run.seconds[1:] or run.seconds) for name, run in runs.items()}
    return {
        "model": asdict(size),
        "parameters": sum(parameter.numel() for parameter in first.model.parameters()),
        "losses": {name: run.losses for name, run in runs.items()},
        "largest_difference": max(abs(a - b) for a, b in zip(first.losses, second.losses, strict=True)),
        "seconds_per_step": seconds,
        "ratio": seconds["torch"] / seconds["rootdk"],
        "slopes": {name: run.model.slopes().tolist() for name, run in runs.items()},
    }


def show(results: dict[str, Any]) -> None:
    """Print ``summary``'s essence."""
    steps = len(results["losses"]["rootdk"])
    print(f"{results['parameters']:,} parameters, {steps} steps of {results['model']}")
    for name, losses in results["losses"].items():
        print(f"{name:>7}: loss {losses[-1]:.4f}, {results['seconds_per_step'][name] * 1e3:.0f} ms a step")
    print(
        f"rootdk is {results['ratio']:.2f} times as fast; losses differ by {results['largest_difference']:.1e} at most"
    )
    print("learned slopes, one line a layer:")
    for slopes in results["slopes"]["rootdk"]:
        print("        ", "  ".join(f"{slope:8.4f}" for slope in slopes))


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw both losses, one over the other, and their difference."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    rootdk, torch_ = results["losses"]["rootdk"], results["losses"]["torch"]
    above.plot(torch_, label="torch, eager", color="tab:orange", linewidth=4, alpha=0.5)
    above.plot(rootdk, label="rootdk", color="black", linewidth=1)
    above.set_ylabel("loss, nats per character")
    above.set_title(f"Learned ALiBi slopes: the same training, {results['ratio']:.2f} times as fast per step")
    above.legend()
    below.semilogy([abs(a - b) for a, b in zip(rootdk, torch_, strict=True)], ".", color="black", markersize=3)
    below.set_ylabel("difference")
    below.set_xlabel("step")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="training steps (default: 400)")
    parser.add_argument("--seed", type=int, default=0, help="of the parameters and of the batches (default: 0)")
    parser.add_argument("--quick", action="store_true", help="a tiny model: shows that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a summary")
    parser.add_argument("--plot", type=Path, help="draw the losses to this .png or .svg file; needs matplotlib")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps: expected at least 1, got {arguments.steps}")
    size = QUICK if arguments.quick else MODEL
    results = summary(size, train(size, arguments.steps, arguments.seed))
    if arguments.plot:
        plot(results, arguments.plot)
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        show(results)


if __name__ == "__main__":
    main()
