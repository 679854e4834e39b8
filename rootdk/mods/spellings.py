"""What NumPy, torch and Python call each function: the tables that a call on a symbol is looked up in.

Aliases are written "canonical: other names". A name that is missing here is refused by name, so the tables are also the
list of what mods may call.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rootdk.dtypes import Kind
from rootdk.mods import composites, conversions, lang, rows
from rootdk.mods.promotion import kind_of
from rootdk.mods.refusals import user_knows
from rootdk.mods.symbols import Symbolic

__all__ = ["ATTRIBUTES", "FUNCTIONS", "HINTS"]

_TABLES: tuple[tuple[Any, str], ...] = (
    (
        lang,
        """
        exp: special_exp
        exp2: special_exp2
        expm1: special_expm1
        log:
        log2:
        log1p: special_log1p
        sqrt:
        tanh:
        sigmoid: special_expit expit
        sin:
        cos:
        erf: special_erf
        absolute: abs fabs __abs__
        negative: neg
        is_nan: isnan
        logical_not:
        bit_not: bitwise_not invert bitwise_invert __invert__
        multiply: mul __mul__ __rmul__
        floor_divide: __floordiv__
        remainder: mod __mod__
        minimum:
        maximum:
        equal: eq __eq__
        not_equal: ne __ne__
        less: lt __lt__
        less_equal: le __le__
        greater: gt __gt__
        greater_equal: ge __ge__
        logical_and:
        logical_or:
        logical_xor:
        bit_and: bitwise_and __and__ __rand__
        bit_or: bitwise_or __or__ __ror__
        bit_xor: bitwise_xor __xor__ __rxor__
        shift_left: bitwise_left_shift left_shift __lshift__
        shift_right: bitwise_right_shift right_shift __rshift__
        where:
        floor: special_floor
        ceil:
        trunc: fix
        nearest: rint
        power: pow __pow__
        """,
    ),
    (
        composites,
        """
        add_scaled: add __add__ __radd__
        subtract_scaled: subtract sub __sub__
        reversed_subtract: rsub __rsub__
        divide_rounding: divide div true_divide __truediv__
        round_to: round around special_round
        clip_named: clip clamp
        clip_min: clamp_min
        clip_max: clamp_max
        square:
        reciprocal:
        rsqrt:
        log10:
        sinh:
        cosh:
        tan:
        sign: sgn
        is_inf: isinf
        is_positive_inf: isposinf
        is_negative_inf: isneginf
        is_finite: isfinite
        nan_to_num:
        fmod:
        masked_fill:
        maximum_ignoring_nan: fmax
        minimum_ignoring_nan: fmin
        lerp:
        hypot:
        logaddexp:
        copysign:
        heaviside:
        divmod_pair: divmod
        float_power:
        frac:
        logit: special_logit
        relu:
        relu6:
        gelu:
        silu: swish
        mish:
        softplus:
        log_sigmoid: logsigmoid
        softsign: soft_sign
        tanhshrink:
        leaky_relu:
        elu:
        celu:
        selu:
        hardtanh: hard_tanh
        hardsigmoid: hard_sigmoid
        hardswish: hard_silu
        threshold: _threshold
        """,
    ),
    (
        conversions,
        """
        to_float: float double half bfloat16 float32 float64 float16
        to_int: int long short char byte int32 int64
        to_bool: bool
        convert: to astype type type_as asarray as_tensor
        """,
    ),
    (
        rows,
        """
        sum_: sum
        prod:
        mean:
        any_: any
        all_: all
        amax: nanmax
        amin:
        max_: max
        min_: min
        dot: inner vdot vecdot
        matmul: __matmul__ mv mm
        norm: linalg_norm vector_norm linalg_vector_norm
        size:
        unsqueeze: expand_dims
        squeeze:
        permute:
        transpose: swapaxes t
        reshape: view
        flatten: ravel
        take: index_select
        item_at: __getitem__
        embedding:
        stacked: stack
        is_float: is_floating_point
        """,
    ),
)


def _each(names: str, value: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


def _collected() -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {}
    for module, table in _TABLES:
        for line in table.split("\n"):
            name, _, others = line.strip().partition(":")
            for spelling in (name, *others.split()):
                if spelling:
                    functions[spelling] = getattr(module, name)
    return functions


def _unchanged(input: Any, *_: Any, **__: Any) -> Any:
    return input


def _zeros(input: Any, size: Any = (), *, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(input, 0, size, dtype)


def _ones(input: Any, size: Any = (), *, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(input, 1, size, dtype)


def _full(input: Any, size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(input, fill_value, size, dtype)


def _zeros_like(input: Any, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(input, 0, input.shape, dtype)


def _ones_like(input: Any, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(input, 1, input.shape, dtype)


def _full_like(input: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(input, fill_value, input.shape, dtype)


def _full_of(size: Any, fill_value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(fill_value, fill_value, size, dtype)


def _new(input: Any, data: Any, *, dtype: Any = None, **_: Any) -> Any:
    return conversions.filled(input, data, (), dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_collected(),
    **_each(
        "clone detach contiguous cpu copy requires_grad_ expand expand_as broadcast_to positive conj real resolve_conj "
        "view_as reshape_as ascontiguousarray alias stop_gradient",
        _unchanged,
    ),
    "new_zeros": _zeros,
    "new_ones": _ones,
    "new_full": _full,
    "new_tensor": _new,
    "zeros_like": _zeros_like,
    "ones_like": _ones_like,
    "full_like": _full_like,
    "full": _full_of,
    "dim": lambda input: len(input.shape),
    "numel": lambda input: int(np.prod(input.shape)),
}
"""By the name that a library, or a method of its arrays, has for it."""


def _torch() -> Any:
    """torch, if the user's code imports it: its functions take only its own element types and devices."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and user_knows(torch) else None


def _dtype(input: Symbolic) -> Any:
    torch = _torch()
    kind = kind_of(input)
    if torch is None:
        return np.dtype({Kind.BOOL: np.bool_, Kind.INT: np.int64, Kind.FLOAT: np.float32}[kind])
    return {Kind.BOOL: torch.bool, Kind.INT: torch.int64, Kind.FLOAT: torch.float32}[kind]


def _device(input: Symbolic) -> Any:
    torch = _torch()
    return "cpu" if torch is None else torch.device("cpu")


ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "dtype": _dtype,
    "device": _device,
    "ndim": lambda input: len(input.shape),
    "T": rows.permute,
    "mT": lambda input: rows.transpose(input, -2, -1),
    "data": _unchanged,
    "real": _unchanged,
    "requires_grad": lambda input: False,
    "is_cuda": lambda input: False,
    "is_sparse": lambda input: False,
}

_REDUCES = "a mod sees one pair at a time, and softmax over the keys comes after it; per-row values: capture an array"
HINTS: dict[str, str] = {
    **_each("softmax log_softmax logsumexp cumsum cumprod sort argsort topk argmax argmin std var", _REDUCES),
    **_each(
        "rand_like randn_like bernoulli dropout multinomial normal uniform randint_like alpha_dropout",
        "for dropout pass dropout_p= and seed=; for fixed noise draw an array outside and index it",
    ),
    **_each("numpy cuda backward register_hook", "leave it out: values exist only when the kernel runs"),
    **_each(
        "__setitem__ index_put index_fill scatter scatter_add copyto put fill put_along_axis",
        "a mod cannot write into an array: compute the new value, with where(condition, new, old)",
    ),
}
"""What to do instead of a function that mods cannot have."""
