"""What the backward kernel does to one panel of keys and one block of queries: the lanes are keys.

    S = Q K^T            the forward's scores, recomputed            (rows of Q broadcast, K^T packed)
    P = exp(S - lse)     the forward's weights, normalised
    dP = dO V^T                                                      (rows of dO broadcast, V^T packed)
    dS = P (dP - delta)  delta_i = dO_i . O_i - d lse_i
    dV += P^T dO         dK += dS^T Q                                (columns of dO and Q broadcast)

and dQ += dS K, for all panels of a group at once, is left to the caller. A hidden pair's weight is -0.0 in P and dS:
products with it are left out where they would not be zero.
"""

from collections.abc import Mapping
from dataclasses import replace

from llvmlite import ir

from rootdk.codegen.builder import I64, POINTER, Builder
from rootdk.codegen.dropout import Dropout, KeyLanes
from rootdk.codegen.frame import Frame
from rootdk.codegen.gather import table_offset
from rootdk.codegen.key_panels import KeyPanel
from rootdk.codegen.lower_expr import Environment, lower, runs_along
from rootdk.codegen.online_softmax import HIDDEN_WEIGHT, Softmax, is_hidden_weight
from rootdk.codegen.panels import Matrix
from rootdk.codegen.row_blocks import RowBlock
from rootdk.codegen.scatter import Target
from rootdk.codegen.spans import Span
from rootdk.codegen.tile_products import TileProducts
from rootdk.codegen.tile_scores import Mods, ScoreTile, lane_indices
from rootdk.planning.schedule import KEY_GROUP, BackwardSpec, Schedule

__all__ = ["PanelGradients"]


