"""Bounds on the images of a request."""

import json
from dataclasses import dataclass

from baton.settings.values import JsonText, OptionError, parsed_json

IMAGE = "image"


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Bounds on one request's images."""

    max_images: int
    max_bytes: int  # of an image's file
    max_pixels: int  # of an image before it is resized


SIZES = ("min_pixels", "max_pixels")


def resized_bounds(text: JsonText | None) -> dict[str, int]:
    """Return the bounds in an option such as {"max_pixels": 1003520}; empty without it. Raises OptionError."""
    bounds: dict[str, int] = {}
    for key, value in parsed_json(text).items():
        if key not in SIZES or isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(
                f"mm_processor_kwargs: {json.dumps({key: value})} must be a number of {' or '.join(SIZES)}"
            )
        bounds[key] = value
    return bounds


def images_per_prompt(text: JsonText) -> int:
    """Return the number of images in an option such as {"image": 4}. Raises OptionError."""
    given = parsed_json(text)
    count = given.get(IMAGE)
    if given.keys() != {IMAGE} or isinstance(count, bool) or not isinstance(count, int) or count < 0:
        example = '{"image": 4}'
        raise OptionError(f"limit_mm_per_prompt: {json.dumps(given)} must be a number of images, such as {example}")
    return count
