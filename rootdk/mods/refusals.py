"""Errors that point at the user's line: where a mod stands in its source, and what to write instead."""

import dis
import functools
import linecache
import re
import sys
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from rootdk.errors import ModError

__all__ = ["MissingAttributeError", "is_library", "random_call", "refuse", "refuse_truth", "site", "user_knows"]

_FOREIGN = frozenset({"torch", "numpy", "jax", "jaxlib", "functorch", "ml_dtypes", "scipy", "rootdk"})


class MissingAttributeError(ModError, AttributeError):
    """A method that mods do not have; an AttributeError too, so that ``hasattr`` answers False."""


@functools.lru_cache(maxsize=1024)
def is_library(module: str | None) -> bool:
    """Whether ``module`` is code that holds no user's function or array: Python's own, an array library, or rootdk."""
    root = (module or "").partition(".")[0]
    return root in _FOREIGN or root in sys.stdlib_module_names


def _user_frame() -> FrameType | None:
    """The innermost frame of the user's code, searched no further out than the call that traces it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == "rootdk.mods.trace" and frame.f_code.co_name == "call":
            return None
        if module in ("rootdk.masks", "rootdk.scores") or not is_library(module):
            return frame
        frame = frame.f_back
    return None


def site() -> str:
    """file:line of the user's code that is running, or "" where none is."""
    frame = _user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def refuse(problem: str, fix: str, error: type[ModError] = ModError) -> ModError:
    """The error to raise where the running line of the user's function cannot be compiled."""
    frame = _user_frame()
    if frame is None:
        return error(f"{problem}; {fix}")
    return _at(frame.f_code, frame.f_lineno, problem, fix, error)


def _at(code: CodeType, line: int, problem: str, fix: str, error: type[ModError] = ModError) -> ModError:
    source = linecache.getline(code.co_filename, line).strip()
    shown = f"\n    {source}" if source else ""
    return error(f"{code.co_filename}:{line}, in {code.co_name}: {problem}; {fix}{shown}")


_TRUTH_FIXES = (
    (r"\bnot\b", "for `not a` write ~a"),
    (r"\band\b", "for `a and b` write (a) & (b)"),
    (r"\bor\b", "for `a or b` write (a) | (b)"),
    (r"[\w\])]\s*[<>]=?[^<>=&|,]+[<>]=?", "for `a < b < c` write (a < b) & (b < c)"),
    (r"\bif\b", "for `x if a else y`, or an if statement, write where(a, x, y), of torch or numpy"),
    (r"\bwhile\b|\bassert\b", "a loop or an assertion can depend only on Python values"),
    (r"\bbool\s*\(", "leave bool() out: a comparison is already boolean"),
    (r"\bin\b", "for `a in (1, 2)` write (a == 1) | (a == 2)"),
    (r"\b(any|all)\s*\(", "for any() and all() combine with | and &"),
)


def refuse_truth() -> ModError:
    """The error for a truth value taken from something that differs from pair to pair."""
    frame = _user_frame()
    source = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""
    fixes = [fix for pattern, fix in _TRUTH_FIXES if re.search(pattern, source)]
    fixes = fixes or ["use & | ~ for and, or, not, and where(condition, a, b) for if"]
    return refuse(
        "this needs one truth value now, but it differs from pair to pair, and the function runs once for all of them",
        "; ".join(fixes),
    )


_RANDOM_NAMES = (
    "rand randn randint rand_like randn_like randint_like randperm bernoulli multinomial normal uniform random "
    "default_rng standard_normal choice shuffle permutation dropout feature_dropout alpha_dropout"
)
_RANDOM = frozenset(_RANDOM_NAMES.split())


def random_call(function: FunctionType) -> ModError | None:
    """The error for a function that draws random numbers from a library, or None."""
    return _random_call(function.__code__, {**function.__globals__, **_closure(function)})


def _random_call(code: CodeType, scope: dict[str, Any]) -> ModError | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and (error := _random_call(constant, scope)):
            return error
    if _RANDOM.isdisjoint(code.co_names):
        return None
    owner: Any = None
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            owner = scope.get(name)
            drawn = isinstance(owner, BuiltinFunctionType) and name in _RANDOM
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            drawn = isinstance(owner, ModuleType) and is_library(owner.__name__) and name in _RANDOM
            owner = getattr(owner, name, None) if isinstance(owner, ModuleType) else None
        else:
            continue
        if drawn:
            return _at(
                code,
                (instruction.positions and instruction.positions.lineno) or code.co_firstlineno,
                f"`{name}` draws random numbers, but a mod runs once for all pairs, so all would get the same one",
                "for dropout pass dropout_p= and seed=; for fixed noise draw an array outside and index it",
            )
    return None


def _closure(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if isinstance(_content(cell), ModuleType)}


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return None


def user_knows(module: Any) -> bool:
    """Whether the user's code that is running has imported ``module``."""
    frame = _user_frame()
    return frame is not None and any(value is module for value in frame.f_globals.values())
