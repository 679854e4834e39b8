"""Cases that this project did not write: ONNX's own for its Attention operator."""

import ml_dtypes
import numpy as np
import pytest
from onnx_adapter import Case, cases, run

CASES = list(cases())
TOLERANCES = {
    np.dtype(np.float32): {"rtol": 1e-3, "atol": 1e-5},
    np.dtype(np.float16): {"rtol": 2e-3, "atol": 1e-3},
    np.dtype(ml_dtypes.bfloat16): {"rtol": 2e-2, "atol": 1e-3},
}


def test_all_cases_are_here() -> None:
    assert len(CASES) == 93


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.removeprefix("test_attention_"))
def test_case(case: Case) -> None:
    found = run(case.attributes, case.inputs)
    for name, expected in case.outputs.items():
        assert found[name].shape == expected.shape
        np.testing.assert_allclose(
            found[name].astype(np.float64), expected.astype(np.float64), **TOLERANCES[expected.dtype], err_msg=name
        )
