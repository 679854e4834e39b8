"""Modules of generated code: begun for a target, and turned into text."""

import gc
from collections.abc import Callable

from llvmlite import ir

from rootdk.machine import Target

__all__ = ["new_module", "text"]


def new_module(name: str, target: Target) -> ir.Module:
    """An empty module."""
    module = ir.Module(name)
    module.triple = target.triple
    return module


def text(make: Callable[[], ir.Module]) -> str:
    """The text of what ``make`` returns.

    A module is some 50,000 objects in cycles. The collections that they set off, which look at all that the process
    holds, took a seventh of the time to a kernel: they are put off, and the cycles are cut.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        module = make()
        result = str(module)
        _take_apart(module)
    finally:
        if collects:
            gc.enable()
    return result


def _take_apart(module: ir.Module) -> None:
    for function in module.functions:
        for block in function.blocks:
            block.instructions.clear()
        function.blocks.clear()
    module.globals.clear()
