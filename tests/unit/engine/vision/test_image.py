"""Images of a prompt: their positions, what they add to block hashes, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.kv.block_hash import extend_hashes, pack_hashes, root_hash, split_hashes
from baton.engine.vision.config import VisionConfig
from baton.engine.vision.image import check_images, hash_marks, rotary_positions
from tests.vision_checkpoints import PLACEHOLDER, prompt_of, random_image, random_text

BLOCK = 4
VISION = VisionConfig(
    num_layers=1, hidden_size=8, intermediate_size=8, num_heads=1, patch_size=14, merge_size=2, temporal_patch_size=2,
    window_size=112, full_layers=frozenset(), placeholder_id=PLACEHOLDER, rotary_sections=(1, 1, 2),
)  # fmt: skip


def hashes_of(tokens: list[int], images: tuple) -> list[bytes]:  # type: ignore[type-arg]
    return [*split_hashes(pack_hashes(root_hash(), tokens, BLOCK, 0, hash_marks(images, BLOCK)))]


def test_positions_behind_an_image_continue_from_its_longer_side() -> None:
    tokens, images = prompt_of([[5, 6], random_image(2, 3, 1), [7]])
    positions = rotary_positions(images, 0, len(tokens) + 2)
    assert positions.tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7, 8, 9],
        [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9],
    ]


def test_positions_of_a_range_are_those_of_the_whole() -> None:
    tokens, images = prompt_of([random_image(3, 2, 1), [5], random_image(1, 4, 2), [6, 7]])
    whole = rotary_positions(images, 0, len(tokens))
    for start in range(len(tokens)):
        for end in range(start + 1, len(tokens) + 1):
            assert np.array_equal(rotary_positions(images, start, end), whole[:, start:end])


def test_hashes_differ_from_the_block_in_which_the_images_do() -> None:
    text = random_text(9, 1)
    first, images = prompt_of([text, random_image(2, 3, 1), text])
    same, others = prompt_of([text, random_image(2, 3, 2), text])
    assert first == same
    ours, theirs = hashes_of(first, images), hashes_of(same, others)
    start = images[0].start // BLOCK
    assert ours[:start] == theirs[:start] == hashes_of(first, ())[:start]
    assert not set(ours[start:]) & set(theirs[start:])
    assert not set(ours[start:]) & set(hashes_of(first, ())[start:])


def test_hashes_cover_each_of_two_images_in_one_block() -> None:
    one, other = random_image(1, 1, 1), random_image(1, 1, 2)
    tokens, _ = prompt_of([one, other])
    orders = [prompt_of(pair)[1] for pair in ([one, other], [other, one], [one, one])]
    hashes = {pack_hashes(root_hash(), tokens, len(tokens), 0, hash_marks(images, len(tokens))) for images in orders}
    assert len(hashes) == 3


def test_hashes_are_the_same_however_they_are_extended() -> None:
    tokens, images = prompt_of(
        [random_text(6, 1), random_image(2, 3, 1), random_text(7, 2), random_image(3, 1, 2), [9]]
    )
    marks, expected = hash_marks(images, BLOCK), hashes_of(tokens, images)
    grown: list = []  # type: ignore[type-arg]
    for end in range(len(tokens) + 1):
        extend_hashes(grown, tokens[:end], BLOCK, root_hash(), marks)
    assert grown == expected


def test_images_that_fit_are_accepted() -> None:
    tokens, images = prompt_of([[5], random_image(2, 3, 1), random_image(1, 1, 2), [6]])
    check_images(images, tokens, len(tokens), VISION)
    check_images((), tokens, len(tokens), None)


def test_images_that_do_not_fit_are_refused_by_place_and_reason() -> None:
    tokens, (image,) = prompt_of([[5], random_image(2, 3, 1), [6]])
    cases = [
        ((image,), None, "the model takes no images"),
        ((replace(image, pixels=image.pixels[1:]),), VISION, "has 14111 bytes of pixels"),
        ((replace(image, rows=0),), VISION, "has 14112 bytes of pixels, but 0 x 3 tokens need 0"),
        ((replace(image, digest=b"short"),), VISION, "digest of 5 bytes instead of 16"),
        ((replace(image, start=1),), VISION, "not all of them are the placeholder"),
        ((replace(image, start=5),), VISION, "or the end of the prompt of 10 tokens"),
        ((image, image), VISION, "images\\[1\\] .* overlap the image in front of it"),
    ]
    for images, vision, message in cases:
        with pytest.raises(InvalidRequest, match=message):
            check_images(images, tokens, len(tokens), vision)
