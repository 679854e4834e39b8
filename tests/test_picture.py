"""Pictures show what the mask's expression says."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

import rootdk


def test_a_window_with_a_sink():
    picture = (rootdk.sliding_window(1) | rootdk.sink_tokens(1)).picture(5)
    assert repr(picture) == "\n".join(
        [
            "sliding_window(1, 0) | sink_tokens(1): 5 queries × 5 keys",
            "■ · · · ·",
            "■ ■ · · ·",
            "■ ■ ■ · ·",
            "■ · ■ ■ ·",
            "■ · · ■ ■",
        ]
    )


def test_it_is_that_of_the_batch_element_and_head_asked_for():
    mask = rootdk.lengths(np.array([1, 3])) & rootdk.mask(lambda b, h, q_idx, kv_idx: kv_idx >= h)
    assert mask.picture(2, 4, batch=2, heads=2, b=1, h=1).visible.tolist() == [[False, True, True, False]] * 2


def test_a_dense_array_and_a_mask_that_shows_all():
    array = np.tri(3, dtype=bool)
    assert np.array_equal(rootdk.mask(array).picture(3).visible, array)
    assert rootdk.mask(lambda b, h, q_idx, kv_idx: True).picture(2, 3).visible.all()


def test_a_long_mask_is_cut_to_its_corner():
    picture = rootdk.causal().picture(5000)
    assert picture.visible.shape == (64, 64)
    assert repr(picture).startswith("causal(): 5000 queries × 5000 keys, its first corner\n")


def test_the_svg_covers_the_visible_pairs_and_no_others():
    picture = (rootdk.causal() & ~rootdk.sink_tokens(1)).picture(7)
    root = ET.fromstring(picture.svg())
    covered = np.zeros((7, 7), int)
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, width = (int(box.attrib[name]) // 10 for name in ("x", "y", "width"))
        covered[y, x : x + width] += 1
    assert np.array_equal(covered, picture.visible.astype(int))


def test_a_notebook_gets_escaped_markup():
    def less(b, h, q_idx, kv_idx):
        return kv_idx < q_idx

    less.__name__ = "<b>"
    assert "<b>" not in rootdk.mask(less).picture(2)._repr_html_()


@pytest.mark.parametrize("sizes", [{"q_len": 0}, {"q_len": 3, "kv_len": 0}, {"b": 1}, {"h": -1}, {"heads": 0}])
def test_sizes_that_make_no_sense(sizes):
    with pytest.raises(rootdk.ArgumentError, match="picture: expected sizes of at least 1"):
        rootdk.causal().picture(**sizes)


def test_the_mask_s_own_errors_pass_through():
    with pytest.raises(rootdk.ArgumentError, match="align"):
        rootdk.causal().picture(3, 5)
