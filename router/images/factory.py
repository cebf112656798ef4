"""The image reader of a model."""

from pathlib import Path

from baton.extras import PILLOW
from baton.router.config import RouterConfig
from baton.router.images.base import NoImages, PromptImages
from baton.router.images.limits import ImageLimits, images_per_prompt, resized_bounds
from baton.router.images.processor import read_processor_config
from baton.router.model_info import ModelInfo


def make_prompt_images(info: ModelInfo, directory: Path, config: RouterConfig) -> PromptImages:
    """Return the reader of a model's images, with the processor in its directory.

    It refuses all images if the model takes none, or if Pillow is not installed. Raises InvalidCheckpoint or
    UnsupportedModel.
    """
    if info.vision is None:
        return NoImages(f"the model {info.name} takes no images")
    processor = read_processor_config(directory, info.vision, resized_bounds(config.mm_processor_kwargs))
    if not PILLOW.is_installed:
        return NoImages(PILLOW.missing("reading it"))
    from baton.router.images.fetch import ImageFetcher
    from baton.router.images.reader import ImageReader

    limits = ImageLimits(images_per_prompt(config.limit_mm_per_prompt), config.max_image_bytes, config.max_image_pixels)
    fetcher = ImageFetcher(config.allowed_media_domains) if config.allowed_media_domains else None
    return ImageReader(processor, limits, info.vision.placeholder_id, fetcher)
