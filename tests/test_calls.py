"""A repeated call skips the checks, and must not skip anything else."""

import os
import threading

import numpy as np
import pytest

import rootdk
from rootdk import calls


@pytest.fixture(autouse=True)
def nothing_known():
    calls._known.clear()


def inputs(seed: int = 0, shape: tuple[int, ...] = (2, 3, 40, 8), dtype: type = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(3)]


def naive(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: object) -> np.ndarray:
    return rootdk.reference.attention(query, key, value, **options).output


def test_a_second_call_is_known_and_right():
    for seed in range(3):
        arrays = inputs(seed)
        np.testing.assert_allclose(rootdk.attention(*arrays), naive(*arrays), rtol=1e-4, atol=1e-5)
        assert len(calls._known) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"mask": rootdk.causal()},
        {"mask": rootdk.causal() & ~rootdk.sink_tokens(1), "scale": 0.5},
        {"score_mod": (rootdk.softcap(2.0), rootdk.softcap(1.0))},
        {"layout": "bshd", "mask": rootdk.sliding_window(3, align="end")},
    ],
    ids=str,
)
def test_calls_with_ready_made_mods_are_known(options):
    for seed in range(2):
        arrays = inputs(seed)
        np.testing.assert_allclose(
            rootdk.attention(*arrays, **options), naive(*arrays, **options), rtol=1e-4, atol=1e-5
        )
    assert len(calls._known) == 1


def test_what_can_change_is_read_at_each_call():
    arrays, ids, limit = inputs(), np.zeros(40, np.int64), 3

    def mine(b, h, q_idx, kv_idx):
        return kv_idx < limit

    bias, sinks = np.zeros((40, 40), np.float32), np.zeros(3, np.float32)
    for change in range(2):
        ids[20:], limit, bias[0, 1], sinks[0] = change, 3 + change, change, change
        for options in ({"mask": rootdk.documents(ids)}, {"mask": mine}, {"bias": bias}, {"sinks": sinks}):
            found = rootdk.attention(*arrays, **options)
            np.testing.assert_allclose(found, naive(*arrays, **options), rtol=1e-4, atol=1e-5)
    # documents and bias are known but for what they hold, the function for each of its numbers, sinks not at all
    assert len(calls._known) == 4


def differing(a: np.ndarray) -> dict[str, tuple[np.ndarray, dict[str, object]]]:
    return {
        "shape": (a[:, :, :39], {}),
        "strides": (a[..., ::-1], {}),
        "dtype": (a.astype(np.float64), {}),
        "scale": (a, {"scale": 2.0}),
        "mask": (a, {"mask": rootdk.causal()}),
        "mask by its numbers": (a, {"mask": rootdk.sink_tokens(2)}),
        "layout": (a, {"layout": "bshd"}),
        "score": (a, {"score_mod": rootdk.softcap(1.0)}),
    }


@pytest.mark.parametrize("what", differing(np.empty((2, 3, 40, 8), np.float32)))
def test_a_call_that_differs_is_another(what):
    (a, *_), (b, *_) = inputs(0), inputs(1)
    rootdk.attention(b, b, b)
    rootdk.attention(b, b, b, mask=rootdk.sink_tokens(1))
    array, options = differing(a)[what]
    found = rootdk.attention(array, array, array, **options)
    np.testing.assert_allclose(found, naive(array, array, array, **options), rtol=1e-4, atol=1e-5)


def test_lse_is_known_too():
    for return_lse in (True, False, True):
        found = rootdk.attention(*inputs(), return_lse=return_lse)
        assert isinstance(found, tuple) == return_lse
    assert found[1].shape == (2, 3, 40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": True}, "scale: expected"),
        ({"dropout_p": False}, "dropout_p: expected"),
        ({"layout": ["bhsd"]}, "layout: expected"),
        ({"mask": 0}, "mask: expected"),
        ({"score_mod": 1.0}, "score_mod: expected"),
    ],
)
def test_a_mistake_is_seen_even_where_it_equals_what_is_known(options, message):
    rootdk.attention(*inputs(), scale=1.0)
    rootdk.attention(*inputs())
    with pytest.raises(rootdk.RootdkError, match=message):
        rootdk.attention(*inputs(), **options)


def test_a_masked_array_is_refused_though_it_looks_known():
    query, key, value = inputs()
    rootdk.attention(query, key, value)
    with pytest.raises(rootdk.DTypeError, match="masked array"):
        rootdk.attention(np.ma.masked_array(query), key, value)


def test_a_change_of_threads_is_another_call(monkeypatch):
    arrays = inputs(shape=(4, 4, 256, 32))
    results = []
    for count in (1, 2, 1):
        monkeypatch.setattr("rootdk.runtime.threads._chosen", count)
        results.append(rootdk.attention(*arrays))
    assert [known.prepared.threads for known in calls._known.values()] == [1, 2]
    assert np.array_equal(results[0], results[1])


def test_few_calls_are_remembered():
    for length in range(1, 2 * calls._MOST_KNOWN):
        rootdk.attention(*inputs(shape=(length, 4)))
    assert len(calls._known) <= calls._MOST_KNOWN


def test_many_threads_share_what_is_known():
    arrays, wrong = [inputs(seed) for seed in range(4)], []
    expected = [rootdk.attention(*three) for three in arrays]

    def work(number: int) -> None:
        for _ in range(200):
            if not np.array_equal(rootdk.attention(*arrays[number]), expected[number]):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_repeat_a_call():
    arrays = inputs(shape=(4, 4, 256, 32))
    expected = rootdk.attention(*arrays)
    child = os.fork()
    if not child:
        os._exit(not np.array_equal(rootdk.attention(*arrays), expected))
    assert os.waitpid(child, 0)[1] == 0
