"""Decoding and resizing of an image, with Pillow."""

from hashlib import blake2b
from io import BytesIO

from PIL import Image as Pillow
from PIL import ImageOps

from baton.engine.vision.image import DIGEST_BYTES
from baton.router.errors import FieldError
from baton.router.images.base import ResizedImage
from baton.router.images.limits import ImageLimits
from baton.router.images.processor import ProcessorConfig
from baton.router.images.source import HINT, ImageSource

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
# Scans of a JPEG file: each takes a pass over all pixels and may have only some bytes. Usual files have 1 or 10.
SCAN, MAX_SCANS = b"\xff\xda", 100
WHITE = (255, 255, 255, 255)
BOMBS = (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning)


def resized_image(content: bytes, source: ImageSource, limits: ImageLimits, processor: ProcessorConfig) -> ResizedImage:
    """Decode an image and resize it as transformers' processor does.

    The first frame of an animation is used, orientation by EXIF applied, and transparency put on white. The number of
    pixels is checked before they are decoded. Raises FieldError.
    """
    try:
        with Pillow.open(BytesIO(content), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > limits.max_pixels:
                raise _too_many_pixels(source, f"{width} x {height}", limits)
            if opened.format not in ("PNG", "WEBP", "GIF") and content.count(SCAN) > MAX_SCANS:
                text = f"{source.field} has {content.count(SCAN)} scans, over the limit of {MAX_SCANS} for an image"
                raise FieldError(source.field, text)
            ImageOps.exif_transpose(opened, in_place=True)
            rgb = _as_rgb(opened)
    except FieldError:
        raise
    except BOMBS as error:
        raise _too_many_pixels(source, "too many", limits) from error
    except Exception as error:  # decoders may fail on a damaged file in any way
        text = f"{source.field} cannot be decoded, but must be {HINT}"
        raise FieldError(source.field, text) from error
    try:
        height, width = processor.target_size(rgb.height, rgb.width)
    except ValueError as error:
        raise FieldError(source.field, f"{source.field} {error}") from error
    rows, columns = height // processor.token_size, width // processor.token_size
    pixels = rgb.resize((width, height), Pillow.Resampling.BICUBIC).tobytes()
    digest = blake2b(f"{rows}x{columns}:".encode(), digest_size=DIGEST_BYTES, person=b"baton-image")
    digest.update(pixels)
    return ResizedImage(rows, columns, digest.digest(), pixels)


def _as_rgb(image: Pillow.Image) -> Pillow.Image:
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    background = Pillow.new("RGBA", image.size, WHITE)
    return Pillow.alpha_composite(background, image.convert("RGBA")).convert("RGB")


def _too_many_pixels(source: ImageSource, size: str, limits: ImageLimits) -> FieldError:
    text = f"{source.field} has {size} pixels, over the limit of {limits.max_pixels} for an image"
    return FieldError(source.field, text)
