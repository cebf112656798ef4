"""The size to which a model's images are resized: Qwen2-VL's processor, which Qwen2.5-VL uses too. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import UnsupportedModel
from baton.engine.vision.config import MEAN, STD, VisionConfig

FILE, NEW_FILE = "preprocessor_config.json", "processor_config.json"
MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280  # defaults
MAX_ASPECT = 200
NO_BOUNDS: Mapping[str, int] = {}
BICUBIC = 3  # Pillow's number


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """Bounds on the pixels of a resized image, whose sides are multiples of `token_size`."""

    token_size: int
    min_pixels: int
    max_pixels: int

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the resized image, which keeps its aspect ratio as far as it can.

        Source: `smart_resize` in transformers. Raises ValueError for sides with a ratio above `MAX_ASPECT`.
        """
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise ValueError(f"is {width} x {height} pixels, but one side may be at most {MAX_ASPECT} times the other")
        unit = self.token_size
        rows, columns = round(height / unit), round(width / unit)
        if rows * columns * unit**2 > self.max_pixels:
            factor = math.sqrt(height * width / self.max_pixels)
            rows = max(1, math.floor(height / factor / unit))
            columns = max(1, math.floor(width / factor / unit))
        elif rows * columns * unit**2 < self.min_pixels:
            factor = math.sqrt(self.min_pixels / (height * width))
            rows, columns = math.ceil(height * factor / unit), math.ceil(width * factor / unit)
        return rows * unit, columns * unit


def read_processor_config(
    directory: Path, vision: VisionConfig, bounds: Mapping[str, int] = NO_BOUNDS
) -> ProcessorConfig:
    """Read a model's preprocessor_config.json, or what transformers 5 writes; without either, the defaults.

    bounds: `min_pixels` and `max_pixels` that replace the file's. Raises InvalidCheckpoint, and UnsupportedModel for
    options that would make other pixels.
    """
    config = JsonObject({}, str(directory / FILE))
    if (directory / FILE).exists():
        config = JsonObject.read(directory / FILE)
    elif (directory / NEW_FILE).exists():
        config = JsonObject.read(directory / NEW_FILE).inner("image_processor")
    for key in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if not config.boolean(key, True):
            raise UnsupportedModel(f"{config.source}: {key} false is not supported")
    sizes = {
        "patch_size": vision.patch_size,
        "merge_size": vision.merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "resample": BICUBIC,
    }
    for key, value in sizes.items():
        if config.integer(key, value) != value:
            raise UnsupportedModel(f"{config.source}: {key} {config.integer(key)} is not supported, only {value}")
    _check_numbers(config, "image_mean", MEAN)
    _check_numbers(config, "image_std", STD)
    size = config.inner("size")
    smallest = bounds.get("min_pixels", config.size("min_pixels", size.size("shortest_edge", MIN_PIXELS)))
    largest = bounds.get("max_pixels", config.size("max_pixels", size.size("longest_edge", MAX_PIXELS)))
    if largest < max(smallest, vision.token_size**2):
        raise UnsupportedModel(f"{config.source}: max_pixels {largest} is below min_pixels {smallest}, or a token")
    return ProcessorConfig(vision.token_size, smallest, largest)


def _check_numbers(config: JsonObject, key: str, expected: Sequence[float]) -> None:
    given = config.numbers(key) or expected
    if len(given) != len(expected) or any(abs(a - b) > 1e-6 for a, b in zip(given, expected, strict=True)):
        raise UnsupportedModel(f"{config.source}: {key} {shown(list(given))} is not supported, only {list(expected)}")
