"""The user's function with every array that it captured replaced by a symbol.

NumPy's and torch's arrays cannot be indexed by a symbol, so the function is rebuilt around ``Array`` symbols: a new
function object over the same code, with new closure cells, globals and defaults; partials, bound methods, containers
and objects likewise. Nothing of the user's is changed, and what holds no array stays the object it was.
"""

import builtins
import functools
from collections.abc import Callable, Iterator
from enum import Enum
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rootdk.mods import lang
from rootdk.mods.foreign import is_array
from rootdk.mods.refusals import is_library, random_call, refuse
from rootdk.mods.symbols import Symbolic, first_symbol

if TYPE_CHECKING:
    from rootdk.mods.trace import Tracer

__all__ = ["Capture", "global_names"]

_PLAIN = frozenset(
    {
        int,
        float,
        bool,
        str,
        bytes,
        complex,
        type(None),
        type(Ellipsis),
        slice,
        range,
        type,
        BuiltinFunctionType,
        CodeType,
    }
)
_HEAP_TYPE = 1 << 9


class Capture:
    """Replaces captured values for one tracer, each once."""

    def __init__(self, tracer: "Tracer") -> None:
        self.tracer = tracer
        # by id; the original is kept, so that its id is not used again
        self._done: dict[int, tuple[Any, Any]] = {}

    def value(self, value: Any, name: str) -> Any:
        """``value``, which the user's function calls ``name``, or what takes its place while tracing."""
        kind = type(value)
        if kind in _PLAIN or isinstance(value, type | Symbolic | np.generic | Enum):
            return value
        done = self._done.get(id(value))
        if done is not None:
            return done[1]
        if kind is FunctionType and not _is_jax(value):
            return self._function(value)
        replacement = self._replacement(value, name)
        self._done[id(value)] = value, replacement
        return replacement

    def _replacement(self, value: Any, name: str) -> Any:
        if is_array(value):
            return self.tracer.array(value, name)
        if isinstance(value, list | tuple):
            return self._sequence(value, name)
        if isinstance(value, dict):
            items = {key: self.value(item, f"{name}[{key!r}]") for key, item in value.items()}
            return value if all(items[key] is value[key] for key in value) else items
        if isinstance(value, MethodType):
            return self._method(value, name)
        if isinstance(value, functools.partial):
            return self._partial(value, name)
        if isinstance(value, functools._lru_cache_wrapper):
            return self.value(value.__wrapped__, name)
        if _is_jax(value):
            return _JaxModule(value) if isinstance(value, ModuleType) else _jax_function(value)
        if isinstance(value, ModuleType):
            return value if is_library(value.__name__) else Proxy(self, value, name)
        return Proxy(self, value, name) if _holds_users_values(value) else value

    def _sequence(self, value: Any, name: str) -> Any:
        if _PLAIN.issuperset(map(type, value)):  # a long list of numbers costs little
            return value
        items = [self.value(item, f"{name}[{place}]") for place, item in enumerate(value)]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if isinstance(value, list):
            return items
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)

    def _partial(self, value: functools.partial[Any], name: str) -> Any:
        names = _parameter_names(value.func)
        args = [self.value(arg, next(names, f"{name}[{place}]")) for place, arg in enumerate(value.args)]
        keywords = {key: self.value(item, key) for key, item in value.keywords.items()}
        return functools.partial(self.value(value.func, name), *args, **keywords)

    def _method(self, method: MethodType, name: str) -> MethodType:
        owner = method.__self__ if isinstance(method.__self__, type) else self.value(method.__self__, "self")
        return MethodType(self.value(method.__func__, name), owner)

    def _function(self, function: FunctionType) -> Any:
        inner = _unwrapped(function)
        if inner is not None:
            return self.value(inner, function.__name__)
        own = not is_library(function.__module__)
        if own:
            error = random_call(function)
            if error is not None:
                raise error
        names = [name for name in global_names(function.__code__) if self._replaced(function, name)] if own else []
        if not (names or function.__closure__ or function.__defaults__ or function.__kwdefaults__):
            return function
        return self._rebuilt(function, names)

    def _rebuilt(self, function: FunctionType, names: list[str]) -> FunctionType:
        scope = dict(function.__globals__) if names else function.__globals__
        cells = tuple(CellType() for _ in function.__closure__ or ())
        rebuilt = FunctionType(function.__code__, scope, function.__name__, None, cells)
        # known before it is filled, so that a function that calls itself finds its replacement
        self._done[id(function)] = function, rebuilt
        code = function.__code__
        rebuilt.__dict__.update(function.__dict__)
        for cell, old, name in zip(cells, function.__closure__ or (), code.co_freevars, strict=True):
            try:
                content = old.cell_contents
            except ValueError:  # a variable that is not set yet
                continue
            cell.cell_contents = self.value(content, name)
        for name in names:
            scope[name] = _SYMBOLIC_BUILTINS[name] if name not in scope else self.value(scope[name], name)
        if function.__defaults__:
            last = code.co_varnames[code.co_argcount - len(function.__defaults__) : code.co_argcount]
            pairs = zip(function.__defaults__, last, strict=True)
            rebuilt.__defaults__ = tuple(self.value(default, name) for default, name in pairs)
        if function.__kwdefaults__:
            rebuilt.__kwdefaults__ = {key: self.value(item, key) for key, item in function.__kwdefaults__.items()}
        return rebuilt

    @staticmethod
    def _replaced(function: FunctionType, name: str) -> bool:
        scope = function.__globals__
        if name not in scope:
            return name in _SYMBOLIC_BUILTINS
        value = scope[name]
        if isinstance(value, ModuleType):
            return _is_jax(value) or not is_library(value.__name__)
        return type(value) not in _PLAIN