class PanelGradients:
    """The hot loops for key panels ``vectors`` wide: (frame, row block, panel, scratch memory, score gradients,
    gradients of captured arrays, span, first query, first key, batch, head)."""

    def __init__(self, entry: Builder, spec: BackwardSpec, mods: Mods, products: TileProducts, vectors: int) -> None:
        self.entry, self.spec, self.mods, self.products, self.vectors = entry, spec, mods, products, vectors
        self.shape = spec.schedule.tiles[vectors - 1]
        self.function = self._define()

    @staticmethod
    def memory(b: Builder, schedule: Schedule) -> int:
        """Bytes of three tiles of scores."""
        return 3 * (schedule.query_block + schedule.score_rows) * schedule.vectors * b.lanes * b.size

    def _define(self) -> ir.Function:
        types = [POINTER, *RowBlock.TYPES, *[POINTER] * 5, *[I64] * 4]
        b = Builder.define(self.entry.function.module, f"gradients_{self.vectors}", types, self.entry)
        pointer, *block_arguments = b.function.args[:6]
        panel_pointer, scores, gradients, self.captured, span_pointer, *rest = b.function.args[6:]
        first, first_key, batch, head = rest
        frame, span = Frame(b, pointer), Span(b, span_pointer)
        block = RowBlock(*block_arguments)
        self.b, self.frame, self.block, self.span = b, frame, block, span
        self.panel = KeyPanel(
            b, panel_pointer, self.vectors, frame.word("d_k"), frame.word("d_v"), self.spec.schedule.value_rows
        )
        self.first = first
        self.first_keys = [b.index(b.add(first_key, n * b.lanes)) for n in range(self.vectors)]
        self.keys = [lane_indices(b, key, frame.word("kv_len"), self.mods.index_type) for key in self.first_keys]
        self.real_keys = [  # lanes past the last key repeat it
            b.ir.icmp_signed("<", b.ir.add(b.splat(key), b.lane_numbers()), b.splat(frame.word("kv_len")))
            for key in self.first_keys
        ]
        self.environment = self.mods.environment(frame, {"b": batch, "h": head})
        self.drops = None
        if self.spec.dropout:
            self.drops = KeyLanes(Dropout(frame, batch, head), first, self.first_keys, frame.word("kv_len"))
        rows = self.spec.schedule.query_block + self.spec.schedule.score_rows
        weights, raw, products = (self._tile(b.at(scores, self._tile_bytes(rows) * part)) for part in range(3))
        queries = Matrix(block.queries, block.query_stride)
        gradient_rows = Matrix(block.gradients, block.gradient_stride)
        self._scores(queries, self.panel.keys, self.panel.d_k, weights)
        if self.mods.graph.mask is None:
            self._weigh(weights, raw, masked=False)
        else:
            masked = b.less(span.cut_start, span.cut_end)
            b.choose(
                masked, lambda: self._weigh(weights, raw, masked=True), lambda: self._weigh(weights, raw, masked=False)
            )
        self._scores(gradient_rows, self.panel.values, self.panel.d_v, products)
        self._differentiate(weights, raw, products, gradients)
        self._accumulate(gradient_rows, weights, self.panel.value_sums, self.panel.d_v)
        self._accumulate(queries, products, self.panel.key_sums, self.panel.d_k)
        return b.finish()

    def _tile(self, pointer: ir.Value) -> ScoreTile:
        return ScoreTile(self.b, pointer, self.vectors, self.shape.score_rows)

    def _tile_bytes(self, rows: int) -> int:
        return rows * self.vectors * self.b.lanes * self.b.size

    def _row_number(self, row: ir.Value, which: int) -> ir.Value:
        b = self.b
        return b.splat(b.load(b.real, self.block.numbers, b.add(b.mul(row, 2 * b.size), which * b.size)))

    def _environment(self, row: ir.Value, n: int, score: ir.Value) -> Environment:
        """Of one row and lane vector."""
        end = self.b.ir.add(self.first_keys[n], self.b.index(self.b.lanes))
        whole = self.b.ir.icmp_signed("<=", end, self.frame.word("kv_len"))
        return replace(self.environment, leaves=self._leaves(row, n, score), consecutive=("kv", whole))

    def _leaves(self, row: ir.Value, n: int, score: ir.Value) -> Mapping[str, ir.Value]:
        query = self.b.ir.add(self.first, row)
        return {**self.environment.leaves, "score": score, "q": query, "kv": self.keys[n]}

    def _weigh(self, weights: ScoreTile, raw: ScoreTile, *, masked: bool) -> None:
        """Scores to weights in place; a score function's input is kept for its derivative."""
        b, softmax = self.b, Softmax(self.b, log2_scores=self.mods.graph.score is None)
        with b.loop(self.span.start, self.span.end) as i:
            lse = self._row_number(i, 0)
            for n in range(self.vectors):
                score = b.load_lanes(weights.pointer, weights.offset(i, n))
                if self.spec.needs_raw_scores:
                    b.store_lanes(score, raw.pointer, raw.offset(i, n))
                score = self.mods.modify(b, score, self._environment(i, n, score), masked=masked)
                weight = softmax.exponential(b.ir.fsub(score, lse))
                if self.mods.graph.may_hide:
                    hidden = b.ir.fcmp_ordered("==", score, b.splat(float("-inf")))
                    weight = b.ir.select(hidden, b.splat(HIDDEN_WEIGHT), weight)
                b.store_lanes(weight, weights.pointer, weights.offset(i, n))

    def _differentiate(self, weights: ScoreTile, raw: ScoreTile, products: ScoreTile, gradients: ir.Value) -> None:
        """Score gradients over the products, and into the group's [rows, KEY_GROUP] block that dQ is computed from.

        Dropout's share comes here, as dS needs the weights before it and dV those after.
        """
        b = self.b
        with b.loop(self.span.start, self.span.end) as i:
            delta = self._row_number(i, 1)
            kept = self.drops.kept(i) if self.drops else []
            for n in range(self.vectors):
                weight = b.load_lanes(weights.pointer, weights.offset(i, n))
                product = b.load_lanes(products.pointer, products.offset(i, n))
                if self.drops:
                    dropped = self.drops.dropout.drop(weight, kept[n])
                    b.store_lanes(dropped, weights.pointer, weights.offset(i, n))
                    product = self.drops.dropout.grow(product, kept[n])
                hidden = is_hidden_weight(b, weight) if self.mods.graph.may_hide else None
                gradient = b.ir.fmul(weight, b.ir.fsub(product, delta))
                gradient = self._keep_hidden(gradient, hidden)
                if self.spec.needs_raw_scores:
                    score = b.load_lanes(raw.pointer, raw.offset(i, n))
                    gradient = self._through_score_mod(
                        gradient, hidden, self._environment(i, n, score), self.real_keys[n]
                    )
                b.store_lanes(gradient, products.pointer, products.offset(i, n))
                b.store(gradient, gradients, b.add(b.mul(i, KEY_GROUP * b.size), n * b.lanes * b.size), b.size)

    def _keep_hidden(self, gradient: ir.Value, hidden: ir.Value | None) -> ir.Value:
        return gradient if hidden is None else self.b.ir.select(hidden, self.b.splat(HIDDEN_WEIGHT), gradient)

    def _through_score_mod(
        self, gradient: ir.Value, hidden: ir.Value | None, environment: Environment, real: ir.Value
    ) -> ir.Value:
        """Chain rule: the raw score's gradient; captured arrays' gradients are added where they belong."""
        b, derivative = self.b, self.spec.derivative
        assert derivative is not None and hidden is not None
        wanted = [slope for _, slope in derivative.captured]
        indices = [arg for node, _ in derivative.captured for arg in derivative.graph.nodes[node].args]
        own = [] if derivative.score is None else [derivative.score]
        visible = b.ir.not_(hidden)
        environment = replace(environment, visible=visible)
        values = iter(lower(b, derivative.graph, [*own, *wanted, *indices], environment))
        slope = next(values) if own else b.scalar(0.0)
        slopes = [next(values) for _ in wanted]
        adds = b.ir.and_(visible, real)
        for (node, _), captured_slope in zip(derivative.captured, slopes, strict=True):
            gather = derivative.graph.nodes[node]
            assert isinstance(gather.attr, int)
            addend = b.ir.select(adds, b.ir.fmul(gradient, b.splat(captured_slope)), b.splat(0.0))
            table = b.at(self.captured, table_offset(derivative.graph.arrays, gather.attr))
            index = [next(values) for _ in gather.args]
            along = runs_along(derivative.graph, node, index, environment) if node in self.spec.proven else None
            target = Target(b, derivative.graph.arrays[gather.attr], table, once=gather.attr in derivative.once)
            target.add(index, addend, adds, along)
        return self._keep_hidden(b.ir.fmul(gradient, b.splat(slope)), hidden)

    def _scores(self, rows: Matrix, packed: ir.Value, depth: ir.Value, tile: ScoreTile) -> None:
        self.products.scores(self.b, self.vectors, rows, self.span, packed, depth, tile.pointer)

    def _accumulate(self, rows: Matrix, tile: ScoreTile, sums: ir.Value, width: ir.Value) -> None:
        """sums[c, lanes] += sum over i of rows[i][c] * tile[i, lanes]."""
        self.products.sums(self.b, self.vectors, rows, self.span, tile.pointer, sums, width)
