"""An image of a prompt: its place among the tokens, its pixels, and the rotary positions that follow from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from baton.engine.errors import InvalidRequest
from baton.engine.vision.config import VisionConfig

DIGEST_BYTES = 16
MAX_PIXEL_BYTES = 40 << 20  # of all images of a request; the largest of Qwen2.5-VL have 38.5 MB


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Image:
    """A resized image and its placeholder tokens, which follow each other row by row."""

    start: int  # index of its first token in the prompt
    rows: int  # of tokens
    columns: int
    digest: bytes  # cryptographic, of size and pixels
    pixels: bytes = field(repr=False)  # rgb, [rows * token_size, columns * token_size, 3] uint8

    @property
    def num_tokens(self) -> int:
        """Number of its placeholder tokens."""
        return self.rows * self.columns

    @property
    def end(self) -> int:
        """Index of the token behind it."""
        return self.start + self.num_tokens

    @property
    def num_saved_positions(self) -> int:
        """How far its tokens are ahead of the positions behind it, which continue from its longer side."""
        return self.num_tokens - max(self.rows, self.columns)


def largest_image(config: VisionConfig, max_tokens: int) -> Image:
    """Return a black square of at most `max_tokens` and `MAX_PIXEL_BYTES`."""
    side = math.isqrt(min(max_tokens, MAX_PIXEL_BYTES // config.num_bytes(1, 1)))
    return Image(0, side, side, bytes(DIGEST_BYTES), bytes(config.num_bytes(side, side)))


def hash_marks(images: Sequence[Image], block_size: int) -> Mapping[int, bytes]:
    """Return what the images add to block hashes: their places and digests, by the block in which they start."""
    marks: dict[int, bytes] = {}
    for image in images:
        block, offset = divmod(image.start, block_size)
        marks[block] = marks.get(block, b"") + offset.to_bytes(4, "little") + image.digest
    return marks


def saved_behind(images: Sequence[Image], start: int) -> int:
    """Return how far the index of a text token is ahead of its rotary position, by the images in front of it."""
    return sum(image.num_saved_positions for image in images if image.end <= start)


def rotary_positions(images: Sequence[Image], start: int, end: int) -> np.ndarray:
    """Return the positions [3, end - start] int64 of a range of tokens in time, rows and columns (M-RoPE).

    Text has the same position in all three. All tokens of an image have the time at which it starts, and count rows and
    columns from there; text behind it continues from the longer side. Source: arXiv 2409.12191, section 2.1.
    """
    index = np.arange(start, end, dtype=np.int64)
    positions = np.tile(index, (3, 1))
    for image in images:
        positions[:, index >= image.end] -= image.num_saved_positions
        inside = (index >= image.start) & (index < image.end)
        within, first = index[inside] - image.start, positions[0, inside] - (index[inside] - image.start)
        positions[:, inside] = first + np.stack(
            [np.zeros_like(within), within // image.columns, within % image.columns]
        )
    return positions


def check_images(
    images: Sequence[Image], token_ids: Sequence[int], num_prompt_tokens: int, vision: VisionConfig | None
) -> None:
    """Raise InvalidRequest unless the images fit the model, their pixels and the placeholder tokens of the prompt."""
    if not images:
        return
    if vision is None:
        raise InvalidRequest("the model takes no images")
    end = 0
    for place, image in enumerate(images):
        if min(image.rows, image.columns) < 1 or len(image.pixels) != vision.num_bytes(image.rows, image.columns):
            raise InvalidRequest(
                f"images[{place}] has {len(image.pixels)} bytes of pixels, but {image.rows} x {image.columns} tokens "
                f"need {vision.num_bytes(image.rows, image.columns)}"
            )
        if len(image.digest) != DIGEST_BYTES:
            raise InvalidRequest(f"images[{place}] has a digest of {len(image.digest)} bytes instead of {DIGEST_BYTES}")
        if image.start < end or image.end > num_prompt_tokens:
            raise InvalidRequest(
                f"images[{place}] has tokens {image.start} to {image.end - 1}, which overlap the image in front of it "
                f"or the end of the prompt of {num_prompt_tokens} tokens"
            )
        if any(token != vision.placeholder_id for token in token_ids[image.start : image.end]):
            raise InvalidRequest(
                f"images[{place}] has tokens {image.start} to {image.end - 1}, but not all of them are the placeholder "
                f"{vision.placeholder_id}"
            )
        end = image.end
