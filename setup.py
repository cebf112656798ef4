"""Builds the compiled twins of Python modules. Where that fails, the install goes on and the Python twins serve."""

from setuptools import Extension, setup


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
    }
    return [
        Pybind11Extension(name, [source], depends=headers, cxx_std=17, extra_compile_args=["-O2"], optional=True)
        for name, (source, *headers) in sources.items()
    ]


setup(ext_modules=extensions())
