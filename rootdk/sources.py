"""What the machine code of a kernel comes from: its module and the libraries that it calls."""

from functools import lru_cache, partial
from typing import Any

from rootdk.machine import Target
from rootdk.planning.schedule import (
    BackwardSpec,
    DecodeSpec,
    ForwardSpec,
    KeyPanelsSpec,
    ProductsSpec,
    QueryGradientsSpec,
    QueryPanelsSpec,
    SoftmaxSpec,
)
from rootdk.runtime.cache import Source, kernels
from rootdk.runtime.compiler import Address

__all__ = ["kernel", "source"]

KernelSpec = ForwardSpec | DecodeSpec | BackwardSpec
LibrarySpec = ProductsSpec | SoftmaxSpec | QueryPanelsSpec | KeyPanelsSpec | QueryGradientsSpec


def kernel(spec: KernelSpec, target: Target) -> Address:
    """The entry of the machine code for ``spec``, from memory, from disk, or compiled."""
    return kernels().get(source(spec, target), target)[spec.ENTRY]


@lru_cache(maxsize=256)  # to write a graph out takes many times as long as to hash it
def source(spec: KernelSpec, target: Target) -> Source:
    """Of a kernel."""
    libraries = tuple(_library(each, target) for each in _libraries(spec))
    return Source(repr(spec), partial(_build, spec, target), entries=(spec.ENTRY,), libraries=libraries)


def _libraries(spec: KernelSpec) -> tuple[LibrarySpec, ...]:
    match spec:
        case ForwardSpec():
            return spec.products, spec.softmax, spec.panels
        case BackwardSpec():
            return spec.products, spec.panels, spec.query_gradients
    return ()


def _library(spec: LibrarySpec, target: Target) -> Source:
    # no user's function is in them, and no loop computes what it need not: measured as fast as after every pass
    return Source(repr(spec), partial(_build, spec, target), functions=spec.functions, polished=True)


def _build(spec: KernelSpec | LibrarySpec, target: Target) -> str:
    # llvmlite's builder is needed only here: a kernel that is on disk runs without it
    from rootdk.codegen.modules import text

    return text(lambda: _module(spec, target))


def _module(spec: KernelSpec | LibrarySpec, target: Target) -> Any:
    match spec:
        case ForwardSpec():
            from rootdk.codegen.forward import forward_module

            return forward_module(spec, target)
        case BackwardSpec():
            from rootdk.codegen.backward import backward_module

            return backward_module(spec, target)
        case DecodeSpec():
            from rootdk.codegen.decode import decode_module

            return decode_module(spec, target)
        case ProductsSpec():
            from rootdk.codegen.tile_products import products_module

            return products_module(spec, target)
        case SoftmaxSpec():
            from rootdk.codegen.block_softmax import softmax_module

            return softmax_module(spec, target)
        case QueryPanelsSpec():
            from rootdk.codegen.query_panels import query_panels_module

            return query_panels_module(spec, target)
        case KeyPanelsSpec():
            from rootdk.codegen.key_panels import key_panels_module

            return key_panels_module(spec, target)
        case QueryGradientsSpec():
            from rootdk.codegen.query_gradients import query_gradients_module

            return query_gradients_module(spec, target)
