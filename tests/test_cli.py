"""The command line: what it prints, what programs can read, and one clear line with exit code 2 on bad input."""

import json
import os
import subprocess
import sys

import pytest

import rootdk
from rootdk.bench import peers
from rootdk.cli import demo_work, main

ROOTDK = [sys.executable, "-m", "rootdk"]


def run(*arguments, **environment):
    return subprocess.run(
        [*ROOTDK, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


BAD = [
    (["nosuch"], "nosuch"),
    (["bench", "nosuch"], "'forward'"),
    (["bench", "--nosuch"], "--nosuch"),
    (["bench", "--rounds", "0"], "--rounds"),
    (["bench", "--rounds", "many"], "--rounds"),
    (["bench", "--threads", "0"], "threads: expected 1 to"),
    (["bench", "--threads", "4096"], "threads: expected 1 to"),
    (["bench", "--peers", "nosuch"], "peers: expected some of numpy, torch"),
    (["bench", "--plot", "picture.gif"], ".svg or .png"),
    (["demo", "--head", "12"], "--head"),
    (["cache", "warm", "--dtype", "int8"], "expected one of float16, bfloat16, float32, float64, got 'int8'"),
    (["cache", "nosuch"], "nosuch"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: " ".join(value) if value else "")
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("rootdk: ")
    assert message in line


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_names_every_command(arguments, capsys):
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("demo", "bench", "cache"))


@pytest.mark.parametrize("command", ["demo", "bench", "cache", "cache show", "cache warm", "cache clear"])
def test_every_command_has_help(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert "Usage: rootdk" in capsys.readouterr().out


def test_demo_checks_the_real_layer():
    layer = demo_work.real_layer(head=8)
    assert layer.shape == (12, 41, 32)
    assert layer.max_error < 1e-5
    assert {(link.query, link.key) for link in layer.links} >= {("over", "river"), ("before", "coffee")}


def test_demo_sees_a_wrong_kernel(monkeypatch):
    right = rootdk.attention
    monkeypatch.setattr(rootdk, "attention", lambda *arrays, **options: right(*arrays, **options) * 1.001)
    assert demo_work.real_layer(head=8).max_error > 1e-4


@pytest.mark.slow
def test_demo_for_programs():
    done = run("demo", "--json", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["layer"]["max_error"] < 1e-5
    ours = {lap["pattern"]: lap for lap in answer["race"] if lap["name"] == "rootdk"}
    naive = {lap["pattern"]: lap for lap in answer["race"] if lap["name"] == "numpy"}
    for pattern in ("full", "causal"):
        assert ours[pattern]["seconds"] < naive[pattern]["seconds"]
        assert ours[pattern]["extra_bytes"] < naive[pattern]["extra_bytes"] / 10


def test_demo_for_people(monkeypatch, capsys):
    laps = [
        demo_work.Lap("full", "rootdk", 0.1, 1 << 20),
        demo_work.Lap("full", "torch", None, None, "torch is not installed"),
        demo_work.Lap("full", "numpy", 0.5, None),
    ]
    monkeypatch.setattr(demo_work, "race", lambda rounds, tick: laps)
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    for words in ("the old engineer", "river", "Largest error", "torch is not installed", "5.00× as fast", "unknown"):
        assert words in printed


def test_bench_for_programs_and_as_a_picture(tmp_path):
    picture = tmp_path / "scaling.svg"
    done = run("bench", "scaling", "--quick", "--rounds", "1", "--peers", "numpy", "--json", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["question"] == "scaling"
    assert [row["case"] for row in answer["rows"]] == ["N 256", "N 512"]
    assert all(row["rootdk"] > 0 and row["numpy"] > 0 for row in answer["rows"])
    assert "<svg" in picture.read_text()


def test_bench_for_people(capsys):
    assert main(["bench", "overhead", "--quick", "--rounds", "1", "--peers", ""]) == 0
    printed = capsys.readouterr().out
    assert "1 query, 1 key, causal" in printed
    assert "processor" in printed


def test_bench_on_one_core_starts_afresh():
    done = run("bench", "overhead", "--quick", "--rounds", "1", "--peers", "", "--json", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["machine"]["threads"] == 1


def test_cache_shows_warms_and_clears(tmp_path):
    folder = str(tmp_path / "kernels")

    def cache(*arguments):
        done = run("cache", *arguments, "--json", ROOTDK_CACHE_DIR=folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert cache("show")["files"] == []
    assert cache("warm", "--dtype", "float32") == {"compiled": 2, "on_disk": 0}
    assert cache("warm", "--dtype", "float32") == {"compiled": 0, "on_disk": 2}
    shown = cache("show")
    assert shown["folder"] == folder
    # two kernels and their libraries: panels; products and softmax, with hidden pairs and without
    assert len(shown["files"]) == 2 + 5
    assert cache("clear") == {"removed": 7, "bytes": shown["bytes"]}
    assert cache("show")["files"] == []


def test_cache_says_why_nothing_is_kept():
    done = run("cache", "show", ROOTDK_CACHE="off")
    assert done.returncode == 0
    assert "ROOTDK_CACHE is off" in done.stdout


def test_peers_that_are_not_installed_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    case = peers.Case("", q_len=4, kv_len=4)
    with pytest.raises(peers.UnavailableError, match="torch is not installed"):
        peers.prepare("torch", case, ())
