"""The node that Dynamo makes of a call, and what becomes of it: rootdk's own trace of the function, and the operator.

The node is a higher-order operator, of which Dynamo runs the body, whatever operators are in it, and lifts what the
body captures to its arguments. That is all we need of it: when the next stage of the compiler runs the node, on fake
tensors or on real ones, the operator is called, which that stage knows how to take.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator
from torch.fx.node import map_aggregate

from rootdk.frontends.torch import markers
from rootdk.frontends.torch.arguments import Options
from rootdk.frontends.torch.watched import OperatorTracer, operate_traced
from rootdk.mods.symbols import Sym, first_symbol
from rootdk.mods.values import made_again
from rootdk.score_graph import finish

__all__ = ["hop"]


class _Interpreter(fx.Interpreter):  # type: ignore[misc]  # untyped where torch isn't installed
    """Runs what Dynamo noted: what depends on the pair on symbols of rootdk's, everything else on the tensors."""

    def __init__(self, graph: fx.GraphModule, operands: tuple[Any, ...]) -> None:
        super().__init__(graph)
        given = dict(zip(graph.graph.find_nodes(op="placeholder"), operands, strict=True))
        (called,) = graph.graph.find_nodes(op="call_function", target=markers.call)
        query, key = (given[node].shape for node in called.args[:2])
        self.tracer = OperatorTracer(query[-2], key[-2], query[-3], tuple(query[:-3]))

    def run_node(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        marked = _MARKED.get(node.target)
        if marked is not None:
            return marked(self, *args, **kwargs)
        if node.target == "item" and isinstance(args[0], Tensor):
            return args[0]  # a captured number that Dynamo keeps in a tensor
        if first_symbol((*args, *kwargs.values())) is None:
            return super().run_node(node)
        args, kwargs = (map_aggregate(part, self._symbolic) for part in (args, kwargs))
        if node.target is torch.ops.aten.index.Tensor:
            array, indices = args
            return array[tuple(slice(None) if index is None else index for index in indices)]
        if node.op == "call_method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        return node.target(*args, **kwargs)

    def _symbolic(self, value: Any) -> Any:
        return self.tracer.array(value, "array") if isinstance(value, Tensor) else value

    def symbol(self, name: str, dtype: torch.dtype) -> Sym:
        if name == "score":
            return self.tracer.score
        return self.tracer.indices[markers.INDICES.index(name)]

    def ready_made(self, symbols: list[Sym], module: str, constructor: str, words: str, *given: Sequence[Any]) -> Sym:
        rest = dict(zip(("array", "int", "float"), map(iter, given), strict=True))
        arguments = (None if word == "None" else next(rest[word]) if word in rest else word for word in words.split())
        found: Sym = made_again(module, constructor, tuple(arguments)).trace(self.tracer, *symbols)
        return found

    def call(self, query: Tensor, key: Tensor, value: Tensor, score: Any, visible: Any, *rest: Any) -> Any:
        bias, sinks, seed, dropout_p, scale, memory = rest
        if score is not None:
            score = self.tracer.result(score, "score_mod", "score_mod")
        if visible is not None:
            visible = self.tracer.result(visible, "mask", "mask")
        mods = finish(self.tracer, score, visible, bias)
        options = Options(sinks=sinks, seed=seed, dropout_p=dropout_p, scale=scale)
        return operate_traced((query, key, value), mods, options, memory)


_MARKED: dict[Any, Callable[..., Any]] = {
    markers.symbol: _Interpreter.symbol,
    markers.ready_made: _Interpreter.ready_made,
    markers.call: _Interpreter.call,
}


class _Traced(HigherOrderOperator):  # type: ignore[misc]  # untyped where torch isn't installed
    """(body, query, key, value, what the body captures) -> (output, LSE)."""

    def __init__(self) -> None:
        super().__init__("rootdk_traced")
        # Dynamo goes by names: what it does with torch's own "wrap" is what this needs. Others of its kinds take no
        # body whose arguments share memory, as query, key and value do that are parts of one tensor
        self.__name__ = "wrap"
        # and generated code names what comes from torch, where it would find torch's operator
        self.__module__ = __name__

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, body: Any, *operands: Any) -> tuple[Tensor, Tensor]:
        if isinstance(body, fx.GraphModule):
            found: tuple[Tensor, Tensor] = _Interpreter(body, operands).run(*operands)
            return found
        # Dynamo gave up on the body, and left it to Python
        defaults = body.__kwdefaults__
        left: tuple[Tensor, Tensor] = defaults["otherwise"](operands, defaults["options"], defaults["memory"])
        return left


hop = _Traced()
