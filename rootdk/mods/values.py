"""Masks and score functions as values: made once, combined, and traced at each call."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from rootdk.errors import ArgumentError, DTypeError
from rootdk.mods.dense import dense
from rootdk.mods.foreign import is_array
from rootdk.mods.picture import Picture, draw
from rootdk.mods.trace import Sym, Tracer

__all__ = [
    "Combined", "DenseMask", "FunctionMask", "Inverted", "Made", "Mask", "Score", "as_mask", "as_score", "made_again",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """How a ready-made mask or score is made again: its constructor, by module and name, and the arguments."""

    module: str
    constructor: str
    arguments: tuple[Any, ...]

    @property
    def fixed(self) -> bool:
        """Whether the arguments are numbers only."""
        return all(isinstance(argument, int | float | str | None) for argument in self.arguments)


def made_again(module: str, constructor: str, arguments: tuple[Any, ...]) -> Any:
    """A mask or score of what ``Made`` holds."""
    return getattr(import_module(module), constructor)(*arguments)


class Mask:
    """Says which keys a query may attend to; masks combine with ``&``, ``|`` and ``~``, also with boolean arrays.

    >>> rootdk.causal() & ~rootdk.sink_tokens(1)
    causal() & ~sink_tokens(1)
    """

    __slots__ = ()
    # NumPy then leaves `array & mask` to the mask
    __array_ufunc__ = None

    def trace(self, tracer: Tracer, b: Sym, h: Sym, q: Sym, kv: Sym) -> Sym:
        """Whether key ``kv`` is visible to query ``q``, as a boolean symbol."""
        raise NotImplementedError

    @property
    def fixed(self) -> bool:
        """Whether nothing that the mask reads can change, so that one trace serves all calls of the same sizes."""
        return False

    def picture(
        self, q_len: int = 16, kv_len: int | None = None, *, batch: int = 1, heads: int = 1, b: int = 0, h: int = 0
    ) -> Picture:
        """A corner of the mask in a problem of these sizes, for batch element ``b`` and head ``h``; kv_len is q_len
        unless given.

        >>> rootdk.causal().picture(3)
        causal(): 3 queries × 3 keys
        ■ · ·
        ■ ■ ·
        ■ ■ ■

        Raises ArgumentError for sizes below 1, and what the mask raises in a call of these sizes.
        """
        return draw(self, (batch, heads, q_len, q_len if kv_len is None else kv_len), b, h)

    def __and__(self, other: Any) -> "Mask":
        return Combined("&", self, as_mask(other))

    def __rand__(self, other: Any) -> "Mask":
        return Combined("&", as_mask(other), self)

    def __or__(self, other: Any) -> "Mask":
        return Combined("|", self, as_mask(other))

    def __ror__(self, other: Any) -> "Mask":
        return Combined("|", as_mask(other), self)

    def __invert__(self) -> "Mask":
        return Inverted(self)

    def __bool__(self) -> bool:
        raise ArgumentError("mask: a mask has no truth value; combine masks with & | ~, not with and, or, not")


@dataclass(frozen=True, slots=True, repr=False)
class FunctionMask(Mask):
    """``function(b, h, q_idx, kv_idx)`` as a mask."""

    function: Callable[..., Any]
    text: str
    made: Made | None = field(default=None, compare=False)
    """Of a ready-made one. What a user's function reads through globals and objects may change between calls."""

    @property
    def fixed(self) -> bool:
        return self.made is not None and self.made.fixed

    def trace(self, tracer: Tracer, b: Sym, h: Sym, q: Sym, kv: Sym) -> Sym:
        return tracer.call(self.function, b, h, q, kv, what="mask")

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduced(self)

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DenseMask(Mask):
    """A boolean array over pairs as a mask."""

    array: Any

    def trace(self, tracer: Tracer, b: Sym, h: Sym, q: Sym, kv: Sym) -> Sym:
        return dense(tracer, self.array, "mask")[0]

    def __repr__(self) -> str:
        return f"mask(array of shape {tuple(self.array.shape)})"


