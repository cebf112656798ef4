"""Warnings that an engine logs in a stage's process, above all of slower kernels in place of the intended ones."""

import logging

from baton.engine.attention.factory import NOT_USED
from benchmarks.gpu.stage import Record

PACKAGE = "baton.engine"
FACTORIES = (f"{PACKAGE}.attention.factory", f"{PACKAGE}.ops.factory")
BY_DESIGN = (NOT_USED,)  # layers for which there are no such kernels


class Fallbacks(logging.Handler):
    """Makes each warning of an engine a note, or a failed finding if it reports a fallback that is not by design."""

    def __init__(self, record: Record) -> None:
        super().__init__(logging.WARNING)
        self._record = record
        self._known: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Add the warning to the stage's record, unless it is there."""
        text = record.getMessage()
        if text in self._known:
            return
        self._known.add(text)
        if record.name in FACTORIES and record.msg not in BY_DESIGN:
            self._record.find("FlashInfer's kernels serve", False, text)
        else:
            self._record.note(text)


def watch(record: Record) -> Fallbacks:
    """Record the warnings of engines in this process from now on."""
    handler = Fallbacks(record)
    logging.getLogger(PACKAGE).addHandler(handler)
    return handler
