"""What a user can get wrong, one class per kind of mistake.

Every class is a ``RootdkError`` and also the built-in exception that a caller would expect, so that both
``except rootdk.RootdkError`` and ``except ValueError`` work. A message names the argument, what was expected,
what came, and what to do.
"""

__all__ = ["ArgumentError", "BoundsError", "CacheError", "DTypeError", "ModError", "RootdkError", "ShapeError"]


class RootdkError(Exception):
    """Base of every error that rootdk raises on purpose."""


class ShapeError(RootdkError, ValueError):
    """Shapes that do not fit each other or the layout."""


class DTypeError(RootdkError, TypeError):
    """An element type that is not supported, or that does not fit its role."""


class ArgumentError(RootdkError, ValueError):
    """An argument whose value makes no sense."""


class ModError(RootdkError, TypeError):
    """A score or mask function that cannot be traced; the message points at the user's line."""


class BoundsError(RootdkError, ValueError, IndexError):
    """A captured array was indexed out of bounds for a pair that is visible."""


class CacheError(RootdkError, ValueError):
    """The kernel cache's folder cannot be used as asked."""
