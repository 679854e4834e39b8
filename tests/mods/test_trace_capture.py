"""What a function captures, however it captures it: found, named, read at call time, and left as it was."""

import functools
import time
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tracing import dense_mask, dense_score, trace_mask, trace_score

from rootdk.mods.trace import Tracer

SHAPE = (2, 3, 5, 5)
SCORE = np.random.default_rng(0).normal(size=SHAPE)
HEAD = np.arange(3)[None, :, None, None]
TABLE = np.array([10.0, 20.0, 30.0])
WINDOW = 2


def adds_table(function: Callable[..., Any], *names: str) -> None:
    """Check that ``function`` adds TABLE[h], and calls it by ``names``."""
    np.testing.assert_array_equal(dense_score(function, SCORE), SCORE + TABLE[HEAD])
    assert trace_score(function, SHAPE).names == names


def from_global(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + TABLE[h]


def helped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + look_up(h)


def look_up(h: Any) -> Any:
    return TABLE[h]


def with_default(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, slopes: Any = TABLE) -> Any:
    return score + slopes[h]


def with_keyword(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, slopes: Any = TABLE) -> Any:
    return score + slopes[h]


def with_parameter(slopes: Any, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + slopes[h]


def test_globals_and_defaults() -> None:
    adds_table(from_global, "TABLE")
    adds_table(helped, "TABLE")
    adds_table(with_default, "slopes")
    adds_table(with_keyword, "slopes")


def test_closures_and_inner_functions() -> None:
    table = TABLE

    def inner(h: Any) -> tuple[Any, Any]:
        return table[h], 0.0

    def function(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        bias, zero = inner(h)
        return score + bias + zero

    adds_table(function, "table")
    adds_table(lambda s, b, h, q, k: s + (lambda i: table[i])(h), "table")
    adds_table(lambda s, b, h, q, k: s + sum(row[h] for row in [table]), "table")


def test_partials() -> None:
    adds_table(functools.partial(with_parameter, TABLE), "slopes")
    adds_table(functools.partial(with_keyword, slopes=TABLE), "slopes")
    adds_table(functools.partial(functools.partial(with_parameter, TABLE)), "slopes")


def test_containers() -> None:
    tables, by_name, pair = [TABLE, -TABLE], {"first": TABLE}, namedtuple("Pair", "slopes other")(TABLE, 1)
    adds_table(lambda s, b, h, q, k: s + tables[0][h], "tables[0]")
    adds_table(lambda s, b, h, q, k: s + by_name["first"][h], "by_name['first']")
    adds_table(lambda s, b, h, q, k: s + pair.slopes[h], "pair[0]")
    adds_table(lambda s, b, h, q, k: s + sum(t[h] for t in tables) + tables[0][h], "tables[0]", "tables[1]")
    assert tables[0] is TABLE and by_name["first"] is TABLE


class Model:
    def __init__(self) -> None:
        self.slopes = TABLE
        self.tables = [TABLE]
        self.inner = types.SimpleNamespace(slopes=TABLE)

    @property
    def shifted(self) -> np.ndarray:
        return self.slopes

    @staticmethod
    def add(score: Any, bias: Any) -> Any:
        return score + bias

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    def method(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        assert isinstance(self, Model) and self.name() == self.__class__.__name__
        return self.add(score, self.slopes[h])

    def through_property(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + self.shifted[h]

    def __call__(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return self.method(score, b, h, q_idx, kv_idx)


class Derived(Model):
    def method(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return super().method(score, b, h, q_idx, kv_idx)


@dataclass(frozen=True, slots=True)
class Slotted:
    slopes: np.ndarray

    def __getitem__(self, h: Any) -> Any:
        return self.slopes[h]


def test_objects() -> None:
    model, slotted = Model(), Slotted(TABLE)
    adds_table(model.method, "self.slopes")
    adds_table(model, "Model.slopes")
    adds_table(Derived().method, "self.slopes")
    adds_table(model.through_property, "self.slopes")
    adds_table(lambda s, b, h, q, k: model.method(s, b, h, q, k), "model.slopes")
    adds_table(lambda s, b, h, q, k: s + model.inner.slopes[h], "model.inner.slopes")
    adds_table(lambda s, b, h, q, k: s + model.tables[0][h], "model.tables[0]")
    adds_table(lambda s, b, h, q, k: s + slotted[h], "slotted.slopes")
    assert model.slopes is TABLE


def test_modules_of_the_users() -> None:
    module = types.ModuleType("settings_of_a_user")
    module.slopes = TABLE  # type: ignore[attr-defined]
    adds_table(lambda s, b, h, q, k: s + module.slopes[h], "module.slopes")


def test_wrapped_functions() -> None:
    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    adds_table(decorated(from_global), "TABLE")

    @functools.lru_cache
    def bias(h: Any) -> Any:
        return TABLE[h]

    adds_table(lambda s, b, h, q, k: s + bias(h), "TABLE")


def test_functions_that_call_themselves() -> None:
    table = TABLE

    def power(h: Any, n: int) -> Any:
        return table[h] * 0 + 1 if n == 0 else 2 * power(h, n - 1)

    assert (dense_score(lambda s, b, h, q, k: s * 0 + power(h, 5), SCORE) == 32).all()


def test_composed_masks() -> None:
    def both(*functions: Callable[..., Any]) -> Callable[..., Any]:
        def function(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            shown = True
            for part in functions:
                shown = shown & part(b, h, q_idx, kv_idx)
            return shown

        return function

    ids = np.array([0, 0, 1, 1, 1])
    found = dense_mask(both(lambda b, h, q, k: q >= k, lambda b, h, q, k: ids[q] == ids[k]), (1, 1, 5, 5))[0, 0]
    np.testing.assert_array_equal(found, np.tri(5, dtype=bool) & (ids[:, None] == ids))


def test_nothing_of_the_users_changes() -> None:
    table = TABLE
    function = lambda s, b, h, q, k, extra=TABLE: s + table[h] + extra[h] + TABLE[h]  # noqa: E731
    before = function.__closure__, function.__globals__, function.__defaults__, dict(function.__globals__)
    trace_score(function)
    assert (function.__closure__, function.__globals__, function.__defaults__) == before[:3]
    assert function.__closure__ is not None and function.__closure__[0].cell_contents is TABLE
    assert function.__globals__["TABLE"] is TABLE


def test_values_are_those_at_the_call() -> None:
    table, window = np.array([1.0, 2.0, 3.0]), 1
    function = lambda s, b, h, q, k: s * 0 + table[h] + window  # noqa: E731
    assert dense_score(function, SCORE)[0, 2, 0, 0] == 4
    table[2], window = 7.0, 3
    assert dense_score(function, SCORE)[0, 2, 0, 0] == 10


def test_the_graph_does_not_depend_on_values() -> None:
    def graph(window: int, base: float, ids: np.ndarray) -> Any:
        return trace_mask(
            lambda b, h, q, k: (q - k <= window) & (q + window >= 3) & (ids[q] == ids[k]) & (q * base > ids[2]), SHAPE
        ).graph

    one = graph(2, 1.5, np.arange(5))
    assert one == graph(3, 2.0, np.arange(50)[::2]) == graph(0, 0.0, np.zeros(1, np.int64))
    assert hash(one) == hash(graph(3, -1.0, np.arange(9)))
    assert one != graph(2, 1.5, np.arange(5, dtype=np.int32))


def test_the_graph_does_not_depend_on_which_indices_are_equal() -> None:
    rows = np.ones((5, 4))

    def graph(one: int, other: int) -> Any:
        return trace_score(lambda s, b, h, q, k: s + rows[q][one] * rows[k, other] + (rows[q] * 2)[other], SHAPE).graph

    assert graph(0, 1) == graph(2, 2) == graph(-1, 3) != trace_score(lambda s, b, h, q, k: s + rows[q].sum()).graph


def test_small_powers_shape_the_graph() -> None:
    def graph(exponent: float) -> Any:
        return trace_score(lambda s, b, h, q, k: s**exponent).graph

    assert graph(2) != graph(3)
    assert graph(2.5) == graph(3.5)
    assert not any(node.op == "power" for node in graph(4).nodes)


def test_one_array_is_one_slot_and_unread_ones_have_none() -> None:
    table, twin, unread = TABLE, TABLE, np.zeros(4)
    traced = trace_score(lambda s, b, h, q, k: s + table[h] + twin[h] + table[0] + len(unread), SHAPE)
    assert len(traced.arrays) == 1 and traced.arrays[0] is TABLE and traced.names == ("table",)


def test_names_are_in_order_of_first_read_and_differ() -> None:
    one, two = TABLE.copy(), TABLE.copy()
    other = (lambda table: lambda h: table[h])(TABLE.copy())
    table = TABLE.copy()
    traced = trace_score(lambda s, b, h, q, k: s + two[h] + one[h] + table[h] + other(h), SHAPE)
    assert traced.names == ("two", "one", "table", "table_2")


def test_sites_tell_the_users_line() -> None:
    table = TABLE
    function = lambda s, b, h, q, k: s + table[h]  # noqa: E731
    traced = trace_score(function, SHAPE)
    node = next(number for number, node in enumerate(traced.graph.nodes) if node.op == "gather")
    assert traced.sites == {node: f"{__file__}:{function.__code__.co_firstlineno}"}


def test_exceptions_of_the_users_pass_with_a_note() -> None:
    def failing(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        trace_mask(failing)
    assert "mask failing" in caught.value.__notes__[0] and __file__ in caught.value.__notes__[0]


def test_known_values_are_python_values() -> None:
    count, flag, limits = np.array(3), np.array(True), np.array([2, 4])

    def function(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        shown = kv_idx < 0
        for start in range(int(count)):
            shown = shown | (kv_idx == start)
        return shown & (q_idx >= limits[1].item()) if flag else shown

    found = dense_mask(function, (1, 1, 6, 6))[0, 0]
    assert found[4:, :3].all() and found.sum() == 6


def test_several_functions_share_a_trace() -> None:
    tracer = Tracer(5, 5, 3, (2,))
    score = tracer.call(lambda s, b, h, q, k: s + TABLE[h], tracer.score, *tracer.indices, what="score_mod")
    score = tracer.call(lambda s, b, h, q, k: s * TABLE[h], score, *tracer.indices, what="score_mod")
    mask = tracer.call(lambda b, h, q, k: q >= k, *tracer.indices, what="mask")
    traced = tracer.finish(score, mask)
    assert len(traced.arrays) == 1
    assert traced.graph.nodes[traced.graph.score].op == "multiply"  # type: ignore[index]


def test_unused_work_is_not_in_the_graph() -> None:
    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        _ = s * TABLE[h] + q**3
        return s + 1

    assert [node.op for node in trace_score(function).graph.nodes] == ["score", "constant", "add"]


def test_sources_are_the_users_own_arrays() -> None:
    table, other = torch.zeros(3, requires_grad=True), np.zeros(3)
    traced = trace_score(lambda s, b, h, q, k: s + table[h] + other[h], SHAPE)
    assert traced.sources[0] is table and traced.sources[1] is other is traced.arrays[1]


def test_names_like_those_of_random_functions_are_fine() -> None:
    class Plan:
        permutation, choice = np.arange(5), lambda self, q: q

    plan, permutation = Plan(), np.arange(5)
    trace_mask(lambda b, h, q, k: np.abs(plan.permutation[q] - permutation[k]) + plan.choice(q) >= 0)


def test_deep_functions_of_rows_stay_small() -> None:
    rows = np.ones((5, 2))

    def function(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        row = rows[q] * 0.5
        for _ in range(60):
            row = row * row + row
        return s + row[0]

    assert len(trace_score(function, SHAPE).graph.nodes) < 130


def test_a_number_times_a_table_is_one_constant() -> None:
    table = TABLE
    traced = trace_score(lambda s, b, h, q, k: s + (table * 2.5)[h] + sum((table * 3).T), SHAPE)
    assert traced.constants.count(2.5) == 1


def test_types_are_those_of_the_users_library() -> None:
    seen: list[Any] = []
    scope: dict[str, Any] = {"np": np, "seen": seen}
    exec("def function(b, h, q, k): seen.append((q.dtype, q.device)); return q >= k", scope)
    trace_mask(scope["function"])
    trace_mask(lambda b, h, q, k: seen.append((q.dtype, torch.device(q.device))) or q >= k)
    assert seen == [(np.int64, "cpu"), (torch.int64, torch.device("cpu"))]


def test_tracing_is_quick() -> None:
    ids, big = np.arange(5), list(range(100_000))
    functions = [lambda b, h, q, k: q >= k, lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k) & (q < len(big))]
    for function in functions:
        times = []
        for _ in range(50):
            start = time.perf_counter()
            trace_mask(function, SHAPE)
            times.append(time.perf_counter() - start)
        assert min(times) < 5e-3
