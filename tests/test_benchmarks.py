"""The measuring tools measure what they say: peers compute the same thing, counts are right, scripts run."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import rootdk
from rootdk.bench import backward, contest, memory, peers, suites, training
from rootdk.bench.cases import Case, draw
from rootdk.bench.patterns import PATTERNS
from rootdk.bench.questions import QUESTIONS
from rootdk.bench.results import Goal, Row, Settings
from rootdk.bench.timing import in_turns
from rootdk.roofline import Roofline

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))
SMALL = Case("small", batch=2, heads=4, kv_heads=4, q_len=300, kv_len=300, d_k=16, d_v=16)


# Compiled FlexAttention takes the C++ compiler 20 seconds a pattern.
@pytest.mark.parametrize("peer", [peer for peer in ("rootdk", *peers.RIVALS) if peer != "flex"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_peer_computes_the_definition_or_says_why_not(peer, pattern):
    case = replace(SMALL, pattern=pattern)
    arrays = draw(case)
    try:
        prepared = peers.prepare(peer, case, arrays)
    except peers.UnavailableError as reason:
        assert str(reason)
        pytest.skip(f"{peer}: {reason}")
    exact = rootdk.reference.attention(*arrays, **case.rule.options(case.heads)).output
    np.testing.assert_allclose(prepared.output(prepared.call()), exact, atol=2e-6)


@pytest.mark.parametrize("peer", ["rootdk", "numpy", "torch"])
@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float16"},
        {"dtype": "bfloat16"},
        {"dtype": "float64"},
        {"layout": "bshd"},
        {"kv_heads": 2},
        {"d_v": 24},
        {"q_len": 1},
    ],
    ids=str,
)
def test_every_kind_of_case_reaches_the_peers_as_it_is(peer, change):
    case = replace(SMALL, **change)
    arrays = draw(case)
    try:
        prepared = peers.prepare(peer, case, arrays)
    except peers.UnavailableError as reason:
        pytest.skip(f"{peer}: {reason}")
    exact = rootdk.reference.attention(*arrays, layout=case.layout).output
    exact = exact if case.layout == "bhsd" else exact.swapaxes(1, 2)
    tolerance = {"float16": 2e-3, "bfloat16": 2e-2}.get(case.dtype, 2e-6)
    np.testing.assert_allclose(np.asarray(prepared.output(prepared.call()), np.float64), exact, atol=tolerance)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pairs_are_counted(pattern):
    rule = PATTERNS[pattern]
    visible = rule.visible(700, 500)
    assert rule.pairs(700, 500) == (700 * 500 if visible is None else int(visible.sum()))


def test_turns_alternate_and_time_what_they_call():
    order = []

    def sleeper(name, seconds):
        def call():
            order.append(name)
            time.sleep(seconds)

        return call

    times = in_turns({"short": sleeper("short", 0.021), "long": sleeper("long", 0.042)}, rounds=3)
    assert order[4:] == ["short", "long", "long", "short", "short", "long"]
    assert 1.5 < times["long"].median / times["short"].median < 2.5
    assert times["short"].best <= times["short"].median


def test_a_peer_that_computes_something_else_is_not_compared_with(monkeypatch):
    right = peers.naive

    def wrong(case, arrays):
        return right(case, arrays) + 1

    monkeypatch.setattr(peers, "naive", wrong)
    (row,) = contest.run([SMALL], ["numpy"], "peak", Settings(threads=1, rounds=1))
    assert "differs from ours by 1" in row.missing["numpy"]
    assert "numpy" not in row.values


def test_naive_memory_is_at_least_the_score_matrix():
    case = replace(SMALL, batch=1, q_len=2048, kv_len=2048)
    scores = 4 * case.heads * case.q_len * case.kv_len
    assert scores <= memory.extra_memory("numpy", case) < 8 * scores
    assert memory.extra_memory("rootdk", case) < scores / 8


def test_the_machine_is_not_faster_than_physics():
    roofline = Roofline(1)
    times = in_turns({"peak": roofline.multiply_add, "read": roofline.read}, rounds=3)
    assert 1e9 < roofline.flops / times["peak"].best < 1e12
    assert 1e8 < roofline.bytes / times["read"].best < 1e12


def test_goals():
    row = Row("a", {"fast": 2.0, "slow": 3.0, "free": 1.0}, {"fast": Goal(at_least=1.5), "slow": Goal(at_most=2.0)})
    assert row.missed == ["slow"]


def test_every_forward_goal_of_the_design_has_a_case():
    goals = {case.name: dict(case.targets) for case in (*suites.FORWARD, *suites.DTYPES, *suites.MODS)}
    assert goals["N 2048, d 64, full"] == {"torch": 1.3, "peak": 0.78}
    assert goals["N 2048, d 64, causal"] == {"torch": 1.6, "peak": 0.7}
    assert goals["float16, N 2048, d 64, full"] == {"torch": 2.0}
    assert goals["window 256"]["flex"] == 3.0


def test_every_backward_goal_of_the_design_has_its_work():
    goals = {work.case.name: dict(work.case.targets) for work in backward.WORK}
    assert goals["backward, N 2048, d 64, full"] == {"torch": 1.4}
    assert goals["backward, N 2048, d 64, causal"] == {"torch": 1.65}
    assert goals["backward, N 2048, d 128, full"] == {"torch": 1.12}
    assert goals["backward, N 2048, d 128, causal"] == {"torch": 1.45}


def test_products_of_a_backward_pass_are_counted():
    case = replace(SMALL, pattern="causal")
    assert backward.Work(case).flops == 2.5 * case.flops
    assert backward.Work(case, forward=True).flops == 3.5 * case.flops


QUICK = Settings(threads=1, rounds=1, quick=True)


@pytest.fixture
def one_thread():
    """Tests run beside each other: with more threads than cores, torch's wait for each other at every operation."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_everybody_trains_the_same_model(one_thread):
    for row in training.rows(("torch",), QUICK):
        assert not row.missing
        assert row.values.keys() == {"median", "best", "torch", "eager"}


