"""The public calls: they look at what kind of arrays came, and hand over to that library's front end."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from rootdk.errors import DTypeError
from rootdk.frontends import numpy as numpy_frontend

if TYPE_CHECKING:
    from rootdk.planning.plan import Plan

__all__ = ["attention", "attention_vjp", "plan"]

_loaded: dict[type, ModuleType] = {}


def _frontend(kind: type) -> ModuleType:
    """The front end for arrays of type ``kind``; a framework's is imported when the first of its arrays arrives."""
    found = _loaded.get(kind)
    if found is None:
        found = _loaded[kind] = _load(kind)
    return found


def _load(kind: type) -> ModuleType:
    if issubclass(kind, np.ndarray):
        return numpy_frontend
    if kind.__module__.partition(".")[0] == "torch":
        # a statement, which torch's compiler can follow, unlike importlib
        from rootdk.frontends import torch as torch_frontend

        return torch_frontend
    raise DTypeError(f"query: expected an array of NumPy or torch, got {kind.__name__}; convert it: np.asarray(query)")


def attention(
    query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, score_mod: Any = None, scale: Any = None,
    sinks: Any = None, dropout_p: float = 0.0, seed: int | None = None, layout: str = "bhsd", return_lse: bool = False,
) -> Any:  # fmt: skip
    """Scaled dot-product attention: softmax(scale Q Kᵀ) V, fused, exact, over any leading batch dimensions.

    Per head, scores go through ``scale``, then ``score_mod``, then ``bias``, then ``mask``, then the softmax over keys
    (Vaswani et al. 2017, equation 1). The [q_len, kv_len] score matrix never exists.

    Args:
        query: [..., heads, q_len, d_k]; [q_len, d_k] is one head. float16, bfloat16, float32 or float64.
        key: [..., kv_heads, kv_len, d_k], of the same dtype; heads is a multiple of kv_heads, and query head h reads
            head h // (heads // kv_heads). Batch dimensions broadcast.
        value: [..., kv_heads, kv_len, d_v].
        mask: which pairs are visible: a mask such as ``rootdk.causal()``, a boolean array that broadcasts to
            [..., heads, q_len, kv_len] (True = visible), or a function f(b, h, q_idx, kv_idx).
        bias: floating array that broadcasts to [..., heads, q_len, kv_len], added to the scores; -inf hides.
        score_mod: a function f(score, b, h, q_idx, kv_idx) or a score such as ``rootdk.softcap(30.0)``, or a sequence
            of them, applied in order.
        scale: factor of the raw scores; 1 / sqrt(d_k) unless given.
        sinks: [heads] logits; one extra term in each row's denominator.
        dropout_p: probability with which a weight is zeroed after the softmax; the others grow by 1 / (1 - p).
        seed: of dropout; equal seeds drop equal weights. A fresh one is drawn if None.
        layout: "bhsd", or "bshd" for [..., len, heads, d] arrays; nothing is copied for either.
        return_lse: also return the log of the sum of exponentials of each row.

    Returns:
        The output [..., heads, q_len, d_v], or (output, lse) with lse [..., heads, q_len], natural log, float32
        (float64 for float64 inputs). A row that sees no key is 0, its LSE -inf.

    Raises:
        RootdkError: an argument is wrong; the message names it, what was expected, what came, and what to do.

    >>> x = np.eye(2, dtype=np.float32)
    >>> attention(x, x, x, mask=np.array([[True, False], [True, True]])).round(2)
    array([[1.  , 0.  ],
           [0.33, 0.67]], dtype=float32)
    """
    return _frontend(query.__class__).attention(
        query, key, value, mask=mask, bias=bias, score_mod=score_mod, scale=scale, sinks=sinks, dropout_p=dropout_p,
        seed=seed, layout=layout, return_lse=return_lse,
    )  # fmt: skip


def attention_vjp(
    query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, score_mod: Any = None, scale: Any = None,
    sinks: Any = None, dropout_p: float = 0.0, seed: int | None = None, layout: str = "bhsd", return_lse: bool = False,
) -> Any:  # fmt: skip
    """``attention``, and the function that takes gradients of its results to gradients of its arguments.

    Args:
        query, key, value, ...: as ``attention`` takes them.

    Returns:
        (output, pullback), or ((output, lse), pullback) with ``return_lse``. ``pullback(grad_out, grad_lse=None)``
        takes arrays of the results' shapes and dtypes and returns ``Gradients(query, key, value, bias, sinks,
        captured)``, each of its argument's shape and dtype, None where that was not given. ``captured`` holds those of
        the floating arrays that the functions read, by their names in them. A row that sees no key passes on no
        gradient. The pullback may be called any number of times; the arrays must not change in between.

    Raises:
        RootdkError: an argument, of the call or of the pullback, is wrong.

    >>> x = np.eye(2, dtype=np.float32)
    >>> out, pullback = attention_vjp(x, x, x)
    >>> pullback(np.ones_like(out)).value.round(2)
    array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    return _frontend(query.__class__).attention_vjp(
        query, key, value, mask=mask, bias=bias, score_mod=score_mod, scale=scale, sinks=sinks, dropout_p=dropout_p,
        seed=seed, layout=layout, return_lse=return_lse,
    )  # fmt: skip


def plan(
    query: Any, key: Any, value: Any, *, mask: Any = None, bias: Any = None, score_mod: Any = None, scale: Any = None,
    sinks: Any = None, dropout_p: float = 0.0, seed: int | None = None, layout: str = "bhsd", return_lse: bool = False,
) -> "Plan":  # fmt: skip
    """How ``attention`` will run with the same arguments: print it, or call it with arrays of the same shapes.

    It names the path and why, the tiles that the mask lets the kernel skip and what keeps it from skipping more,
    arithmetic and memory traffic, and the least time that this machine needs, by peaks that are measured once.

    Raises:
        RootdkError: as ``attention``.

    >>> x = np.zeros((1, 8, 2048, 64), np.float32)
    >>> plan(x, x, x, mask=rootdk.causal()).tiles.skipped
    5632
    """
    planned: Plan = _frontend(query.__class__).plan(
        query, key, value, mask=mask, bias=bias, score_mod=score_mod, scale=scale, sinks=sinks, dropout_p=dropout_p,
        seed=seed, layout=layout, return_lse=return_lse,
    )  # fmt: skip
    return planned
