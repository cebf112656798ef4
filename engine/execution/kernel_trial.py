"""Trial of a kernel that may not work on this machine."""

import logging
from collections.abc import Callable
from typing import TypeVar

Kernel = TypeVar("Kernel")

log = logging.getLogger(__name__)


def tried(load: Callable[[], Kernel], check: Callable[[Kernel], None], otherwise: str) -> Kernel | None:
    """Return what `load` returns if `check` accepts it; otherwise log `otherwise` and the reason, and return None.

    An installed Triton is not enough: it compiles on first use, which needs a C compiler, and not every GPU has FP8.
    """
    try:
        kernel = load()
        check(kernel)
    except Exception as error:  # whatever Triton, a compiler or the driver raises
        log.warning("%s: %s: %s", otherwise, type(error).__name__, (str(error).splitlines() or [""])[0])
        return None
    return kernel
