"""The public names, and how a call finds its array library."""

import subprocess
import sys

import numpy as np
import pytest

import rootdk
from rootdk import api


def test_every_public_name_is_there():
    for name in rootdk.__all__:
        assert getattr(rootdk, name) is not None


def test_every_public_function_is_documented():
    for name in rootdk.__all__:
        assert len(getattr(rootdk, name).__doc__) > 20, name


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'rootdk' has no attribute 'atention'"):
        rootdk.atention  # noqa: B018


def test_torch_s_module_is_loaded_on_first_use():
    program = (
        "import sys, rootdk; assert 'torch' not in sys.modules; rootdk.torch.scaled_dot_product_attention; "
        "assert 'torch' in sys.modules; assert callable(rootdk.plan)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_first_call_leaves_public_functions_as_they_are():
    program = (
        "import numpy as np, rootdk; x = np.ones((2, 2), np.float32); rootdk.attention(x, x, x); "
        "rootdk.plan(x, x, x); assert callable(rootdk.plan) and callable(rootdk.mask) and callable(rootdk.score)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_subclass_of_ndarray_goes_to_numpy(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 4))
    mapped[...] = np.eye(4)
    plain = np.eye(4, dtype=np.float32)
    assert np.array_equal(rootdk.attention(mapped, mapped, mapped), rootdk.attention(plain, plain, plain))


@pytest.mark.parametrize("query", [[[1.0]], None, "q", 1.0])
def test_what_is_no_array(query):
    array = np.ones((1, 1), np.float32)
    for function in (rootdk.attention, rootdk.plan):
        with pytest.raises(rootdk.DTypeError, match=f"got {type(query).__name__}; convert it: np.asarray"):
            function(query, array, array)


def test_an_array_among_others_that_are_none():
    array = np.ones((1, 1), np.float32)
    with pytest.raises(rootdk.DTypeError, match="key: expected an array, got list"):
        rootdk.attention(array, [[1.0]], array)


def test_libraries_are_told_by_their_arrays_type():
    class Tensor:
        __module__ = "torch.nn"

    assert api._frontend(Tensor).__name__ == "rootdk.frontends.torch"
    assert api._frontend(np.ndarray).__name__ == "rootdk.frontends.numpy"
