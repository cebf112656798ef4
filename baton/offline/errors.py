"""Errors of offline inference. Bad input raises ValueError, or OptionError for an option of `LLM`.

RuntimeError
└── OfflineError
    ├── StartFailed     the processes of an LLM cannot start; the text has the reason
    ├── Ended           the LLM was closed, or its processes have ended
    └── RequestFailed   a request failed; the text has the index of its prompt
"""


class OfflineError(RuntimeError):
    """Root of the errors that are not the caller's input."""


class StartFailed(OfflineError):
    """The processes of an LLM cannot start; the text has the reason."""


class Ended(OfflineError):
    """The LLM was closed, or its processes have ended."""


class RequestFailed(OfflineError):
    """A request failed; `index` is that of its prompt in the list, which `label` names."""

    def __init__(self, index: int, reason: str, label: str = "prompt") -> None:
        super().__init__(f"{label} {index} failed: {reason}")
        self.index = index
        self.reason = reason
