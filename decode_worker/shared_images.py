"""Images of the requests of a decode worker."""

from collections.abc import Iterable
from weakref import WeakValueDictionary

from baton.engine.vision.image import Image


class SharedImages:
    """Images of running requests; those of a prompt with many completions are in memory once."""

    def __init__(self) -> None:
        self._images: WeakValueDictionary[tuple[bytes, int], Image] = WeakValueDictionary()

    def of(self, images: Iterable[Image]) -> tuple[Image, ...]:
        """Return the same images, those of other requests if they are equal."""
        return tuple(map(self._shared, images))

    def _shared(self, image: Image) -> Image:
        known = self._images.setdefault((image.digest, image.start), image)
        return known if known == image else image
