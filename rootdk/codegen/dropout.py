"""Dropout in the kernels: rootdk.dropout's generator on lane vectors, four rows at a time.

Words live in 64-bit lanes, of which the upper halves may hold anything: a product's lower half is then the product
itself, and no lane is ever packed or unpacked between rounds. What all lanes share stays scalar for as long as it can.
"""

from collections.abc import Sequence
from functools import reduce

from llvmlite import ir

from rootdk.codegen.builder import I32, I64, Builder, Scalar
from rootdk.codegen.frame import Frame
from rootdk.codegen.integer_math import number
from rootdk.dropout import KEY_STEPS, MULTIPLIERS, ROUNDS, WORDS

__all__ = ["Dropout", "KeyLanes"]


class Dropout:
    """The random words of the pairs of one batch element and head, and what they do to weights."""

    def __init__(self, frame: Frame, batch: ir.Value, head: ir.Value) -> None:
        # read here, outside the loops: LLVM must take it that their stores might change the frame
        self.b = b = frame.b
        self.batch, self.head = batch, head
        seed = frame.word("dropout_seed")
        self.key = seed, b.ir.lshr(seed, b.index(32))
        self.limit = b.splat(b.ir.trunc(frame.word("dropout_limit"), I32))
        self.scale = b.splat(frame.dropout_scale())
        """Of the weights that stay."""

    def words_of_queries(self, queries: ir.Value, key: ir.Value) -> list[ir.Value]:
        """Of the 64-bit ``queries`` in the lanes: one vector each for keys key, ..., key + 3, a multiple of 4 first."""
        return self._words(self.b.ir.lshr(key, self.b.index(2)), queries)

    def words_of_keys(self, key: ir.Value, query: ir.Value) -> list[ir.Value]:
        """Of the keys from ``key`` on in the lanes, a whole vector of them first: one vector each for queries query,
        ..., query + 3.

        A counter serves four keys, so each lane takes one counter of one of the rows, and the words change places.
        """
        b = self.b
        lanes = max(b.lanes, WORDS)
        kind = ir.VectorType(I64, lanes)
        groups = ir.Constant(kind, [lane // WORDS for lane in range(lanes)])
        rows = ir.Constant(kind, [lane % WORDS for lane in range(lanes)])
        quarter = b.splat(b.ir.lshr(key, b.index(2)), lanes)
        words = self._words(b.ir.add(quarter, groups), b.ir.add(b.splat(query, lanes), rows))
        whole = _transposed(b, words)
        return whole if b.lanes == lanes else [self._half(row, key) for row in whole]

    def kept(self, words: ir.Value) -> ir.Value:
        """In which lanes the weight stays."""
        return self.b.ir.icmp_unsigned(">", words, self.limit)

    def drop(self, weight: ir.Value, kept: ir.Value) -> ir.Value:
        """``weight`` where it stays, elsewhere zero of its own sign, which tells hidden pairs from visible ones."""
        b = self.b
        bits = ir.VectorType(b.bits, b.lanes)
        sign = ir.Constant(bits, [1 << (8 * b.size - 1)] * b.lanes)
        taken = b.ir.or_(b.ir.sext(kept, bits), sign)
        return b.ir.bitcast(b.ir.and_(b.ir.bitcast(weight, bits), taken), b.vector)

    def grow(self, gradient: ir.Value, kept: ir.Value) -> ir.Value:
        """The gradient of a weight from that of the weight that dropout made of it."""
        return self.b.ir.select(kept, self.b.ir.fmul(gradient, self.scale), self.b.splat(0.0))

    def _words(self, quarter: ir.Value, query: ir.Value) -> list[ir.Value]:
        words = _philox(self.b, (quarter, query, self.head, self.batch), self.key)
        return [self.b.ir.trunc(word, ir.VectorType(I32, query.type.count)) for word in words]

    def _half(self, row: ir.Value, key: ir.Value) -> ir.Value:
        """Two lanes of four: the upper ones if ``key`` is the third of its counter."""
        b = self.b
        lower, upper = (_shuffled(b, row, row, places) for places in ((0, 1), (2, 3)))
        third = b.ir.icmp_unsigned("!=", b.ir.and_(key, b.index(2)), b.index(0))
        return b.ir.select(third, upper, lower)


class KeyLanes:
    """Keys in the lanes, queries one after the other: computed with every fourth query, kept in memory for the rest."""

    def __init__(self, dropout: Dropout, first_query: ir.Value, keys: Sequence[ir.Value], kv_len: ir.Value) -> None:
        """``keys``: the first of each lane vector."""
        self.dropout, self.first, self.keys = dropout, first_query, keys
        self.b = b = dropout.b
        self.kind = ir.VectorType(I32, b.lanes)
        with b.ir.goto_entry_block():
            self.memory = b.ir.alloca(self.kind, WORDS * len(keys))
        self.last_lanes = [b.lower_of(b.sub(b.sub(kv_len, 1), key), b.lanes - 1) for key in keys]

    def kept(self, row: ir.Value) -> list[ir.Value]:
        """Per lane vector, in which lanes the weight of query ``first_query + row`` stays; rows come in order from 0,
        and ``first_query`` is a multiple of 4."""
        b = self.b
        place = b.ir.and_(row, b.index(WORDS - 1))
        with b.when(b.ir.icmp_unsigned("==", place, b.index(0))):
            for n, key in enumerate(self.keys):
                for r, words in enumerate(self.dropout.words_of_keys(key, b.ir.add(self.first, row))):
                    b.store(words, self.memory, self._offset(r, n))
        return [self.dropout.kept(self._load(self._offset(place, n), last)) for n, last in enumerate(self.last_lanes)]

    def _load(self, offset: Scalar, last: ir.Value) -> ir.Value:
        """The words of one lane vector; lanes past the last key have its word."""
        b = self.b
        words = b.load(self.kind, self.memory, offset)
        of_last = b.load(I32, self.memory, b.add(offset, b.mul(last, 4)))
        beyond = b.ir.icmp_signed(">", b.lane_numbers(I32), b.splat(b.ir.trunc(last, I32)))
        return b.ir.select(beyond, b.splat(of_last), words)

    def _offset(self, place: Scalar, n: int) -> Scalar:
        size = 4 * self.b.lanes
        return self.b.add(self.b.mul(place, len(self.keys) * size), n * size)


def _philox(b: Builder, counter: Sequence[ir.Value], key: Sequence[ir.Value]) -> list[ir.Value]:
    """The four words in the lower halves of 64-bit lanes; operands are lanes or scalars, upper halves anything."""
    a, second, c, fourth = counter
    for count in range(ROUNDS):
        k0, k1 = (
            b.ir.add(start, b.index(count * step & 0xFFFFFFFF)) for start, step in zip(key, KEY_STEPS, strict=True)
        )
        x, y = _product(b, a, MULTIPLIERS[0]), _product(b, c, MULTIPLIERS[1])
        a, second, c, fourth = _mixed(b, k0, second, _high(b, y)), y, _mixed(b, k1, fourth, _high(b, x)), x
    return [a, second, c, fourth]


def _product(b: Builder, word: ir.Value, factor: int) -> ir.Value:
    """32 x 32 -> 64 bits: the mask costs nothing, as the instruction for it reads lower halves only."""
    return b.ir.mul(b.ir.and_(word, number(0xFFFFFFFF, word)), number(factor, word))


def _high(b: Builder, product: ir.Value) -> ir.Value:
    return b.ir.lshr(product, number(32, product))


def _mixed(b: Builder, *words: ir.Value) -> ir.Value:
    """Exclusive or: of the scalars first, then of the vectors."""

    def mix(x: ir.Value, y: ir.Value) -> ir.Value:
        if isinstance(y.type, ir.VectorType):
            x = b.splat(x, y.type.count)
        return b.ir.xor(x, y)

    return reduce(mix, sorted(words, key=lambda word: isinstance(word.type, ir.VectorType)))


def _transposed(b: Builder, words: Sequence[ir.Value]) -> list[ir.Value]:
    """Word k of row r of each block of four lanes becomes lane k of vector r."""
    w0, w1, w2, w3 = words
    pairs = [(_shuffled(b, w0, w1, places), _shuffled(b, w2, w3, places)) for places in ((0, 4, 1, 5), (2, 6, 3, 7))]
    return [_shuffled(b, x, y, places) for x, y in pairs for places in ((0, 1, 4, 5), (2, 3, 6, 7))]


def _shuffled(b: Builder, x: ir.Value, y: ir.Value, places: Sequence[int]) -> ir.Value:
    """In every block of four lanes: those of ``x`` that 0, ..., 3 name and those of ``y`` that 4, ..., 7 name."""
    lanes = x.type.count
    chosen = [block + place % 4 + place // 4 * lanes for block in range(0, lanes, 4) for place in places]
    return b.ir.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(chosen)), chosen))