class Proxy:
    """Stands for an object or a module of the user's: its attributes, as symbols where they are arrays."""

    __slots__ = ("_capture", "_name", "_target")

    def __init__(self, capture: Capture, target: Any, name: str) -> None:
        for slot, value in (("_capture", capture), ("_target", target), ("_name", name)):
            object.__setattr__(self, slot, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._target)

    def __getattr__(self, attribute: str) -> Any:
        return _attribute(self, attribute)

    def __setattr__(self, attribute: str, value: Any) -> NoReturn:
        raise refuse(
            f"a mod cannot write to {self._name}.{attribute}",
            "it runs once for all pairs; keep values in local variables",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _attribute(self, "__call__")(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return _attribute(self, "__getitem__")(index)

    def __len__(self) -> int:
        return len(self._target)

    def __iter__(self) -> Iterator[Any]:
        capture, name = self._capture, self._name
        return (capture.value(item, f"{name}[{place}]") for place, item in enumerate(self._target))


def _attribute(proxy: Proxy, attribute: str) -> Any:
    capture, target = proxy._capture, proxy._target
    descriptor = getattr(type(target), attribute, None)
    if isinstance(descriptor, property) and descriptor.fget is not None:
        return capture.value(descriptor.fget, attribute)(proxy)
    value = getattr(target, attribute)
    if isinstance(value, MethodType) and value.__self__ is target:
        return MethodType(capture.value(value.__func__, attribute), proxy)
    return capture.value(value, f"{proxy._name}.{attribute}")


class _JaxModule:
    """A module of JAX whose functions take symbols: unlike NumPy's and torch's, they have no protocol for that."""

    __slots__ = ("_module",)

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, ModuleType):
            return _JaxModule(value)
        return _jax_function(value) if callable(value) and not isinstance(value, type) else value


_JAX_DEFAULTS: dict[str, dict[str, Any]] = {"gelu": {"approximate": True}}
"""Where JAX's defaults are not torch's, whose parameters the functions have."""


def _jax_function(function: Any) -> Any:
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        symbol = first_symbol((*args, *kwargs.values()))
        if symbol is None:
            return function(*args, **kwargs)
        return symbol.tracer.function(function, args, {**_JAX_DEFAULTS.get(function.__name__, {}), **kwargs})

    return dispatch if callable(function) else function


def _is_jax(value: Any) -> bool:
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in ("jax", "jaxlib")


def _holds_users_values(value: Any) -> bool:
    """Whether arrays of the user's may be among the attributes of an object."""
    kind = type(value)
    if kind.__flags__ & _HEAP_TYPE and not is_library(kind.__module__):
        return True
    # a library's own objects: Namespace of types and argparse, torch's modules, paged caches that hold tensors
    return (
        kind.__name__.endswith("Namespace")
        or any(base.__module__ == "torch.nn.modules.module" for base in kind.__mro__)
        or any(is_array(item) for item in getattr(value, "__dict__", {}).values())
    )


def _unwrapped(function: FunctionType) -> Any:
    """The function that torch.vmap, torch.compile or functools.wraps put a wrapper around that cannot take symbols."""
    compiled = function.__dict__.get("_torchdynamo_orig_callable")
    if compiled is not None:
        return compiled
    # one pair is what vmap hands to its function, whatever the dimensions it maps over
    code = function.__code__
    mapped = code.co_name == "wrapped" and code.co_filename.replace("\\", "/").endswith("torch/_functorch/apis.py")
    return function.__dict__.get("__wrapped__") if mapped else None


@functools.lru_cache(maxsize=512)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Names that ``code`` and the functions inside it may read from the globals."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(global_names(constant))
    return tuple(sorted(names))


def _parameter_names(function: Any) -> Iterator[str]:
    code = getattr(function, "__code__", None)
    return iter(code.co_varnames[: code.co_argcount] if code is not None else ())


def _least_or_greatest(choose: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def chosen(*values: Any, **options: Any) -> Any:
        items = list(values[0]) if len(values) == 1 else list(values)
        if options or not any(isinstance(item, Symbolic) for item in items):
            return plain(*values, **options)
        return functools.reduce(choose, items)

    return chosen


_SYMBOLIC_BUILTINS: dict[str, Callable[..., Any]] = {
    "min": _least_or_greatest(lang.minimum, builtins.min),
    "max": _least_or_greatest(lang.maximum, builtins.max),
}
"""Built-in functions that would ask a comparison of symbols for its truth."""
