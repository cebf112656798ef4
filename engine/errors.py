"""Errors of the engine.

EngineError
├── InvalidRequest      the request can never be served as it is
├── QueueFull           it could be served, but not now
├── EngineEnded         the engine has ended or failed
├── GroupBroken         another rank of the group is lost; re-form the group and continue
├── UnsupportedModel    the checkpoint needs something that is not implemented
└── InvalidCheckpoint   the checkpoint's files are missing, damaged or contradict each other
"""


class EngineError(Exception):
    """Root of the engine's errors."""


class InvalidRequest(EngineError):
    """The request can never be served as it is; the message says how to fix it."""


class QueueFull(EngineError):
    """The waiting queue is at its bound; try again later."""


class EngineEnded(EngineError):
    """The engine has ended or failed and takes no more calls."""


class GroupBroken(EngineError):
    """The ranks of a group cannot continue: one is lost, or a newer epoch has begun. Re-form the group."""


class UnsupportedModel(EngineError):
    """The checkpoint has an architecture or option that is not implemented; the message names it."""


class InvalidCheckpoint(EngineError):
    """A file, key or tensor of the checkpoint is missing, damaged or invalid; the message names it."""
