"""The layers of docs/design.md hold: who imports whom, what a bare import loads, and how long things may get."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "rootdk"
MOST_LINES = 400
MOST_FUNCTION_LINES = 60

PROBLEM = {"problem", "arguments", "score_graph", "out_of_bounds"}
# Layer -> layers it may import besides itself. A layer is a module or package of rootdk; the longest name wins.
ALLOWED = {
    "errors": set(),
    "dtypes": set(),
    "dropout": set(),
    "data": set(),
    "config": {"errors"},
    "machine": {"errors", "config"},
    "mods": {"errors", "dtypes"},
    **{layer: {"errors", "dtypes", "mods"} | PROBLEM for layer in PROBLEM},
    # Ready-made mods are user code: they get nothing that a user doesn't.
    "masks": {"errors", "mods.lang", "mods.values", "mods.foreign"},
    "scores": {"errors", "mods.lang", "mods.values", "mods.foreign"},
    "reference": {"errors", "dtypes", "dropout", "mods"} | PROBLEM,
    "planning": {"errors", "dtypes", "machine", "mods"} | PROBLEM,
    "codegen": {"dtypes", "dropout", "machine", "mods", "planning"},
    "runtime": {"errors", "config", "machine"},
    "sources": {"machine", "planning", "codegen", "runtime"},
    "engine": {"errors", "dtypes", "dropout", "machine", "mods", "planning", "runtime", "sources"} | PROBLEM,
    "roofline": {"machine", "planning", "codegen", "runtime"},
    "plans": {"errors", "mods", "planning", "engine", "roofline", "runtime", "second_order"} | PROBLEM,
    "call_kinds": {"dtypes", "mods"} | PROBLEM,
    "calls": {"errors", "dtypes", "mods", "planning", "engine", "runtime", "call_kinds"} | PROBLEM,
    "gradients": {"errors", "dtypes", "machine", "mods", "planning", "runtime", "sources", "engine"} | PROBLEM,
    "row_blocks": {"dtypes", "dropout", "mods"} | PROBLEM,
    "sink_gradients": {"gradients", "row_blocks"} | PROBLEM,
    "second_order": {"errors", "dtypes", "dropout", "mods", "row_blocks"} | PROBLEM,
    "pullback": {"errors", "dtypes", "mods", "engine", "gradients", "sink_gradients"} | PROBLEM,
    "frontends": {
        *("errors", "dtypes", "mods", "planning", "runtime", "engine", "gradients", "call_kinds", "calls", "plans"),
        *("sink_gradients", "second_order", "pullback"),
        *("masks", "scores"),
        *PROBLEM,
    },
}
# On top of everything: free to import what they show, but never each other upwards.
NEVER = {
    "api": {"bench", "cli", "data"},
    "bench": {"cli"},
    "cli": set(),
    "__main__": set(),
    "": {"bench", "cli", "data"},
}
# Packages from outside -> the only places that may import them.
FOREIGN = {
    "llvmlite.ir": ("codegen",),
    "llvmlite.binding": ("runtime.compiler", "machine"),
    "torch": ("frontends.torch", "torch", "bench.torch_peers", "bench.torch_gradients", "bench.torch_training"),
    "jax": ("frontends.jax", "jax", "bench.jax_peer"),
    "rich": ("cli", "bench.report", "bench.script"),
    "typer": ("cli",),
    "platformdirs": ("runtime.store",),
    "matplotlib": ("bench.report",),
    "ml_dtypes": ("bench.cases",),
}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """The module's name below rootdk, "" for rootdk itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere in it, `from a import b` as a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name: str, layer: str) -> bool:
    return name == layer or name.startswith(layer + ".")


def layer_of(name: str) -> str:
    layers = [layer for layer in {**ALLOWED, **NEVER} if within(name, layer)]
    return max(layers, key=len, default="")


def own_imports(path: Path) -> list[str]:
    return [name.removeprefix("rootdk.") for name in imports(path) if name.startswith("rootdk.")]


def complaint(module: str, imported: str) -> str | None:
    layer = layer_of(module)
    if within(imported, layer) and layer:
        return None
    if layer in ALLOWED:
        if not any(within(imported, allowed) for allowed in ALLOWED[layer]):
            return f"rootdk.{module} ({layer}) must not import rootdk.{imported}"
    elif any(within(imported, forbidden) for forbidden in NEVER[layer]):
        return f"rootdk.{module} must not import rootdk.{imported}"
    return None


def test_layers_import_only_what_is_below_them():
    found = [complaint(name_of(path), imported) for path in sources() for imported in own_imports(path)]
    assert not [line for line in found if line]


def test_front_ends_do_not_import_each_other():
    for path in (PACKAGE / "frontends").rglob("*.py"):
        own = ".".join(name_of(path).split(".")[:2])
        others = [name for name in own_imports(path) if name.startswith("frontends.")]
        assert all(within(name, own) for name in others), f"{path}: {others}"


@pytest.mark.parametrize("package", FOREIGN)
def test_foreign_packages_stay_where_they_belong(package):
    users = {name_of(path) for path in sources() if any(within(name, package) for name in imports(path))}
    strangers = {user for user in users if not any(within(user, place) for place in FOREIGN[package])}
    assert not strangers


def test_the_table_sees_a_forbidden_import():
    assert complaint("runtime.cache", "problem.Problem")
    assert complaint("masks", "mods.trace.Tracer")
    assert complaint("bench.report", "cli.output")
    assert not complaint("engine", "runtime.cache.kernels")


def test_a_bare_import_loads_numpy_and_llvmlite_only():
    program = "import sys, numpy; before = set(sys.modules); import rootdk; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    packages = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert packages <= {"rootdk", "numpy", "llvmlite"}


def code() -> list[Path]:
    folders = ("rootdk", "tests", "benchmarks", "examples", "tools")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_files_fit_in_a_head():
    long = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in code()}
    assert not {name: lines for name, lines in long.items() if lines > MOST_LINES}


def test_functions_fit_on_a_screen():
    long = {}
    for path in code():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = lines
    assert not long
