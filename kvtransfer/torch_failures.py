"""What torch raises where memory is short or a device fails, as an error of KV transfer."""

from collections.abc import Iterator
from contextlib import contextmanager

from baton.kvtransfer.errors import TransferFailed


@contextmanager
def torch_failures(what: str) -> Iterator[None]:
    """Within, a RuntimeError of torch is TransferFailed: `what` failed. Others pass, TransferErrors too."""
    try:
        yield
    except RuntimeError as error:  # what torch raises for memory and for devices is all of this kind
        raise TransferFailed(f"{what} failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error says, without the frames of C++ that torch adds."""
    return next(iter(str(error).splitlines()), type(error).__name__)
