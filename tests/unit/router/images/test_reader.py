"""Reading of a request's images, and their places in its prompt."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image as Pillow

from baton.router.errors import FieldError
from baton.router.images import reader as reader_module
from baton.router.images.base import NoImages, ResizedImage
from baton.router.images.decoding import resized_image
from baton.router.images.limits import ImageLimits, images_per_prompt, resized_bounds
from baton.router.images.processor import ProcessorConfig
from baton.router.images.reader import ImageReader
from baton.router.images.source import ImageSource
from baton.settings.values import JsonText, OptionError
from tests.unit.router.images.test_fetch import server_and_fetcher

PLACEHOLDER = 99
LIMITS = ImageLimits(max_images=2, max_bytes=2000, max_pixels=1_000_000)


@pytest_asyncio.fixture
async def reader() -> AsyncIterator[ImageReader]:
    made = ImageReader(ProcessorConfig(28, 3136, 100_000), LIMITS, PLACEHOLDER)
    yield made
    await made.close()


def data_url(width: int = 56, height: int = 84) -> str:
    file = io.BytesIO()
    Pillow.new("RGB", (width, height)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def sources(*urls: str) -> list[ImageSource]:
    return [ImageSource(f"messages[0].content[{place}].image_url", url) for place, url in enumerate(urls)]


async def test_each_placeholder_becomes_as_many_as_its_image_has_tokens(reader: ImageReader) -> None:
    images = await reader.read(sources(data_url(), data_url(112, 28)), "")
    tokens, placed = reader.place([1, PLACEHOLDER, 2, PLACEHOLDER], images)
    assert tokens == [1, *[PLACEHOLDER] * 6, 2, *[PLACEHOLDER] * 4]
    assert [(each.start, each.rows, each.columns) for each in placed] == [(1, 3, 2), (8, 1, 4)]
    assert [len(each.pixels) for each in placed] == [84 * 56 * 3, 28 * 112 * 3]


@pytest.mark.parametrize("tokens", [[1], [PLACEHOLDER, PLACEHOLDER]])
async def test_other_numbers_of_placeholders_are_refused(reader: ImageReader, tokens: list[int]) -> None:
    images = await reader.read(sources(data_url()), "")
    with pytest.raises(FieldError, match=f"has {tokens.count(PLACEHOLDER)} placeholders for 1 images"):
        reader.place(tokens, images)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/a.png", "must be data:image/png;base64,.* fetches no other URLs"),
        ("file:///etc/passwd", "fetches no other URLs"),
        ("data:image/png,abc", "must be data:image/png;base64"),
        ("data:image/png;base64", "must be data:image/png;base64"),
        ("data:image/png;base64,!!!!", "is not valid base64"),
        ("data:image/png;base64," + "A" * 4000, "has 3000 bytes, over the limit of 2000 for an image"),
        ("data:image/png;base64,AAAA", "cannot be decoded"),
    ],
)
async def test_urls_that_are_no_image_are_refused_by_their_field(reader: ImageReader, url: str, message: str) -> None:
    with pytest.raises(FieldError, match=message) as refused:
        await reader.read(sources(data_url(), url), "")
    assert refused.value.field == "messages[0].content[1].image_url"


async def test_more_images_than_allowed_are_refused(reader: ImageReader) -> None:
    with pytest.raises(FieldError, match="the messages have 3 images, over the limit of 2"):
        await reader.read(sources(*[data_url()] * 3), "")


async def test_pixels_of_a_request_are_bounded(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_PIXEL_BYTES", 20_000)
    await reader.read(sources(data_url()), "")
    with pytest.raises(FieldError, match="28224 bytes when resized, over the limit of 20000 for a request"):
        await reader.read(sources(data_url(), data_url()), "")


async def test_only_as_many_requests_as_threads_hold_resized_images(
    reader: ImageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[str, int] = {}
    most = 0

    def resized(content: bytes, source: ImageSource, *options: Any) -> ResizedImage:
        nonlocal most
        begun[source.field] = begun.get(source.field, 0) + 1
        most = max(most, sum(count == 1 for count in begun.values()))
        return resized_image(content, source, *options)

    monkeypatch.setattr(reader_module, "resized_image", resized)
    given = [[ImageSource(f"messages[{number}]", data_url())] * 2 for number in range(8)]
    await asyncio.gather(*(reader.read(each, f"client{number % 3}") for number, each in enumerate(given)))
    assert most == 2


async def test_urls_are_refused_before_any_image_is_read(reader: ImageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "resized_image", pytest.fail)
    with pytest.raises(FieldError, match=r"content\[1\].image_url must be data:.*fetches no other URLs"):
        await reader.read(sources(data_url(), "http://example.org/a.png"), "")


async def test_models_without_images_refuse_them() -> None:
    none = NoImages("the model tiny takes no images")
    assert not await none.read([], "")
    assert none.place([1], ()) == ([1], ())
    with pytest.raises(FieldError, match=r"content\[0\].image_url is an image, but the model tiny takes no images"):
        await none.read(sources(data_url()), "")


def test_the_option_is_a_number_of_images() -> None:
    assert images_per_prompt(JsonText('{"image": 0}')) == 0
    for text in ("{}", '{"image": -1}', '{"image": true}', '{"video": 1}', '{"image": 1, "video": 1}'):
        with pytest.raises(OptionError, match="must be a number of images, such as"):
            images_per_prompt(JsonText(text))


def test_bounds_of_resized_images_are_pixels() -> None:
    assert resized_bounds(None) == {}
    assert resized_bounds(JsonText('{"max_pixels": 5000}')) == {"max_pixels": 5000}
    for text in ('{"max_pixels": 0}', '{"max_pixels": "1"}', '{"fps": 2}'):
        with pytest.raises(OptionError, match="must be a number of min_pixels or max_pixels"):
            resized_bounds(JsonText(text))


async def test_an_image_is_fetched_and_decoded() -> None:
    async with server_and_fetcher("127.0.0.1") as (server, fetcher):
        reader = ImageReader(ProcessorConfig(28, 3136, 100_000), LIMITS, PLACEHOLDER, fetcher)
        server.respond("/a.png", 200, base64.b64decode(data_url().partition(",")[2]))
        [image] = await reader.read([server.source("/a.png")], "")
        assert (image.rows, image.columns) == (3, 2)
        await reader.close()
