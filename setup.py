"""Build of optional compiled modules. If it fails, the installation continues with their Python versions."""

from pathlib import Path

from setuptools import Extension, setup

# Fused multiply-add only where a kernel asks for it; otherwise results would depend on the compiler.
# The disabled warnings are false positives in the compiler's own headers.
NO_FALSE_WARNINGS = ("-Wno-psabi", "-Wno-ignored-attributes", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
VECTORISED = ["-O3", "-ffp-contract=off", *NO_FALSE_WARNINGS]
VECTORISED_MODULES = ("paged_attention", "layer_ops", "products", "grouped_products")
CXX_STANDARD = {"thread_team": 20}  # for std::atomic::wait
ENGINE, INDEX = Path("baton/engine/native"), Path("baton/router/index/native")
SHARED = tuple(
    f"{name}.hpp" for name in ("exponential", "processor", "threads", "shared_threads")
)  # headers of several kernels


def extensions() -> list[Extension]:
    """Return the optional extensions; none if pybind11 is missing."""
    try:
        from pybind11.setup_helpers import Pybind11Extension
    except ImportError:
        print("pybind11 is not installed: nothing is compiled, the Python versions are used")
        return []
    sources = [
        (INDEX, "prefix_index", ("block_map.hpp", "block_table.hpp", "holders.hpp")),
        (ENGINE, "block_hash", ("blake2b.hpp",)),
        (ENGINE, "thread_team", ("thread_team.hpp", *SHARED)),
        (ENGINE, "paged_attention", (*headers("attention"), *SHARED)),
        (ENGINE, "layer_ops", (*headers("ops"), *SHARED)),
        (ENGINE, "products", (*headers("products"), *headers("ops"), *SHARED)),
        (ENGINE, "grouped_products", (*headers("grouped"), *headers("ops"), *SHARED)),
    ]
    return [
        Pybind11Extension(
            ".".join((*folder.parts, name)),
            [str(folder / f"{name}.cpp")],
            depends=[str(folder / each) for each in depends],
            cxx_std=CXX_STANDARD.get(name, 17),
            extra_compile_args=VECTORISED if name in VECTORISED_MODULES else ["-O2"],
            optional=True,
        )
        for folder, name, depends in sources
    ]


def headers(subfolder: str) -> list[str]:
    """Return the headers of a kernel, some of which are included once for each instruction set."""
    return sorted(f"{subfolder}/{path.name}" for path in (ENGINE / subfolder).iterdir())


setup(ext_modules=extensions())
