"""Bounds on the images of a request."""

import json
from dataclasses import dataclass

from baton.settings.values import JsonText, OptionError, parsed_json

IMAGE = "image"
# All images of a request, resized. The largest of Qwen2.5-VL have 38.5 MB; workers receive up to 64 MiB.
MAX_PIXEL_BYTES = 40 << 20


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Bounds on one request's images."""

    max_images: int
    max_bytes: int  # of an image's file
    max_pixels: int  # of an image before it is resized


def images_per_prompt(text: JsonText) -> int:
    """Return the number of images in an option such as {"image": 4}. Raises OptionError."""
    given = parsed_json(text)
    count = given.get(IMAGE)
    if given.keys() != {IMAGE} or isinstance(count, bool) or not isinstance(count, int) or count < 0:
        example = '{"image": 4}'
        raise OptionError(f"limit_mm_per_prompt: {json.dumps(given)} must be a number of images, such as {example}")
    return count
