"""Calls with functions as Dynamo, torch.compile's tracer of Python, takes them: it has to see what the user wrote.

Dynamo runs a function on tensors that stand for one pair (markers.py), and notes it in a graph of torch's operations.
So a tensor that was captured becomes an input of the whole graph, which gradients reach and new values come through,
and of a number that was captured there is a guard. The function's graph is the body of one node, ``interpret.hop``,
which turns into the operator before anybody after Dynamo sees it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rootdk import arguments
from rootdk.errors import ModError
from rootdk.frontends.torch import interpret, markers
from rootdk.frontends.torch.arguments import Inputs, Options
from rootdk.frontends.torch.block_masks import Blocks
from rootdk.frontends.torch.shapes import Form
from rootdk.frontends.torch.watched import seed_tensor
from rootdk.mods.values import Combined, DenseMask, FunctionMask, Inverted, Made, Mask, Score, as_mask, as_score

__all__ = ["attend"]


def attend(inputs: Inputs, options: Options, memory: str, otherwise: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Output and LSE; Dynamo alone runs this.

    Where it cannot go on, ``otherwise`` is called outside of graphs instead, with canonical inputs and the rest.
    """
    form = Form.of(inputs, arguments.as_layout(options.layout))
    bias, sinks = _tensor(options.bias), options.sinks
    seed = seed_tensor(options.seed) if options.dropout_p else None
    numbers = options.dropout_p, options.scale, memory

    def body(
        query: Tensor, key: Tensor, value: Tensor, *, otherwise: Any = otherwise, options: Options = options,
        memory: str = memory,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        score, *pair = [markers.symbol(name, query.dtype) for name in ("score", *markers.INDICES)]
        with markers.Indexing():
            changed, visible = _changed(options.score_mod, score, pair), _visible(options.mask, pair)
        found: tuple[Tensor, Tensor] = markers.call(query, key, value, changed, visible, bias, sinks, seed, *numbers)
        return found

    with markers.Indexing():
        pass  # entered once outside, it may be entered inside: Dynamo looks at the first change of its stack only
    found = interpret.hop(body, *form.canonical(inputs))
    return form.restore(found[0]), form.restore_rows(found[1])


def _changed(score_mod: Any, score: Tensor, pair: list[Tensor]) -> Tensor | None:
    """The score after every step; None where there is none."""
    if score_mod is None:
        return None
    steps = score_mod if isinstance(score_mod, list | tuple) else (score_mod,)
    for number, given in enumerate(steps):
        changed = _step(as_score(given), score, pair)
        # what was hidden once stays hidden
        score = torch.where(score == -torch.inf, -torch.inf, changed) if number else changed
    return score


def _step(step: Score, score: Tensor, pair: list[Tensor]) -> Tensor:
    if step.made is not None:
        return _ready_made(step.made, [score, *pair])
    return _number(step.function(score, *pair), score)


def _visible(given: Any, pair: list[Tensor]) -> Tensor | None:
    """Whether the pair is visible; None where all are."""
    return None if given is None else _shows(as_mask(_tensor(given)), pair)


def _shows(mask: Mask, pair: list[Tensor]) -> Tensor:
    if isinstance(mask, Combined):
        left, right = _shows(mask.left, pair), _shows(mask.right, pair)
        return left & right if mask.operator == "&" else left | right
    if isinstance(mask, Inverted):
        return ~_shows(mask.mask, pair)
    if isinstance(mask, DenseMask):
        return _ready_made(Made("rootdk.masks", "mask", (mask.array,)), pair)
    if isinstance(mask, Blocks):
        found: Tensor = mask.visible(mask.table, mask.mask_mod(*pair), *pair)
        return found
    assert isinstance(mask, FunctionMask)
    return _ready_made(mask.made, pair) if mask.made is not None else _number(mask.function(*pair), pair[0])


def _ready_made(made: Made, symbols: list[Tensor]) -> Tensor:
    words, arrays, whole, real = [], [], [], []
    for argument in made.arguments:
        if isinstance(argument, Tensor | np.ndarray):
            arrays.append(_tensor(argument))
            words.append("array")
        elif isinstance(argument, int):
            whole.append(argument)
            words.append("int")
        elif isinstance(argument, float):
            real.append(argument)
            words.append("float")
        else:
            words.append(str(argument))
    found: Tensor = markers.ready_made(symbols, made.module, made.constructor, " ".join(words), arrays, whole, real)
    return found


def _number(result: Any, symbol: Tensor) -> Tensor:
    """What a function returned, as a tensor."""
    if isinstance(result, bool | int | float):
        return symbol.new_full((), result, dtype=torch.bool if isinstance(result, bool) else torch.float64)
    if not isinstance(result, Tensor):
        raise ModError(f"a mod returned a {type(result).__name__}; return one value for the pair")
    return result


def _tensor(array: Any) -> Any:
    return torch.as_tensor(array) if isinstance(array, np.ndarray) else array
