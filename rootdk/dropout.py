"""Which weights dropout keeps: Philox-4x32-10 of the pair's indices, so that no order of work can change it.

Philox (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a counter of four 32-bit
words and a key of two into four random words. Here

    key = (seed mod 2^32, seed / 2^32)        counter = (kv / 4, q, h, b)        the pair's word is number kv mod 4

with rounded-down quotients, and a pair is kept where its word is at least p 2^32: exactly, for every p from 0 to 1.
Lengths, batch size and number of heads don't enter, so a part of a problem keeps what the whole keeps there.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

__all__ = ["KEY_STEPS", "MULTIPLIERS", "ROUNDS", "WORDS", "keep", "philox", "scale", "threshold"]

ROUNDS = 10
WORDS = 4
"""Words of one counter, which belong to as many consecutive keys."""
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
"""What each round adds to the key: the golden ratio's and sqrt 3's fractions."""

_LOW = 0xFFFFFFFF


def threshold(dropout_p: float) -> int:
    """A pair is kept where its word is at least this, from 0 to 2**32.

    >>> threshold(0.0), threshold(0.25), threshold(1.0) == 2**32
    (0, 1073741824, True)
    """
    return math.ceil(dropout_p * 2.0**32)


def scale(dropout_p: float) -> float:
    """What the weights that stay are multiplied by: 1 / (1 - p), or 0 where none stays.

    >>> scale(0.5), scale(1.0)
    (2.0, 0.0)
    """
    return 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0


def keep(seed: int, b: Any, h: Any, q: Any, kv: Any, dropout_p: float) -> np.ndarray:
    """True where the weight of the pair stays; the indices broadcast, ``b`` counts the flattened batch."""
    kv = np.asarray(kv)
    words = philox((kv // WORDS, q, h, b), (seed & _LOW, seed >> 32))
    of_pair: np.ndarray = reduce(
        lambda chosen, k: np.where(kv % WORDS == k, words[k], chosen), range(1, WORDS), words[0]
    )
    return np.asarray(of_pair >= np.uint64(threshold(dropout_p)))


def philox(counter: Sequence[Any], key: tuple[int, int]) -> list[np.ndarray]:
    """The four words of Philox-4x32-10 as uint64 arrays; the counter's four words broadcast, all are below 2**32.

    >>> [f"{int(word):08x}" for word in philox((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    a, b, c, d = (np.asarray(word).astype(np.uint64) for word in counter)
    for number in range(ROUNDS):
        first, second = a * np.uint64(MULTIPLIERS[0]), c * np.uint64(MULTIPLIERS[1])
        k0, k1 = (np.uint64(start + number * step & _LOW) for start, step in zip(key, KEY_STEPS, strict=True))
        a, b, c, d = _high(second) ^ b ^ k0, _low(second), _high(first) ^ d ^ k1, _low(first)
    return [a, b, c, d]


def _high(product: Any) -> Any:
    return product >> np.uint64(32)


def _low(product: Any) -> Any:
    return product & np.uint64(_LOW)
