"""Contract of a model's image reader, and the one of models without images."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton.engine.vision.image import Image
from baton.router.errors import FieldError
from baton.router.images.source import ImageSource


@dataclass(frozen=True, slots=True)
class ResizedImage:
    """A resized image that has no place in a prompt yet."""

    rows: int  # of tokens
    columns: int
    digest: bytes
    pixels: bytes = field(repr=False)  # rgb, [height, width, 3] uint8

    def at(self, start: int) -> Image:
        """Return the image with its first token at an index of the prompt."""
        return Image(start, self.rows, self.columns, self.digest, self.pixels)


class PromptImages(Protocol):
    """Reads images and puts them into prompts."""

    def check(self, sources: Sequence[ImageSource]) -> None:
        """Raise FieldError for images that are refused unread."""
        ...

    async def read(self, sources: Sequence[ImageSource], client: str) -> Sequence[ResizedImage]:
        """Return the resized images; `client`: takes turns. Raises FieldError that names the field of an image."""
        ...

    def place(self, token_ids: list[int], images: Sequence[ResizedImage]) -> tuple[list[int], tuple[Image, ...]]:
        """Return the tokens with as many placeholders as each image has tokens, and the images at their places.

        Raises FieldError unless there is one placeholder for each image.
        """
        ...

    async def close(self) -> None:
        """End all threads after their current jobs, and all connections."""
        ...


class NoImages:
    """Reader that refuses images."""

    def __init__(self, reason: str) -> None:
        """reason: of the refusal, a sentence without its full stop."""
        self._reason = reason

    def check(self, sources: Sequence[ImageSource]) -> None:
        """Raise FieldError if there is an image."""
        if sources:
            raise FieldError(sources[0].field, f"{sources[0].field} is an image, but {self._reason}")

    async def read(self, sources: Sequence[ImageSource], client: str) -> Sequence[ResizedImage]:
        """Raise FieldError if there is an image."""
        self.check(sources)
        return ()

    def place(self, token_ids: list[int], images: Sequence[ResizedImage]) -> tuple[list[int], tuple[Image, ...]]:
        """Return the tokens."""
        return token_ids, ()

    async def close(self) -> None:
        """Return at once."""
