"""Memory between calls: who has it, and how much is kept."""

import numpy as np
import pytest

from rootdk.runtime import workspace
from rootdk.runtime.workspace import Workspace, address, borrow, give_back


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(workspace, "_free", [])


@pytest.mark.parametrize(
    "array",
    [np.ones(3), np.ones((4, 4))[1:, ::2], np.ones(5)[::-1], np.broadcast_to(np.ones(1), (3, 3)), np.array(2.0)],
)
def test_the_address_is_numpy_s(array):
    assert address(array) == array.ctypes.data


def test_scratch_memory_is_page_aligned_and_apart_from_the_frame():
    found = Workspace(400, 4104)
    assert found.scratch_address % 4096 == 0
    assert found.frame_address == address(found.frame) == found.scratch_address + 4104
    assert found.frame.nbytes >= 400


def test_one_is_used_again_where_it_is_large_enough():
    first = borrow(400, 8192)
    give_back(first)
    assert borrow(400, 4096) is first


def test_two_borrowers_never_share():
    assert borrow(400, 64) is not borrow(400, 64)


def test_a_small_one_makes_room_for_one_that_serves_both():
    give_back(borrow(800, 64))
    larger = borrow(400, 8192)
    assert larger.size == (800, 8192)
    assert not workspace._free


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(workspace, "_KEPT_BYTES", 1000)
    for found in [borrow(400, 400) for _ in range(5)]:
        give_back(found)
    assert len(workspace._free) == 2
