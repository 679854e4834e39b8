"""Writes docs/gallery.md: masks as code, as pictures and as tile maps, and how fast they are.

    python tools/gallery.py              # from the masks below and the last measurement, docs/gallery.json
    python tools/gallery.py --measure    # measure first: some minutes on an idle machine

Each mask is a function of the sequence length n, so that a small one can be drawn and a long one planned and timed.
"""

import argparse
import inspect
import json
import math
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rootdk
from rootdk import engine, problem
from rootdk.bench.timing import in_turns, machine
from rootdk.machine import AVX2, host
from rootdk.mods import ranges
from rootdk.planning.partition import partition
from rootdk.planning.schedule import schedule_for
from rootdk.planning.tile_map import Cut, TileMap, tile_map
from rootdk.runtime.cache import KernelCache, Source
from rootdk.runtime.store import Store
from rootdk.sources import source

DOCS = Path(__file__).parent.parent / "docs"
SPEEDS = DOCS / "gallery.json"
LENGTH = 4096
HEADS, WIDTH = 8, 64
ROUNDS = 7
_NOTE = "<!-- written by tools/gallery.py -->"


def causal(n):
    """Each query sees itself and what came before it: GPT and every decoder since."""
    return rootdk.causal()


def sliding_window(n):
    """The last n/16 keys: Mistral 7B, and every other layer of Gemma 2 and GPT-OSS."""
    return rootdk.sliding_window(n // 16)


def window_with_sinks(n):
    """A window and the first keys, which models use to rest their attention on: StreamingLLM."""
    return rootdk.sliding_window(n // 8) | (rootdk.causal() & rootdk.sink_tokens(max(n // 16, 1)))


def chunked(n):
    """Causal within chunks that do not see each other: Llama 4's local layers."""

    def same_chunk(b, h, q_idx, kv_idx):
        return q_idx // (n // 4) == kv_idx // (n // 4)

    return rootdk.causal() & rootdk.mask(same_chunk)


def prefix_lm(n):
    """The prompt sees all of itself, the rest is causal: T5's prefix LM, PaliGemma."""
    return rootdk.prefix_lm(n // 3)


def packed_documents(n):
    """Several documents and some padding in one sequence; none sees another."""
    ids = np.repeat([0, 1, 2, -1], [5 * n // 16, 7 * n // 16, 3 * n // 16, n // 16])
    return rootdk.causal() & rootdk.documents(ids)


def padded_batch(n):
    """A batch of sentences of different lengths: what stands behind a sentence's end is hidden."""
    return rootdk.lengths(np.array([5 * n // 8]))


def shared_prefix(n):
    """Four answers to one prompt, side by side: each sees the prompt and itself."""
    prompt = n // 2
    size = (n - prompt) // 4

    def prompt_or_own(b, h, q_idx, kv_idx):
        return (kv_idx < prompt) | ((q_idx - prompt) // size == (kv_idx - prompt) // size)

    return rootdk.causal() & rootdk.mask(prompt_or_own)


def block_diffusion(n):
    """Noisy blocks, then the clean ones: a noisy block sees itself and the clean ones before it (BD3-LM)."""
    half, size = n // 2, n // 8

    def visible(b, h, q_idx, kv_idx):
        q_clean, kv_clean = q_idx >= half, kv_idx >= half
        q_block, kv_block = q_idx % half // size, kv_idx % half // size
        own = (q_block == kv_block) & (q_clean == kv_clean)
        return own | (kv_clean & (q_block > kv_block))

    return rootdk.mask(visible)


def neighbourhood(n):
    """An image of √n × √n pixels, row by row: each sees a square around it (NATTEN)."""
    width = math.isqrt(n)
    reach = max(width // 8, 1)

    def near(b, h, q_idx, kv_idx):
        rows = abs(q_idx // width - kv_idx // width)
        columns = abs(q_idx % width - kv_idx % width)
        return (rows <= reach) & (columns <= reach)

    return rootdk.mask(near)


def dilated(n):
    """Every other key of a window, twice as far as a window of as many keys (Longformer)."""

    def every_other(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx) % 2 == 0

    return rootdk.sliding_window(n // 4) & rootdk.mask(every_other)


def global_tokens(n):
    """A window on both sides; some tokens see all and are seen by all (Longformer, BigBird)."""
    count = max(n // 64, 1)

    def either_is_global(b, h, q_idx, kv_idx):
        return (q_idx < count) | (kv_idx < count)

    return rootdk.sliding_window(n // 16, n // 16) | rootdk.mask(either_is_global)


# mask -> length of its picture
GALLERY: dict[Callable[[int], Any], int] = {
    causal: 16, sliding_window: 32, window_with_sinks: 16, chunked: 16, prefix_lm: 16, packed_documents: 16,
    padded_batch: 16, shared_prefix: 16, block_diffusion: 16, neighbourhood: 25, dilated: 16, global_tokens: 32,
}  # fmt: skip


def tiles(build: Callable[[int], Any], n: int = LENGTH) -> TileMap:
    """The tiles of one head of n queries and keys on a machine with AVX2, whatever this one has."""
    array = np.zeros((1, n, WIDTH), np.float32)
    bound = problem.bind(array, array, array, mask=build(n))
    schedule, lanes = schedule_for(AVX2, narrow=True), AVX2.lanes(4)
    cut = Cut(partition(n, HEADS, schedule, lanes, threads=2, most_panels=4), schedule, lanes)
    tables = ranges.build_all(bound.problem.graph, bound.operands.arrays)
    return tile_map(bound.problem, bound.operands, tables, cut)


def measure() -> dict[str, Any]:
    """Medians, in turns with a call that hides nothing."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, HEADS, LENGTH, WIDTH), np.float32) for _ in range(3)]

    def call(mask: Any) -> Callable[[], Any]:
        return lambda: rootdk.attention(*arrays, mask=mask)

    calls = {"full": call(None), **{build.__name__: call(build(LENGTH)) for build in GALLERY}}
    ready = {build.__name__: _readiness(arrays, build(LENGTH)) for build in GALLERY}
    seconds = {name: timing.median for name, timing in in_turns(calls, ROUNDS).items()}
    return {"machine": machine(), "threads": rootdk.get_num_threads(), "seconds": seconds, "ready": ready}


def _readiness(arrays: list[np.ndarray], mask: Any) -> dict[str, float]:
    """Median seconds to compile the mask's kernel in an empty cache, to load it from disk, and to compile it where
    other masks have been, so that the libraries that kernels share are there."""
    bound = problem.bind(*arrays, mask=mask)
    tables = ranges.build_all(bound.problem.graph, bound.operands.arrays)
    output, lse = engine.allocate(bound, lse=False)
    spec = engine.prepare(bound, output, lse, tables).spec
    kernel = source(spec, host())
    times: dict[str, list[float]] = {"first": [], "load": [], "compile": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("first", "load"):  # the second cache finds on disk what the first has compiled
                times[name].append(_seconds(KernelCache(Store(Path(folder))), kernel))
        cache = KernelCache(Store(None))
        for library in kernel.libraries:
            cache.get(library, host())
        times["compile"].append(_seconds(cache, kernel))
    return {name: statistics.median(samples) for name, samples in times.items()}


def _seconds(cache: KernelCache, kernel: Source) -> float:
    start = time.perf_counter()
    cache.get(kernel, host())
    return time.perf_counter() - start


def page(results: dict[str, Any] | None) -> str:
    """The whole document."""
    maps = {build: tiles(build) for build in GALLERY}
    rows = [_row(build, found, results) for build, found in maps.items()]
    entries = [_entry(build, size, maps[build]) for build, size in GALLERY.items()]
    return "\n".join([_introduction(results), *rows, "", *entries])


def _introduction(results: dict[str, Any] | None) -> str:
    speed = "Speed is not measured yet."
    if results is not None:
        speed = (
            f"Speed is in multiples of a call that hides nothing: medians on {results['machine']['processor']}, "
            f"{results['threads']} threads, float32, {HEADS} heads, d {WIDTH}. Per visible pair, 1 is the speed of "
            "plain attention. A new mask compiles in the time given; the first one of an element type also builds the "
            "libraries that all of them share."
        )
    paragraphs = (
        "Every mask below is plain Python that becomes loop bounds and, where those do not decide, a test inside the "
        "kernel. The pictures are drawn from the expressions that are compiled; `mask.picture()` draws any mask, in a "
        "terminal and in a notebook.",
        f"Tiles are up to 24 queries × 128 keys of {LENGTH} × {LENGTH} pairs, as AVX2 has them: *skipped* ones cost "
        "nothing, *full* ones what they cost without a mask, *masked* ones test each pair. `rootdk.plan` tells as much "
        "of any call.",
        speed,
    )
    table = (
        "| mask | skipped | full | masked | visible pairs | speed | per visible pair | compile | first | from disk |",
        "|---|---|---|---|---|---|---|---|---|---|",
    )
    text = "\n\n".join(textwrap.fill(paragraph, 120) for paragraph in paragraphs)
    return "\n".join(["# Gallery of masks", "", _NOTE, "", text, "", *table])


def _row(build: Callable[[int], Any], found: TileMap, results: dict[str, Any] | None) -> str:
    shares = (f"{100 * count / found.tiles:.1f} %" for count in (found.skipped, found.full, found.masked))
    visible = found.visible_pairs / LENGTH**2
    seconds = {} if results is None else results["seconds"]
    faster = seconds["full"] / seconds[build.__name__] if build.__name__ in seconds else None
    speed = ("", "") if faster is None else (f"{faster:.2f}", f"{faster * visible:.2f}")
    ready = {} if results is None else results["ready"].get(build.__name__, {})
    times = [f"{ready[name]:.2f} s" for name in ("compile", "first")] if ready else ["", ""]
    times.append(f"{1e3 * ready['load']:.1f} ms" if ready else "")
    cells = (
        f"[{_title(build)}](#{_title(build).replace(' ', '-')})",
        *shares,
        f"{100 * visible:.1f} %",
        *speed,
        *times,
    )
    return f"| {' | '.join(cells)} |"


def _entry(build: Callable[[int], Any], size: int, found: TileMap) -> str:
    source = textwrap.dedent(inspect.getsource(build))
    before, _, after = source.split('"""', 2)
    code = before.rstrip() + "\n" + after.strip("\n")
    blockers = [f"`{blocker.text}` in {blocker.tiles}" for blocker in found.blockers]
    counts = f"{found.skipped} tiles skipped, {found.full} full, {found.masked} masked"
    lines = [
        f"## {_title(build)}", "", str(build.__doc__), "", "```python", code, "```", "", "```text",
        repr(build(size).picture(size)), "```", "",
        f"{counts}{f', for {_listed(blockers)}' if blockers else ''}.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _title(build: Callable[[int], Any]) -> str:
    return build.__name__.replace("_", " ")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="time every mask first, into docs/gallery.json")
    if parser.parse_args().measure:
        SPEEDS.write_text(json.dumps(measure(), indent=1) + "\n")
    results = json.loads(SPEEDS.read_text()) if SPEEDS.exists() else None
    (DOCS / "gallery.md").write_text(page(results))


if __name__ == "__main__":
    main()
