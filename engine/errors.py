"""Errors of the engine.

EngineError
├── InvalidRequest      the request can never be served as it is
├── QueueFull           it could be served, but not now
├── EngineEnded         the engine has ended or failed
├── GroupBroken         another rank of the group is lost; re-form the group and continue
├── InvalidAdapter      a LoRA adapter's files are damaged, or do not fit the model or the engine's options
├── UnknownAdapter      no LoRA adapter of this name, or with these contents, is loaded
├── AdapterConflict     another LoRA adapter of this name is loaded
├── AdapterLimit        no more LoRA adapters can be loaded
├── AdaptersDisabled    the engine was started without LoRA adapters
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


class InvalidAdapter(EngineError):
    """A LoRA adapter's files are missing, damaged or unsupported, or do not fit; the message says what would."""


class UnknownAdapter(EngineError):
    """No LoRA adapter of this name is loaded, or one with other contents than the caller expects."""


class AdapterConflict(EngineError):
    """A LoRA adapter of this name with other contents is loaded: unload it first."""


class AdapterLimit(EngineError):
    """The maximum number of LoRA adapters is loaded."""


class AdaptersDisabled(EngineError):
    """The engine was started without LoRA adapters."""
