"""Plans: what they say, that they are callable, and that what they say is what runs."""

import dataclasses

import numpy as np
import pytest
import torch

import rootdk
from rootdk import second_order
from rootdk.planning.cost import Cost, Peaks
from rootdk.planning.plan import Plan, si
from rootdk.runtime.cache import kernels

SQUARE = np.zeros((1, 4, 512, 64), np.float32)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setattr("rootdk.runtime.threads._chosen", 2)


def lines(plan: Plan) -> dict[str, str]:
    return {name: text for name, _, text in (line.partition(" ") for line in repr(plan).splitlines()) if name}


def test_it_prints_the_whole_story():
    text = lines(rootdk.plan(SQUARE, SQUARE, SQUARE, mask=rootdk.causal()))
    names = ["problem", "path", "tiles", "operands", "compute", "memory", "estimate", "kernel", "gradients"]
    assert list(text) == names
    assert text["gradients"].strip().startswith("fused backward: ")
    assert repr(rootdk.plan(SQUARE, SQUARE, SQUARE)).endswith(second_order.REASON)
    assert "heads 4, kv_heads 4, q_len 512, kv_len 512, d_k 64, d_v 64, float32, scale 0.125" in text["problem"]
    assert text["path"].strip().startswith("fused forward: ")
    assert text["operands"].strip() == "keys read in place; values read in place"


def test_it_names_what_keeps_tiles_from_being_skipped():
    plan = rootdk.plan(SQUARE, SQUARE, SQUARE, mask=rootdk.causal())
    assert [blocker.tiles for blocker in plan.tiles.blockers] == [plan.tiles.masked]
    assert f"masked for {plan.tiles.blockers[0].text} in {plan.tiles.masked}" in repr(plan)


def test_a_full_call_computes_every_pair_once():
    plan = rootdk.plan(SQUARE, SQUARE, SQUARE)
    assert plan.tiles.full == plan.tiles.tiles > 0
    assert plan.flops == plan.cost.useful_flops == 4 * 4 * 512 * 512 * 64
    assert plan.bytes == 4 * SQUARE.nbytes
    assert plan.cost.naive_bytes == plan.bytes + 4 * 4 * 512 * 512 * 4
    assert plan.cost.reread_bytes >= 2 * SQUARE.nbytes


def test_calling_it_runs_the_planned_call():
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, 4, 70, 16)).astype(np.float32) for _ in range(3))
    options = {"mask": rootdk.causal(), "score_mod": rootdk.softcap(5.0), "scale": 0.3, "return_lse": True}
    plan = rootdk.plan(query, key, value, **options)
    for found, expected in zip(plan(query, key, value), rootdk.attention(query, key, value, **options), strict=True):
        assert np.array_equal(found, expected)


def test_tensors_have_plans_too():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 70, 16, dtype=torch.bfloat16)
    options = {"mask": rootdk.causal(), "bias": torch.zeros(70, 70)}
    plan = rootdk.plan(query, key, value, **options)
    assert plan.packing[0] == "bfloat16 is computed in float32"
    assert torch.equal(plan(query, key, value), rootdk.attention(query, key, value, **options))
    with pytest.raises(RuntimeError, match="mask: expected booleans"):
        rootdk.plan(query, key, value, mask=torch.zeros(70, 70))


def test_it_refuses_other_shapes():
    plan = rootdk.plan(SQUARE, SQUARE, SQUARE)
    with pytest.raises(rootdk.ShapeError, match=r"key: expected shape \(1, 4, 512, 64\), as planned, got \(1, 4, 511"):
        plan(SQUARE, SQUARE[:, :, 1:], SQUARE)


def test_it_refuses_what_attention_refuses():
    with pytest.raises(rootdk.DTypeError, match="mask: expected booleans"):
        rootdk.plan(SQUARE, SQUARE, SQUARE, mask=np.zeros((512, 512), np.float32))
    with pytest.raises(rootdk.DTypeError, match="query: expected an array of NumPy or torch, got list"):
        rootdk.plan([1.0], SQUARE, SQUARE)


def test_it_does_not_change():
    plan = rootdk.plan(SQUARE, SQUARE, SQUARE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.threads = 3


def test_threads_and_why():
    assert rootdk.plan(SQUARE, SQUARE, SQUARE).threads == 2
    tiny = SQUARE[:, :, :8, :8]
    small = rootdk.plan(tiny, tiny, tiny)
    assert (small.threads, small.tasks) == (1, 4)
    assert "1 thread, as 8.19 kFLOP take it no longer than waking another would" in repr(small)
    rows, keys = np.zeros((16, 64), np.float32), np.zeros((20_000, 64), np.float32)
    assert "1 thread, as there is 1 task" in repr(rootdk.plan(rows, keys, keys))


def test_few_queries_are_decoded():
    keys = np.zeros((1, 2, 4000, 64), np.float32)
    plan = rootdk.plan(SQUARE[:, :, :1], keys, keys, mask=rootdk.sliding_window(999, align="end"))
    assert plan.path == "fused decode"
    assert "lanes of keys, as 1 of queries would leave most idle" in plan.reason
    assert "keys copied block by block: lanes are keys" in repr(plan)
    # of 32 blocks, the window is in the last 8 and in part of another
    assert (plan.tiles.skipped, plan.tiles.full, plan.tiles.masked) == (4 * 23, 4 * 8, 4)
    assert plan.tiles.visible_pairs == 4 * 1000
    assert plan.tiles.keys_read == 2 * (4000 - 23 * 128)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (SQUARE, SQUARE[..., :50].copy(), "values copied block by block: d_v is not a multiple of"),
        (SQUARE.swapaxes(1, 2).copy().swapaxes(1, 2), SQUARE, "keys copied block by block: rows lie apart"),
        (SQUARE[..., ::-1], SQUARE, "keys copied block by block: elements of a row are not adjacent"),
    ],
)
def test_what_is_copied_and_why(key, value, words):
    assert words in repr(rootdk.plan(SQUARE, key, value))


def test_half_precision_is_copied_as_it_is_converted():
    half = SQUARE.astype(np.float16)
    assert rootdk.plan(half, half, half).packing == ("float16 is computed in float32",) * 2


def test_where_the_kernel_came_from():
    mask = rootdk.mask(lambda b, h, q_idx, kv_idx: (kv_idx - q_idx) % 7 != 3)
    kernels()._memory.clear()
    assert rootdk.plan(SQUARE, SQUARE, SQUARE, mask=mask).kernel in ("compiled now", "loaded from disk")
    assert rootdk.plan(SQUARE, SQUARE, SQUARE, mask=mask).kernel == "in memory"


def test_empty_problems_have_plans():
    for sizes in ((0, 5), (5, 0)):
        query, key = (np.zeros((2, size, 4), np.float32) for size in sizes)
        assert "0 skipped (0 %)" in repr(rootdk.plan(query, key, key))


def test_the_estimate_is_the_roofline():
    cost = Cost(flops=100, useful_flops=50, bytes=10, reread_bytes=0, naive_bytes=0, accumulator_size=4)
    assert cost.seconds(Peaks(flops=10.0, bytes=100.0)) == 10.0
    assert cost.seconds(Peaks(flops=1000.0, bytes=1.0)) == 10.0
    assert dataclasses.replace(cost, accumulator_size=8).seconds(Peaks(flops=10.0, bytes=100.0)) == 20.0
    assert cost.intensity == 5.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (12, "12 B"), (1234, "1.23 kB"), (5.6e6, "5.6 MB"), (7e-3, "7 mB"), (8e-9, "8 nB")],
)
def test_numbers_with_prefixes(value, text):
    assert si(value, "B") == text
