"""Progress of a call, as a bar in the terminal."""

from collections.abc import Callable
from typing import Any

from tqdm import tqdm

MakeBar = Callable[..., Any]  # such as tqdm or tqdm.notebook.tqdm
UseTqdm = bool | MakeBar


class ProgressBar:
    """A bar, or nothing. A context manager, which closes it."""

    def __init__(self, use_tqdm: UseTqdm, total: int, description: str) -> None:
        make = tqdm if use_tqdm is True else use_tqdm
        self._bar: Any = make(total=total, desc=description, dynamic_ncols=True) if make and total else None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self) -> None:
        """Count one prompt."""
        if self._bar is not None:
            self._bar.update(1)
