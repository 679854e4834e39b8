"""The cases of every contest, with what the design asks of each."""

from dataclasses import replace

from rootdk.bench.cases import Case

__all__ = ["DECODE", "DTYPES", "FORWARD", "MODS", "STRIDES"]


def _square(name: str, length: int, **options: object) -> Case:
    return replace(Case(name), q_len=length, kv_len=length, **options)  # type: ignore[arg-type]


def _both(name: str, base: Case, full: dict[str, float], causal: dict[str, float]) -> list[Case]:
    return [
        replace(base, name=f"{name}, full", targets=full),
        replace(base, name=f"{name}, causal", targets=causal, pattern="causal"),
    ]


FORWARD = [
    *_both("N 2048, d 64", Case(""), {"torch": 1.3, "peak": 0.78}, {"torch": 1.6, "peak": 0.7}),
    *_both("N 2048, d 128", Case("", d_k=128, d_v=128), {"torch": 1.15}, {"torch": 1.35}),
    _square("N 1024, d 80 / 48, full", 1024, d_k=80, d_v=48, targets={"torch": 4.0}),
    *(
        case
        for batch, length in ((32, 128), (8, 50), (1, 197))
        for case in _both(
            f"({batch}, 12, {length}, 64)", _square("", length, batch=batch), {"torch": 1.6}, {"torch": 2.0}
        )
    ),
]

DTYPES = [
    case
    for dtype, least in (("float32", 1.3), ("float16", 2.0), ("bfloat16", 1.25), ("float64", 1.4))
    for case in _both(f"{dtype}, N 2048, d 64", Case("", dtype=dtype), {"torch": least}, {})
]

# Row strides of 3072, 4096 and 16384 bytes: the last two fall into few sets of a cache.
STRIDES = [
    _square(
        f"[batch, len, heads, d], {heads} heads",
        length,
        heads=heads,
        kv_heads=heads,
        layout="bshd",
        targets={"contiguous": 0.9},
        variants={"contiguous": _square("contiguous", length, heads=heads, kv_heads=heads)},
    )
    for heads, length in ((12, 2048), (16, 2048), (64, 1024))
]

_EIGHT = Case("", heads=8, kv_heads=8)
_PLAIN = {"plain": _EIGHT}
MODS = [
    replace(_EIGHT, name="causal", pattern="causal", targets={"flex": 3.0}, variants=_PLAIN),
    replace(_EIGHT, name="ALiBi", pattern="alibi", targets={"flex": 4.0, "plain": 0.85}, variants=_PLAIN),
    replace(_EIGHT, name="ALiBi, causal", pattern="alibi causal", targets={"flex": 4.0}, variants=_PLAIN),
    replace(_EIGHT, name="softcap", pattern="softcap", targets={"plain": 0.85}, variants=_PLAIN),
    replace(_EIGHT, name="window 256", pattern="window", targets={"flex": 3.0, "plain": 0.85}, variants=_PLAIN),
]

_GROUPED = Case("", heads=32, kv_heads=8, q_len=1, kv_len=8192, d_k=128, d_v=128)
DECODE = [
    *(
        replace(_GROUPED, name=f"32/8 heads, 8192 keys, {dtype}", dtype=dtype, targets={"torch": 1.0, "bandwidth": 0.8})
        for dtype in ("float32", "bfloat16", "float16")
    ),
    replace(_GROUPED, name="1 head, 65536 keys, float32", heads=1, kv_heads=1, kv_len=65536, targets={"torch": 1.0}),
]
