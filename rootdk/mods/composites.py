"""Functions that are not in the operation table, composed of those that are: activations, tests, roundings.

Parameters are named and ordered as in torch, whose users write them by name.
"""

import math
from typing import Any

from rootdk.dtypes import Kind
from rootdk.mods.conversions import to_float
from rootdk.mods.lang import (
    absolute,
    clip,
    cos,
    erf,
    exp,
    expm1,
    is_nan,
    log,
    log1p,
    log2,
    maximum,
    minimum,
    nearest,
    power,
    sigmoid,
    sin,
    sqrt,
    tanh,
    trunc,
    where,
)
from rootdk.mods.promotion import kind_of
from rootdk.mods.refusals import refuse

LOG2_10 = math.log2(10.0)


def square(input: Any) -> Any:
    return input * input


def reciprocal(input: Any) -> Any:
    return 1.0 / input


def rsqrt(input: Any) -> Any:
    return 1.0 / sqrt(input)


def log10(input: Any) -> Any:
    return log2(input) / LOG2_10


def sinh(input: Any) -> Any:
    return (expm1(input) - expm1(-input)) / 2.0


def cosh(input: Any) -> Any:
    return (exp(input) + exp(-input)) / 2.0


def sign(input: Any) -> Any:
    """-1, 0 or 1; NaN of NaN."""
    zero = input * 0
    return where(input > 0, 1, where(input < 0, -1, zero))


def is_inf(input: Any) -> Any:
    return absolute(input) == math.inf


def is_positive_inf(input: Any) -> Any:
    return input == math.inf


def is_negative_inf(input: Any) -> Any:
    return input == -math.inf


def is_finite(input: Any) -> Any:
    return absolute(input) < math.inf


def nan_to_num(input: Any, nan: Any = 0.0, posinf: Any = None, neginf: Any = None, copy: bool = True) -> Any:
    """Finite numbers for NaN and the infinities; by default 0 and the largest of float32, whatever the precision."""
    largest = 3.4028234663852886e38
    value = where(is_nan(input), nan, input)
    value = where(value == math.inf, largest if posinf is None else posinf, value)
    return where(value == -math.inf, -largest if neginf is None else neginf, value)


def fmod(input: Any, other: Any) -> Any:
    """The remainder that has the sign of ``input``."""
    rest = absolute(input) % absolute(other)
    return where(input < 0, -rest, rest)


def divide_rounding(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return input / other
    if rounding_mode == "floor":
        return input // other
    if kind_of(input) is Kind.FLOAT or kind_of(other) is Kind.FLOAT:
        return trunc(input / other)
    quotient = absolute(input) // absolute(other)
    return where((input < 0) ^ (other < 0), -quotient, quotient)


def add_scaled(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return input + other if alpha == 1 else input + other * alpha


def subtract_scaled(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return input - other if alpha == 1 else input - other * alpha


def reversed_subtract(input: Any, other: Any, *, alpha: Any = 1) -> Any:
    return subtract_scaled(other, input, alpha=alpha)


def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    return where(mask, value, input)


def clip_named(
    input: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None, out: None = None
) -> Any:
    """``clamp`` of torch, ``clip`` of NumPy."""
    return clip(input, a_min if min is None else min, a_max if max is None else max)


def clip_min(input: Any, min: Any) -> Any:
    return maximum(input, min)


def clip_max(input: Any, max: Any) -> Any:
    return minimum(input, max)


def maximum_ignoring_nan(input: Any, other: Any) -> Any:
    return where(is_nan(input), other, where(is_nan(other), input, maximum(input, other)))


def minimum_ignoring_nan(input: Any, other: Any) -> Any:
    return where(is_nan(input), other, where(is_nan(other), input, minimum(input, other)))


def lerp(input: Any, end: Any, weight: Any) -> Any:
    return input + weight * (end - input)


def hypot(input: Any, other: Any) -> Any:
    return sqrt(square(to_float(input)) + square(other))


def logaddexp(input: Any, other: Any) -> Any:
    top = maximum(input, other)
    gap = -absolute(input - other)
    return where(is_inf(top), top, top + log1p(exp(gap)))


def copysign(input: Any, other: Any) -> Any:
    return where(other < 0, -absolute(input), absolute(input))


def heaviside(input: Any, values: Any) -> Any:
    return where(input > 0, 1.0, where(input < 0, 0.0, where(is_nan(input), input, values)))


def divmod_pair(input: Any, other: Any) -> tuple[Any, Any]:
    return input // other, input % other


def float_power(input: Any, exponent: Any) -> Any:
    return power(to_float(input), exponent)


def frac(input: Any) -> Any:
    return input - trunc(input)


def relu(input: Any, inplace: bool = False) -> Any:
    return maximum(input, 0)


def relu6(input: Any, inplace: bool = False) -> Any:
    return clip(input, 0, 6)


def gelu(input: Any, approximate: Any = "none") -> Any:
    """GELU; ``approximate="tanh"``, or JAX's True, for the tanh form."""
    if approximate in ("tanh", True):
        return 0.5 * input * (1.0 + tanh(math.sqrt(2 / math.pi) * (input + 0.044715 * input * input * input)))
    return 0.5 * input * (1.0 + erf(input * math.sqrt(0.5)))


def silu(input: Any, inplace: bool = False) -> Any:
    return input * sigmoid(input)


def mish(input: Any, inplace: bool = False) -> Any:
    return input * tanh(softplus(input))


def softplus(input: Any, beta: Any = 1.0, threshold: Any = 20.0) -> Any:
    scaled = input * beta
    smooth = maximum(scaled, 0.0) + log1p(exp(-absolute(scaled)))
    return where(scaled > threshold, input, smooth / beta)


def log_sigmoid(input: Any) -> Any:
    return minimum(input, 0.0) - log1p(exp(-absolute(input)))


def softsign(input: Any) -> Any:
    return input / (1.0 + absolute(input))


def tanhshrink(input: Any) -> Any:
    return input - tanh(input)


def leaky_relu(input: Any, negative_slope: Any = 0.01, inplace: bool = False) -> Any:
    return where(input > 0, input, input * negative_slope)


def elu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Any:
    return where(input > 0, input, alpha * expm1(minimum(input, 0.0)))


def celu(input: Any, alpha: Any = 1.0, inplace: bool = False) -> Any:
    return where(input > 0, input, alpha * expm1(minimum(input, 0.0) / alpha))


def selu(input: Any, inplace: bool = False) -> Any:
    return 1.0507009873554805 * elu(input, 1.6732632423543772)


def hardtanh(input: Any, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> Any:
    return clip(input, min_val, max_val)


def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    return clip(input + 3.0, 0.0, 6.0) / 6.0


def hardswish(input: Any, inplace: bool = False) -> Any:
    return input * hardsigmoid(input)


def threshold(input: Any, threshold: Any, value: Any, inplace: bool = False) -> Any:
    return where(input > threshold, input, value)


def round_to(input: Any, decimals: int = 0, out: None = None) -> Any:
    """The nearest whole number, halves to even."""
    if decimals:
        raise refuse("rounding to decimals has no counterpart", "round(x * 10) / 10")
    return nearest(input)


def logit(input: Any, eps: Any = None) -> Any:
    value = input if eps is None else clip(input, eps, 1.0 - eps)
    return log(value / (1.0 - value))


def tan(input: Any) -> Any:
    return sin(input) / cos(input)
