"""Errors of the engine.

EngineError
├── InvalidRequest      the request can never be served as it is
├── QueueFull           it could be served, but not now
├── EngineEnded         the engine has ended or failed
├── GroupBroken         another rank of the group is gone; form it anew and go on
├── UnsupportedModel    the checkpoint asks for something that is not implemented
└── InvalidCheckpoint   the checkpoint's files are missing, damaged or contradict each other
"""


class EngineError(Exception):
    """Root of the engine's errors."""


class InvalidRequest(EngineError):
    """The request can never be served as it is; the text says what would be right."""


class QueueFull(EngineError):
    """The waiting queue is at its bound; try again later."""


class EngineEnded(EngineError):
    """The engine has ended or failed; nothing can be asked of it any more."""


class GroupBroken(EngineError):
    """The ranks of a group cannot go on together: one is gone, or another epoch has begun. Form it anew."""


class UnsupportedModel(EngineError):
    """The checkpoint has an architecture or option that is not implemented, named in the text."""


class InvalidCheckpoint(EngineError):
    """A file, key or tensor of the checkpoint is missing, damaged or not as it should be; the text names it."""
