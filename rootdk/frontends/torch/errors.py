"""Errors as torch's users expect them: each is a RuntimeError too."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from rootdk.errors import RootdkError

__all__ = ["as_runtime_error", "runtime_errors"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def as_runtime_error(error: RootdkError) -> RootdkError:
    """``error``, of a class that is a RuntimeError too and has the same name."""
    kind = type(error)
    if isinstance(error, RuntimeError):
        return error
    made = type(kind.__name__, (kind, RuntimeError), {"__doc__": kind.__doc__, "__module__": kind.__module__})
    raised: RootdkError = made(*error.args).with_traceback(error.__traceback__)
    for note in getattr(error, "__notes__", ()):
        raised.add_note(note)
    return raised


def runtime_errors(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Make every RootdkError that ``function`` raises a RuntimeError as well."""

    @functools.wraps(function)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except RootdkError as error:
            raise as_runtime_error(error) from error.__cause__

    return wrapper
