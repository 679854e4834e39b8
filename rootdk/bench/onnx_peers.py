"""ONNX Runtime: the standard Attention operator, and the older MultiHeadAttention of its own domain."""

import os
from functools import partial
from typing import Any

import numpy as np

from rootdk.bench.cases import Arrays, Case
from rootdk.bench.patterns import CAP
from rootdk.bench.prepared import Prepared, UnavailableError, heads_first, lengths_first

__all__ = ["attention", "multi_head_attention"]

_ATTRIBUTES: dict[str, dict[str, Any]] = {"full": {}, "causal": {"is_causal": 1}, "softcap": {"softcap": CAP}}


def attention(case: Case, arrays: Arrays) -> Prepared:
    """Operator Attention, opset 23, on [batch, heads, len, d]."""
    if case.dtype not in ("float16", "float32"):
        raise UnavailableError(f"its Attention takes no {case.dtype}")
    if case.pattern not in _ATTRIBUTES:
        raise UnavailableError(f"its Attention has no {case.pattern}")
    inputs = [np.ascontiguousarray(heads_first(array, case.layout)) for array in arrays]
    run = _session("Attention", "", inputs, _ATTRIBUTES[case.pattern])
    return Prepared(run, lambda outputs: outputs[0])


def multi_head_attention(case: Case, arrays: Arrays) -> Prepared:
    """Operator MultiHeadAttention of com.microsoft, on [batch, len, heads * d], the layout it is made for."""
    if case.dtype != "float32":
        raise UnavailableError("its MultiHeadAttention takes float32 only")
    if case.heads != case.kv_heads:
        raise UnavailableError("its MultiHeadAttention has no grouped heads")
    if case.pattern not in ("full", "causal"):
        raise UnavailableError(f"its MultiHeadAttention has no {case.pattern}")
    inputs = [
        np.ascontiguousarray(lengths_first(array, case.layout)).reshape(case.batch, array_length, -1)
        for array, array_length in zip(arrays, (case.q_len, case.kv_len, case.kv_len), strict=True)
    ]
    attributes = {"num_heads": case.heads, "unidirectional": int(case.pattern == "causal")}
    run = _session("MultiHeadAttention", "com.microsoft", inputs, attributes)
    shape = (case.batch, case.q_len, case.heads, case.d_v)
    return Prepared(run, lambda outputs: outputs[0].reshape(shape).swapaxes(1, 2))


def _session(operator: str, domain: str, inputs: list[np.ndarray], attributes: dict[str, Any]) -> Any:
    """A function that runs a model of one node on ``inputs``."""
    import onnxruntime
    from onnx import TensorProto, helper

    names = ["query", "key", "value"]
    kind = helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    assert kind in (TensorProto.FLOAT, TensorProto.FLOAT16)
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["output"], domain=domain, **attributes)],
        "attention",
        [helper.make_tensor_value_info(name, kind, array.shape) for name, array in zip(names, inputs, strict=True)],
        [helper.make_tensor_value_info("output", kind, [None] * inputs[0].ndim)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    # Its workers would spin on after a call and take the cores from whoever is timed next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return partial(session.run, None, dict(zip(names, inputs, strict=True)))
