"""ONNX's Attention operator (opsets 23 to 25) by rootdk: what its inputs and attributes mean, and its test cases."""

import contextlib
import functools
import importlib
import io
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases

import rootdk
from rootdk import reference

__all__ = ["Case", "cases", "run"]

_INPUTS = ("query", "key", "value", "mask", "past_key", "past_value", "kv_lengths")
_OUTPUTS = ("output", "present_key", "present_value", "scores")
_UNBOUNDED = 1 << 30
_SCORE_STEPS = {0: "scaled_scores", 1: "modified_scores", 2: "masked_scores", 3: "weights"}
"""What the optional output of scores holds, by the attribute that chooses."""


@dataclass(frozen=True)
class Case:
    """One of ONNX's cases: inputs and expected outputs by name, those that are absent left out."""

    name: str
    attributes: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def cases() -> Iterator[Case]:
    """ONNX's cases of Attention. They are made once a process: the module registers them when it is imported."""
    node_cases._TargetOpType = "Attention"
    node_cases._NodeTestCases.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        importlib.import_module("onnx.backend.test.case.node.attention")
    for case in node_cases._NodeTestCases:
        if "_expanded" in case.name:  # the same, written out in basic operators
            continue
        node = case.model.graph.node[0]
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        inputs, outputs = case.data_sets[0]
        yield Case(
            case.name, attributes, _by_name(_INPUTS, node.input, inputs), _by_name(_OUTPUTS, node.output, outputs)
        )


def _by_name(slots: tuple[str, ...], used: Any, arrays: Any) -> dict[str, np.ndarray]:
    present = [slot for slot, name in zip(slots, used, strict=False) if name]
    return dict(zip(present, map(_as_array, arrays), strict=True))


def _as_array(array: Any) -> np.ndarray:
    return onnx.numpy_helper.to_array(array) if isinstance(array, onnx.TensorProto) else np.asarray(array)


def run(attributes: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All four outputs of the operator, by name."""
    flat = inputs["query"].ndim == 3
    heads, kv_heads = (attributes.get(name) for name in ("q_num_heads", "kv_num_heads"))
    query = _split(inputs["query"], heads)
    key, value = (_split(inputs[name], kv_heads) for name in ("key", "value"))
    if "past_key" in inputs:
        key = np.concatenate([inputs["past_key"], key], axis=2)
        value = np.concatenate([inputs["past_value"], value], axis=2)
    options: dict[str, Any] = {"scale": attributes.get("scale")} | _mods(attributes, inputs, query, key)
    output = rootdk.attention(query, key, value, **options)
    return {
        "output": output.swapaxes(1, 2).reshape(*inputs["query"].shape[:2], -1) if flat else output,
        "present_key": key,
        "present_value": value,
        "scores": _scores(attributes.get("qk_matmul_output_mode", 0), (query, key, value), options),
    }


def _split(array: np.ndarray, heads: int | None) -> np.ndarray:
    """[batch, len, heads * d] -> [batch, heads, len, d]; four dimensions are left alone."""
    if array.ndim == 4:
        return array
    return array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)


def _scores(mode: int, arrays: tuple[np.ndarray, ...], options: dict[str, Any]) -> np.ndarray:
    """The step of the score matrix that ``mode`` names. To ONNX a floating mask is a mask, to rootdk a bias."""
    shown = {name: option for name, option in options.items() if mode > 1 or name != "bias"}
    found: np.ndarray = getattr(reference.attention(*arrays, **shown), _SCORE_STEPS[mode])
    return found


def _mods(
    attributes: Mapping[str, Any], inputs: Mapping[str, np.ndarray], query: np.ndarray, key: np.ndarray
) -> dict[str, Any]:
    """Score functions, mask and bias."""
    masks = _positions(attributes, _offsets(inputs, query))
    options: dict[str, Any] = {}
    if "kv_lengths" in inputs:
        masks.append(rootdk.lengths(inputs["kv_lengths"]))
    if "mask" in inputs:
        given = inputs["mask"]
        padding = [(0, 0)] * (given.ndim - 1) + [(0, key.shape[2] - given.shape[-1])]
        if given.dtype == np.bool_:
            masks.append(np.pad(given, padding))
        else:
            options["bias"] = np.pad(given, padding, constant_values=-np.inf)
    if cap := attributes.get("softcap"):
        options["score_mod"] = rootdk.softcap(cap)
    return options | {"mask": functools.reduce(operator.and_, map(rootdk.mask, masks)) if masks else None}


def _offsets(inputs: Mapping[str, np.ndarray], query: np.ndarray) -> np.ndarray:
    """[batch]: the key at which query 0 stands; negative where a batch element has fewer keys than queries."""
    if "past_key" in inputs:
        return np.full(len(query), inputs["past_key"].shape[2])
    if "kv_lengths" in inputs:
        return inputs["kv_lengths"] - query.shape[2]
    return np.zeros(len(query), np.int64)


def _positions(attributes: Mapping[str, Any], offsets: np.ndarray) -> list[Any]:
    """The mask that causality and the window make, if they do: from ``left`` before to ``right`` after the position."""
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    left, right = (_UNBOUNDED if side < 0 else side for side in (left, right))
    if attributes.get("is_causal"):
        right = 0
    if left == right == _UNBOUNDED:
        return []
    return [lambda b, h, q, kv: (q + offsets[b] - left <= kv) & (kv <= q + offsets[b] + right)]
