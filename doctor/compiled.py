"""The compiled twins of what is also there in Python or torch."""

from collections.abc import Sequence
from importlib import import_module

from baton.doctor.finding import Finding, ok, warning

# What a worker uses.
ENGINE_MODULES = tuple(
    f"baton.engine.native.{name}" for name in ("block_hash", "thread_team", "paged_attention", "layer_ops", "products")
)


def check_compiled(modules: Sequence[str]) -> Finding:
    """Whether the modules were compiled at installation, and load; their twins in Python or torch are slower."""
    missing: list[str] = []
    for name in modules:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    if not missing:
        return ok("compiled-modules", f"{', '.join(modules)}")
    return warning(
        "compiled-modules",
        f"{', '.join(missing)} cannot be loaded; Python or torch serves in its place, several times slower",
        "install a C++ compiler and Python's headers, then Baton again; the log of the installation says what failed",
    )
