"""NIXL's Python package, imported where it is needed."""

import logging
from types import ModuleType

from baton.extras import NIXL
from baton.kvtransfer.errors import TransportUnavailable

Errors = tuple[type[Exception], ...]


def load_nixl(feature: str) -> tuple[ModuleType, Errors]:
    """Return the package and the errors that it raises, which share no base. Raises TransportUnavailable.

    feature: that needs it, for the message.
    """
    if not NIXL.is_installed:
        raise TransportUnavailable(NIXL.missing(feature))
    try:
        import nixl
        from nixl import _bindings
    except ImportError as error:
        raise TransportUnavailable(f"NIXL cannot be imported: {error}") from error
    errors = tuple(kind for kind in vars(_bindings).values() if isinstance(kind, type) and issubclass(kind, Exception))
    # NIXL logs to the standard output through its own handler; use the root logger's handlers instead.
    log = logging.getLogger("nixl")
    log.handlers.clear()
    log.propagate = True
    return nixl, errors
