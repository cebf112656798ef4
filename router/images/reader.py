"""Images of one model's requests, read off the event loop; clients take turns."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from baton.engine.vision.image import MAX_PIXEL_BYTES, Image
from baton.router.admission.turns import Turns
from baton.router.errors import FieldError
from baton.router.images.base import ResizedImage
from baton.router.images.decoding import resized_image
from baton.router.images.fetch import MAX_CONNECTIONS, ImageFetcher
from baton.router.images.limits import ImageLimits
from baton.router.images.processor import ProcessorConfig
from baton.router.images.source import HINT, ImageSource, data_url_bytes

NUM_THREADS = 2


class ImageReader:
    """Reads images and puts them into prompts."""

    def __init__(
        self,
        processor: ProcessorConfig,
        limits: ImageLimits,
        placeholder_id: int,
        fetcher: ImageFetcher | None = None,
    ) -> None:
        """placeholder_id: token that the chat template has in place of an image; fetcher: None for data URLs only."""
        self._processor = processor
        self._limits = limits
        self._placeholder_id = placeholder_id
        self._fetcher = fetcher
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="images")
        self._turns = Turns(NUM_THREADS)
        # A request holds one of these until all its images are resized: bounds the pixels that no budget counts yet.
        self._data_turns = Turns(NUM_THREADS)
        self._fetch_turns = Turns(MAX_CONNECTIONS)  # of requests with other URLs than data URLs

    async def close(self) -> None:
        """End the threads after their current jobs, and all connections."""
        self._threads.shutdown()
        if self._fetcher is not None:
            await self._fetcher.close()

    def check(self, sources: Sequence[ImageSource]) -> None:
        """Raise FieldError for too many images, and for URLs that are not fetched."""
        if len(sources) > self._limits.max_images:
            raise FieldError(
                "messages", f"the messages have {len(sources)} images, over the limit of {self._limits.max_images}"
            )
        for source in sources:
            if self._fetcher is None and not source.is_data:
                raise FieldError(source.field, f"{source.field} must be {HINT}; this server fetches no other URLs")

    async def read(self, sources: Sequence[ImageSource], client: str) -> list[ResizedImage]:
        """Return the resized images. Raises FieldError that names the field of an image and what is wrong with it."""
        self.check(sources)
        turns = self._data_turns if all(source.is_data for source in sources) else self._fetch_turns
        async with turns.turn(client):
            return await self._read_all(sources, client)

    async def _read_all(self, sources: Sequence[ImageSource], client: str) -> list[ResizedImage]:
        images: list[ResizedImage] = []
        num_bytes = 0
        for source in sources:
            images.append(await self._read(source, client))
            num_bytes += len(images[-1].pixels)
            if num_bytes > MAX_PIXEL_BYTES:
                text = f"the images up to {source.field} have {num_bytes} bytes when resized, over the limit of"
                raise FieldError("messages", f"{text} {MAX_PIXEL_BYTES} for a request; send fewer or smaller ones")
        return images

    def place(self, token_ids: list[int], images: Sequence[ResizedImage]) -> tuple[list[int], tuple[Image, ...]]:
        """Return the tokens with as many placeholders as each image has tokens, and the images at their places.

        Raises FieldError unless there is one placeholder for each image.
        """
        places = [index for index, token in enumerate(token_ids) if token == self._placeholder_id]
        if len(places) != len(images):
            raise FieldError(
                "messages",
                f"the prompt has {len(places)} placeholders for {len(images)} images: a text must not have the "
                "placeholder, and the chat template must show each image",
            )
        expanded: list[int] = []
        placed: list[Image] = []
        behind = 0
        for index, resized in zip(places, images, strict=True):
            expanded += token_ids[behind:index]
            placed.append(resized.at(len(expanded)))
            expanded += [self._placeholder_id] * placed[-1].num_tokens
            behind = index + 1
        return expanded + token_ids[behind:], tuple(placed)

    async def _read(self, source: ImageSource, client: str) -> ResizedImage:
        fetched: bytes | None = None
        if not source.is_data and self._fetcher is not None:
            fetched = await self._fetcher.fetch(source, self._limits.max_bytes)

        def work() -> ResizedImage:
            content = data_url_bytes(source, self._limits.max_bytes) if fetched is None else fetched
            return resized_image(content, source, self._limits, self._processor)

        async with self._turns.turn(client):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
