"""The gallery is up to date, and all of its masks skip."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import rootdk

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("gallery", ROOT / "tools" / "gallery.py")
gallery = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)


def test_the_page_is_what_the_tool_writes():
    results = json.loads(gallery.SPEEDS.read_text()) if gallery.SPEEDS.exists() else None
    assert (ROOT / "docs" / "gallery.md").read_text() == gallery.page(results), "run tools/gallery.py"


@pytest.mark.parametrize("build", gallery.GALLERY, ids=lambda build: build.__name__)
def test_every_mask_skips_most_of_what_it_hides(build):
    tiles = gallery.tiles(build)
    hidden = 1 - tiles.visible_pairs / gallery.LENGTH**2
    assert tiles.skipped / tiles.tiles > 0.75 * hidden


@pytest.mark.parametrize("build", gallery.GALLERY, ids=lambda build: build.__name__)
def test_every_mask_runs_as_it_is_drawn(build):
    n = 64
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, 8)).astype(np.float32) for _ in range(3)]
    found = rootdk.attention(*arrays, mask=build(n))
    expected = rootdk.reference.attention(*arrays, mask=build(n).picture(n).visible).output
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_measurements_fill_the_speed_columns():
    seconds = {"full": 2.0, **{build.__name__: 1.0 for build in gallery.GALLERY}}
    ready = {build.__name__: {"first": 0.6, "compile": 0.5, "load": 0.002} for build in gallery.GALLERY}
    page = gallery.page({"machine": {"processor": "a processor"}, "threads": 2, "seconds": seconds, "ready": ready})
    assert "| 50.0 % | 2.00 | 1.00 | 0.50 s | 0.60 s | 2.0 ms |" in page
    assert "medians on a processor, 2 threads" in page
