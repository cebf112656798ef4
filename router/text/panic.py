"""A failed assertion in a library's Rust code, made an error like others.

It comes as a BaseException, as the order to end a process does: `except Exception` lets it pass, and a request that it
ended would never be answered. The library has printed its words by itself; they may repeat a part of a prompt, and so
are neither logged nor told.
"""

from dataclasses import dataclass
from types import TracebackType

from baton.engine.errors import InvalidRequest
from baton.rpc.status import Internal


@dataclass(frozen=True, slots=True)
class PanicsAs:
    """A context in which a panic becomes this error."""

    error: type[Exception]
    message: str

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and is_panic(error):
            raise self.error(self.message) from None


def is_panic(error: BaseException) -> bool:
    """Whether it is one: each library has a class of its own for them, all of this name."""
    return type(error).__name__ == "PanicException"


# The same text would fail again: a client that is told of a failing of the server's would only ask again.
INPUT_PANICS = PanicsAs(InvalidRequest, "the model's tokenizer cannot take this text or these tokens: it broke off")
OUTPUT_PANICS = PanicsAs(Internal, "the model's tokenizer broke off at the generated tokens")
REQUEST_PANICS = PanicsAs(Internal, "a library that the request needs broke off; the server's log has its words")