@dataclass(frozen=True, slots=True, repr=False)
class Combined(Mask):
    """Two masks under & or |."""

    operator: str
    left: Mask
    right: Mask

    @property
    def fixed(self) -> bool:
        return self.left.fixed and self.right.fixed

    def trace(self, tracer: Tracer, b: Sym, h: Sym, q: Sym, kv: Sym) -> Sym:
        left, right = self.left.trace(tracer, b, h, q, kv), self.right.trace(tracer, b, h, q, kv)
        both: Sym = left & right if self.operator == "&" else left | right
        return both

    def __repr__(self) -> str:
        return f"{self._side(self.left)} {self.operator} {self._side(self.right)}"

    def _side(self, mask: Mask) -> str:
        mixed = isinstance(mask, Combined) and mask.operator != self.operator
        return f"({mask!r})" if mixed else repr(mask)


@dataclass(frozen=True, slots=True, repr=False)
class Inverted(Mask):
    """What ``mask`` hides."""

    mask: Mask

    @property
    def fixed(self) -> bool:
        return self.mask.fixed

    def trace(self, tracer: Tracer, b: Sym, h: Sym, q: Sym, kv: Sym) -> Sym:
        hidden: Sym = ~self.mask.trace(tracer, b, h, q, kv)
        return hidden

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, Combined) else f"~{self.mask!r}"


def as_mask(value: Any) -> Mask:
    """A mask of a mask, of a boolean array, or of f(b, h, q_idx, kv_idx) -> bool."""
    if isinstance(value, Mask):
        return value
    if is_array(value):
        _check_boolean(value)
        return DenseMask(value)
    if isinstance(value, Score):
        raise ArgumentError("mask: expected a mask, got a score function; pass it as score_mod=")
    if not callable(value):
        raise ArgumentError(
            "mask: expected a boolean array (True = may attend), a mask such as rootdk.causal(), or "
            f"f(b, h, q_idx, kv_idx) -> bool, got {type(value).__name__}"
        )
    return FunctionMask(value, f"mask({_name(value)})")


def _check_boolean(array: Any) -> None:
    dtype = np.asarray(array).dtype if isinstance(array, np.ndarray) else array.dtype
    name = str(dtype).rpartition(".")[2]
    if name == "bool":
        return
    if "float" in name:
        raise DTypeError(
            f"mask: expected booleans (True = may attend), got {name}; an array that is added to the scores is "
            "bias=array; for a mask of 0 and 1 write mask=array != 0"
        )
    raise DTypeError(
        f"mask: expected booleans (True = may attend), got {name}; write mask=array != 0 where 1 means may attend, "
        "mask=array == 0 where 1 means hidden"
    )


@dataclass(frozen=True, slots=True, repr=False)
class Score:
    """A function ``f(score, b, h, q_idx, kv_idx)`` that gives each pair its new score."""

    function: Callable[..., Any]
    text: str
    made: Made | None = field(default=None, compare=False)

    @property
    def fixed(self) -> bool:
        """As of a mask."""
        return self.made is not None and self.made.fixed

    def trace(self, tracer: Tracer, score: Sym, b: Sym, h: Sym, q: Sym, kv: Sym) -> Sym:
        """The score of key ``kv`` for query ``q``, as a float symbol."""
        return tracer.call(self.function, score, b, h, q, kv, what="score_mod")

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduced(self)

    def __repr__(self) -> str:
        return self.text


def as_score(value: Any) -> Score:
    """A score function of one, or of f(score, b, h, q_idx, kv_idx) -> score."""
    if isinstance(value, Score):
        return value
    if isinstance(value, Mask):
        raise ArgumentError("score_mod: expected a score function, got a mask; pass it as mask=")
    if is_array(value):
        raise ArgumentError("score_mod: expected a score function, got an array; to add it to the scores: bias=")
    if not callable(value):
        raise ArgumentError(f"score_mod: expected f(score, b, h, q_idx, kv_idx) -> score, got {type(value).__name__}")
    return Score(value, f"score({_name(value)})")


def _reduced(value: FunctionMask | Score) -> tuple[Any, ...]:
    """For pickle and copy: how to make ``value`` again; a function of the user's must be found by its name."""
    made = value.made
    if made is None:
        return type(value), (value.function, value.text)
    return made_again, (made.module, made.constructor, made.arguments)


def _name(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
