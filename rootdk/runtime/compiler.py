"""LLVM IR text to machine code in memory: the only user of llvmlite.binding."""

import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from rootdk.errors import RootdkError
from rootdk.machine import Target
from rootdk.runtime import float_state

__all__ = ["Address", "Code", "CompileError", "assembly", "compile_object", "llvm_version", "load"]

# One thread at a time is inside LLVM. It is also held across a fork, so that a child never inherits LLVM half-way
# through a change. Reentrant because the garbage collector may drop a Code at any moment, in any thread.
lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class CompileError(RootdkError, RuntimeError):
    """LLVM refused what was generated: a mistake in rootdk, not in its user's code."""


class Address(int):
    """Where a function is; keeps its code loaded."""

    code: "Code"


class Code:
    """Loaded machine code. Unloaded when the last reference to it, to an address in it, or to what calls it goes."""

    def __init__(
        self, image: bytes, symbols: Mapping[str, str], target: Target, libraries: Sequence["Code"] = ()
    ) -> None:
        self._symbols, self._libraries = symbols, libraries
        llvm = _llvm()
        builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process()
        for symbol in symbols.values():
            builder.export_symbol(symbol)
        for library in libraries:
            for name, symbol in library._symbols.items():
                builder.import_symbol(symbol, library[name])
        with lock:
            # An engine for each image costs 0.4 ms and gives back every byte; images that share one leave 10 KB each.
            # JITLink lays an image out as one block, as its small code model requires.
            self._engine = llvm.create_lljit_compiler(_machine(target), use_jit_link=True)
            try:
                self._linked = builder.link(self._engine, "rootdk")
            except RuntimeError as error:
                self._engine.close()
                raise CompileError(f"loading machine code failed: {error}") from error

    def __getitem__(self, name: str) -> Address:
        """The address of the exported function ``name``; an entry's is that of its guard."""
        address = Address(self._linked[self._symbols[name]])
        address.code = self
        return address

    def __del__(self) -> None:
        # at the interpreter's end llvmlite may be gone already, and all memory with it soon
        if (linked := getattr(self, "_linked", None)) and not sys.is_finalizing():
            with lock:
                linked.close()
                self._engine.close()


def load(
    image: bytes,
    entries: Iterable[str],
    target: Target,
    functions: Iterable[str] = (),
    libraries: Sequence[Code] = (),
) -> Code:
    """Put object code into memory; it may call the C library (memcpy, memset) and the functions of ``libraries``.

    Args:
        image: what ``compile_object`` returned.
        entries: guarded functions to export, for callers from outside.
        functions: others to export, for code that has this one as a library.

    Raises:
        CompileError: not object code for this machine, or a name that is not in it or in the libraries.
    """
    symbols = {entry: float_state.guarded(entry) for entry in entries} | {name: name for name in functions}
    return Code(image, symbols, target, libraries)


def compile_object(ir_text: str, target: Target, entries: Iterable[str], *, polished: bool = False) -> bytes:
    """Object code of a module in which each of ``entries`` is a ``void (ptr)`` function, guarded by ``float_state``.

    Args:
        polished: the text is as good as its author could make it: nothing is computed twice, or in a loop that need
            not be. Few passes are run then, in a tenth of the time.

    Raises:
        CompileError: the text is not valid IR.
    """
    image: bytes = _emit(ir_text, target, entries, polished=polished, as_object=True)
    return image


def assembly(ir_text: str, target: Target, *, polished: bool = False) -> str:
    """Assembly of a module for any target, also one that this machine cannot run, to read and to test."""
    text: str = _emit(ir_text, target, (), polished=polished, as_object=False)
    return text


def llvm_version() -> str:
    """Of LLVM and of llvmlite: both shape the machine code.

    >>> llvm_version()
    'LLVM 22.1.0, llvmlite 0.50.0'
    """
    import llvmlite

    return f"LLVM {'.'.join(map(str, _llvm().llvm_version_info))}, llvmlite {llvmlite.__version__}"


def _emit(ir_text: str, target: Target, entries: Iterable[str], *, polished: bool, as_object: bool) -> Any:
    llvm = _llvm()
    text = ir_text + float_state.guards(entries, target)
    # A context of its own, so that the types and constants of one kernel do not stay for the life of the process.
    with lock, llvm.create_context() as context:
        try:
            with llvm.parse_assembly(text, context) as module, _machine(target) as machine:
                module.verify()
                _optimise(module, machine, polished=polished)
                return machine.emit_object(module) if as_object else machine.emit_assembly(module)
        except RuntimeError as error:
            raise CompileError(f"LLVM refused a generated module: {error}") from error


def _optimise(module: Any, machine: Any, *, polished: bool) -> None:
    llvm = _llvm()
    with llvm.create_pipeline_tuning_options(speed_level=2) as options:
        # Kernels come vectorised and unrolled as far as the registers allow; LLVM's own unrolling makes them spill.
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        options.loop_interleaving = False
        with llvm.create_pass_builder(machine, options) as builder:
            passes = _polish() if polished else builder.getModulePassManager()
            with passes:
                passes.run(module, builder)


def _polish() -> Any:
    """Variables into registers, and what that leaves tidied up."""
    passes = _llvm().create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    return passes


def _machine(target: Target) -> Any:
    # Position-independent small code addresses constants relative to the program counter; LLVM's default for code in
    # memory builds each address in a register first.
    return (
        _llvm()
        .Target.from_triple(target.triple)
        .create_target_machine(cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small")
    )


@cache
def _llvm() -> Any:
    """llvmlite.binding, ready for every target it knows. Imported late: it takes 30 ms."""
    # Under the lock, which forks wait for: in a child made amid an import, that module would stay locked for ever.
    with lock:
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    return llvm
