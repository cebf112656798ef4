"""Builds the compiled twins of Python modules. Where that fails, the install goes on and the Python twins serve."""

from pathlib import Path

from setuptools import Extension, setup

# A product and a sum are one instruction where the kernel says so and nowhere else: bits would depend on the compiler.
# The warnings that are left out are false ones, about the compiler's own headers.
NO_FALSE_WARNINGS = ("-Wno-psabi", "-Wno-ignored-attributes", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
VECTORISED = ["-O3", "-ffp-contract=off", *NO_FALSE_WARNINGS]
VECTORISED_MODULES = ("engine.native.paged_attention", "engine.native.layer_ops", "engine.native.products")
CXX_STANDARD = {"engine.native.thread_team": 20}  # atomics that can be waited for
SHARED = tuple(f"engine/native/{name}.hpp" for name in ("exponential", "threads", "shared_threads"))  # by those


def extensions() -> list[Extension]:
    """The extensions, each of which may fail to build; none where what they are built with is not there."""
    try:
        from pybind11.setup_helpers import Pybind11Extension
    except ImportError:
        print("pybind11 is not installed: nothing is compiled, the Python twins serve")
        return []
    sources = {
        "router.native.prefix_index": (
            "router/native/prefix_index.cpp",
            "router/native/block_map.hpp",
            "router/native/block_table.hpp",
            "router/native/holders.hpp",
        ),
        "engine.native.block_hash": ("engine/native/block_hash.cpp", "engine/native/blake2b.hpp"),
        "engine.native.thread_team": ("engine/native/thread_team.cpp", "engine/native/thread_team.hpp", *SHARED),
        "engine.native.paged_attention": ("engine/native/paged_attention.cpp", *headers("attention"), *SHARED),
        "engine.native.layer_ops": ("engine/native/layer_ops.cpp", *headers("ops"), *SHARED),
        "engine.native.products": ("engine/native/products.cpp", *headers("products"), *headers("ops"), *SHARED),
    }
    return [
        Pybind11Extension(
            name,
            [source],
            depends=depends,
            cxx_std=CXX_STANDARD.get(name, 17),
            extra_compile_args=VECTORISED if name in VECTORISED_MODULES else ["-O2"],
            optional=True,
        )
        for name, (source, *depends) in sources.items()
    ]


def headers(folder: str) -> list[str]:
    """What a kernel includes, some of it once for each instruction set."""
    return sorted(str(path) for path in Path("engine/native", folder).iterdir())


setup(ext_modules=extensions())
