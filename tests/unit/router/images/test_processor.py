"""Images get transformers' pixels and number of placeholders, and bad ones one clear error."""

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from baton.engine.errors import UnsupportedModel
from baton.engine.vision.config import VisionConfig
from baton.engine.vision.patches import patches_of
from baton.router.errors import FieldError
from baton.router.images.decoding import resized_image
from baton.router.images.limits import ImageLimits
from baton.router.images.processor import ProcessorConfig, read_processor_config
from baton.router.images.source import ImageSource
from tests.vision_checkpoints import PLACEHOLDER

VISION = VisionConfig(
    num_layers=1, hidden_size=8, intermediate_size=8, num_heads=1, patch_size=14, merge_size=2, temporal_patch_size=2,
    window_size=112, full_layers=frozenset(), placeholder_id=PLACEHOLDER, rotary_sections=(1, 1, 2),
)  # fmt: skip
LIMITS = ImageLimits(max_images=4, max_bytes=1 << 20, max_pixels=1_000_000)
CPU = torch.device("cpu")
SOURCE = ImageSource("messages[0].content[1].image_url", "")


def noise(width: int, height: int, channels: int = 3, seed: int = 0) -> Pillow.Image:
    return Pillow.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8))


def encoded(image: Pillow.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def processor_of(directory: Path, **options: object) -> ProcessorConfig:
    (directory / "preprocessor_config.json").write_text(json.dumps(options))
    return read_processor_config(directory, VISION)


@pytest.mark.parametrize(
    ("width", "height"), [(28, 28), (1, 1), (100, 57), (300, 500), (30, 1500), (1000, 13), (640, 480)]
)
def test_pixels_and_tokens_are_those_of_transformers(width: int, height: int, tmp_path: Path) -> None:
    bounds = {"min_pixels": 3136, "max_pixels": 120_000}
    theirs = Qwen2VLImageProcessorPil(**bounds)
    image = noise(width, height)
    expected = theirs(image, return_tensors="np")
    ours = resized_image(encoded(image), SOURCE, LIMITS, processor_of(tmp_path, **bounds))
    assert expected["image_grid_thw"].tolist() == [[1, 2 * ours.rows, 2 * ours.columns]]
    patches = patches_of(ours.at(0), VISION, CPU)
    np.testing.assert_allclose(patches.numpy(), expected["pixel_values"], atol=1e-5)


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "LA", "1", "CMYK"])
def test_every_mode_becomes_rgb_as_in_transformers(mode: str, tmp_path: Path) -> None:
    image = noise(60, 60, channels=4).convert(mode)
    kind = "JPEG" if mode == "CMYK" else "PNG"
    content = encoded(image, kind)
    theirs = Qwen2VLImageProcessorPil()(Pillow.open(io.BytesIO(content)), return_tensors="np")
    ours = resized_image(content, SOURCE, LIMITS, processor_of(tmp_path))
    patches = patches_of(ours.at(0), VISION, CPU)
    np.testing.assert_allclose(patches.numpy(), theirs["pixel_values"], atol=1e-5)


def test_the_orientation_of_a_photo_is_applied(tmp_path: Path) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = 6
    ours = resized_image(encoded(noise(140, 56), "JPEG", exif=exif), SOURCE, LIMITS, processor_of(tmp_path))
    assert (ours.rows, ours.columns) == (5, 2)


def test_digests_differ_by_pixels_and_shape(tmp_path: Path) -> None:
    processor = processor_of(tmp_path)
    images = [noise(112, 56), noise(56, 112), noise(112, 56, seed=1)]
    black = [Pillow.new("RGB", size) for size in ((112, 56), (56, 112))]
    digests = {resized_image(encoded(each), SOURCE, LIMITS, processor).digest for each in (*images, *black)}
    assert len(digests) == 5


def with_scans(count: int) -> bytes:
    """A progressive JPEG file whose last scan is repeated."""
    whole = encoded(noise(60, 60), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    more = count - whole.count(b"\xff\xda")
    return whole[:last] + whole[last:-2] * (1 + more) + whole[-2:]


def test_a_jpeg_with_many_scans_is_read(tmp_path: Path) -> None:
    assert resized_image(with_scans(100), SOURCE, LIMITS, processor_of(tmp_path)).rows == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (with_scans(101), "has 101 scans, over the limit of 100 for an image"),
        (b"no image", "image_url cannot be decoded, but must be data:image/png;base64"),
        (encoded(noise(60, 60))[:-300], "cannot be decoded"),
        (encoded(noise(60, 60), "BMP"), "cannot be decoded"),
        (encoded(Pillow.new("1", (2000, 501))), "has 2000 x 501 pixels, over the limit of 1000000 for an image"),
        (encoded(Pillow.new("1", (20_000, 20_000))), "pixels, over the limit of 1000000 for an image"),
        (encoded(Pillow.new("1", (801, 4))), "is 801 x 4 pixels, but one side may be at most 200 times the other"),
    ],
)
def test_images_that_cannot_be_used_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=message) as refused:
        resized_image(content, SOURCE, LIMITS, processor_of(tmp_path))
    assert refused.value.field == SOURCE.field


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_damaged_files_are_refused_however_they_are_damaged(kind: str, tmp_path: Path) -> None:
    draw, processor = random.Random(kind), processor_of(tmp_path)
    whole, refusals = encoded(noise(40, 40), kind), set()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            damaged[draw.randrange(min(len(damaged), draw.choice((40, 400, 10_000))))] = draw.randrange(256)
        try:
            resized_image(bytes(damaged), SOURCE, LIMITS, processor)
        except FieldError as error:
            refusals.add(str(error)[:60])
    assert refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_normalize": False}, "do_normalize false is not supported"),
        ({"patch_size": 16}, "patch_size 16 is not supported, only 14"),
        ({"resample": 2}, "resample 2 is not supported, only 3"),
        ({"image_mean": [0.5, 0.5, 0.5]}, "image_mean .0.5, 0.5, 0.5. is not supported"),
        ({"min_pixels": 5000, "max_pixels": 4000}, "max_pixels 4000 is below min_pixels 5000"),
    ],
)
def test_processors_that_make_other_pixels_are_refused(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        processor_of(tmp_path, **options)


def test_bounds_are_read_from_all_forms_of_the_file(tmp_path: Path) -> None:
    assert processor_of(tmp_path, size={"shortest_edge": 4000, "longest_edge": 5000}).max_pixels == 5000
    saved = tmp_path / "saved"
    Qwen2VLImageProcessorPil(min_pixels=4000, max_pixels=6000).save_pretrained(saved)
    found = read_processor_config(saved, VISION)
    assert (found.min_pixels, found.max_pixels) == (4000, 6000)
    (tmp_path / "preprocessor_config.json").unlink()
    assert read_processor_config(tmp_path, VISION) == ProcessorConfig(28, 56 * 56, 28 * 28 * 1280)
    new = {"image_processor": {"size": {"shortest_edge": 4000, "longest_edge": 7000}}}
    (tmp_path / "processor_config.json").write_text(json.dumps(new))
    assert read_processor_config(tmp_path, VISION).max_pixels == 7000
    assert read_processor_config(tmp_path, VISION, {"max_pixels": 6000}) == ProcessorConfig(28, 4000, 6000)