def test_who_trains_another_model_is_reported_and_not_timed(monkeypatch, one_thread):
    from rootdk.bench import torch_training

    others = {**torch_training.ATTENTIONS, "torch": lambda query, key, value, slopes: query}
    monkeypatch.setattr(torch_training, "ATTENTIONS", others)
    for row in training.rows(("torch", "numpy"), QUICK):
        assert "differs" in row.missing["torch"]
        assert row.missing["numpy"] == "trains no torch model"
        assert row.values.keys() == {"median", "best", "eager"}


@pytest.mark.parametrize("work", backward.WORK, ids=lambda work: work.case.name)
def test_everybody_differentiates_the_same_function(work, one_thread, monkeypatch):
    monkeypatch.setattr(backward, "WORK", [work] * 4)
    monkeypatch.setattr(backward.memory, "in_a_process", lambda *arguments: 0)
    (row,) = backward.rows(("torch",), QUICK)
    assert not row.missing
    assert row.values.keys() >= {"median", "best", "peak", "torch", "eager" if work.forward else "attention_vjp"}


def test_who_differentiates_another_function_is_reported_and_not_timed(monkeypatch, one_thread):
    from rootdk.bench import torch_gradients

    right = torch_gradients.ATTENTIONS["torch"]
    others = {**torch_gradients.ATTENTIONS, "torch": lambda inputs, work: 2 * right(inputs, work)}
    monkeypatch.setattr(torch_gradients, "ATTENTIONS", others)
    monkeypatch.setattr(backward.memory, "in_a_process", lambda *arguments: 0)
    row, _ = backward.rows(("torch", "numpy"), QUICK)
    assert "differs" in row.missing["torch"]
    assert row.missing["numpy"] == "differentiates no torch tensors"
    assert "torch" not in row.values


@pytest.mark.slow
def test_memory_of_eager_gradients_is_at_least_the_score_matrix():
    pytest.importorskip("torch")
    work = backward.Work(replace(SMALL, batch=1, q_len=1024, kv_len=1024), forward=True)
    scores = 4 * work.case.heads * work.case.q_len * work.case.kv_len
    assert scores <= backward.extra_memory("eager", work) < 8 * scores
    assert backward.extra_memory("rootdk", work) < scores / 8


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_runs(script):
    command = [sys.executable, str(script), "--quick", "--rounds", "1", "--peers", "numpy", "--json"]
    if script.stem == "compile_time":
        command[command.index("numpy")] = ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["question"] in QUESTIONS
    assert answer["rows"]
    assert answer["machine"]["rootdk"] == version("rootdk")


def test_every_question_has_a_script():
    assert len(SCRIPTS) == len(QUESTIONS)
