"""Images of conversations: files of this machine and images of Pillow, sent to the router as data URLs."""

import base64
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

from baton.extras import PILLOW
from baton.settings.regular_file import read_regular

FILE = "file://"
URL, PIL = "image_url", "image_pil"  # types of parts, which vLLM has too
LOCAL_HOSTS = ("", "localhost")

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LocalImages:
    """The reader of images that are no data URLs; the router fetches those of other hosts."""

    allowed: Path | None  # directory of the files that may be read; None: none

    @classmethod
    def of(cls, given: object) -> "LocalImages":
        """Return the reader for an `allowed_local_media_path`. Raises ValueError unless it is a directory."""
        if given is None or given == "":
            return cls(None)
        try:
            path = Path(str(given)).expanduser().resolve()
            is_there = path.is_dir()
        except (OSError, RuntimeError) as error:  # an unknown user, links in a circle, a name that is too long
            raise ValueError(f"allowed_local_media_path: {given}: {error}") from error
        if not is_there:
            raise ValueError(f"allowed_local_media_path: {given} is not a directory")
        return cls(path)

    def check(self, messages: Sequence[Message]) -> None:
        """Raise ValueError for a file that must not be read, or that is not there."""
        for place, part in _parts(messages):
            if (url := _file_url(part)) is not None:
                _check_file(place, self._path(place, url))

    def inlined(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with a data URL in place of each file and each image of Pillow. Raises as `check` does.

        To be called when a request is sent: the images of all conversations may not fit in memory.
        """
        return _replaced(messages, self._inlined)

    def _inlined(self, place: str, part: object) -> object:
        if isinstance(part, Mapping) and part.get("type") == PIL:
            return {"type": URL, URL: {"url": _png_url(place, part.get(PIL))}}
        if (url := _file_url(part)) is None:
            return part
        path = self._path(place, url)
        try:
            content = read_regular(path)
        except OSError as error:
            raise ValueError(f"{place}: cannot read {path}: {error.strerror}") from error
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return {"type": URL, URL: {"url": _data_url(kind, content)}}

    def _path(self, place: str, url: str) -> Path:
        """Return the file of a URL. Raises ValueError if it must not be read."""
        parts = urlsplit(url)
        if parts.netloc not in LOCAL_HOSTS:
            raise ValueError(f"{place}: {url} names a host; a file of this machine is file:///PATH")
        try:
            path = Path(unquote(parts.path)).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a null byte
            raise ValueError(f"{place}: {url} names no file: {error}") from error
        if self.allowed is None:
            raise ValueError(f"{place}: files are not read unless the LLM has an allowed_local_media_path")
        if not path.is_relative_to(self.allowed):
            raise ValueError(f"{place}: {path} is outside of allowed_local_media_path, {self.allowed}")
        return path


def _check_file(place: str, path: Path) -> None:
    """Raise ValueError unless a file is there."""
    try:
        is_there = path.is_file()
    except OSError as error:  # a name that is too long, a directory that may not be searched
        raise ValueError(f"{place}: cannot read {path}: {error.strerror}") from error
    if not is_there:
        raise ValueError(f"{place}: {path} is not a file")


def with_urls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a short URL in place of each image, for the chat template."""
    return _replaced(messages, lambda _, part: {"type": URL, URL: {"url": "data:,"}} if _is_image(part) else part)


def has_images(messages: Sequence[Message]) -> bool:
    """Return whether there are images in the messages."""
    return any(_is_image(part) for _, part in _parts(messages))


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in (URL, PIL)


def _replaced(messages: Sequence[Message], change: Callable[[str, object], object]) -> list[Message]:
    """Return the messages with changed parts; `change` gets the name of a part's place, and the part."""
    return [
        {**message, "content": [change(_place(index, number), part) for number, part in enumerate(parts)]}
        if (parts := _content(message))
        else message
        for index, message in enumerate(messages)
    ]


def _parts(messages: Sequence[Message]) -> list[tuple[str, object]]:
    """Return the parts of the messages' contents, with the names of their places."""
    return [
        (_place(index, number), part)
        for index, message in enumerate(messages)
        for number, part in enumerate(_content(message))
    ]


def _content(message: Message) -> list[object]:
    content = message.get("content") if isinstance(message, Mapping) else None
    return list(content) if isinstance(content, list | tuple) else []


def _place(index: int, number: int) -> str:
    return f"messages[{index}].content[{number}]"


def _file_url(part: object) -> str | None:
    """Return the URL of a part that is a file of this machine."""
    if not isinstance(part, Mapping) or part.get("type") != URL:
        return None
    given = part.get(URL)
    url = given.get("url") if isinstance(given, Mapping) else given
    return url if isinstance(url, str) and url.startswith(FILE) else None


def _png_url(place: str, image: object) -> str:
    """Return an image of Pillow as a data URL. Raises ValueError if it is none."""
    PILLOW.require(PIL)
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise ValueError(f"{place}.{PIL} is not an image of Pillow")
    written = BytesIO()
    mode = image.mode if image.mode in ("RGB", "RGBA", "L", "LA", "P", "1") else "RGB"
    image.convert(mode).save(written, "PNG")
    return _data_url("image/png", written.getvalue())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
