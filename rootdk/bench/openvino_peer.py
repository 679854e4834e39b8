"""OpenVINO's scaled dot-product attention operator."""

from typing import Any

import numpy as np

from rootdk.bench.cases import Arrays, Case
from rootdk.bench.prepared import Prepared, UnavailableError, heads_first

__all__ = ["sdpa"]


def sdpa(case: Case, arrays: Arrays) -> Prepared:
    """Operator ScaledDotProductAttention, opset 13, on [batch, heads, len, d]."""
    if case.dtype != "float32":
        raise UnavailableError(f"computes {case.dtype} in another precision")
    if case.heads != case.kv_heads:
        raise UnavailableError("its operator has no grouped heads")
    if case.pattern not in ("full", "causal"):
        raise UnavailableError(f"its operator has no {case.pattern}")
    import openvino
    from openvino import opset13

    inputs = [np.ascontiguousarray(heads_first(array, case.layout)) for array in arrays]
    parameters = [opset13.parameter(array.shape, array.dtype) for array in inputs]
    node = opset13.scaled_dot_product_attention(*parameters, causal=case.pattern == "causal")
    compiled = openvino.Core().compile_model(
        openvino.Model([node], parameters), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    request = compiled.create_infer_request()

    def call() -> Any:
        return request.infer(inputs, share_inputs=True, share_outputs=True)

    return Prepared(call, lambda outputs: np.array(outputs[0]))
