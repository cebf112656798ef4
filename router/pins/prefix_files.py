"""The prefixes of --pin-prefix: files that are pinned on all workers that compute prompts.

A file is a text, or with the extension .json the body of a request for a pin, such as messages with images.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import orjson
from pydantic import ValidationError

from baton.engine.errors import EngineError, InvalidRequest
from baton.engine.vision.image import Image
from baton.router.inline_work import InlineWork
from baton.router.pins.keeper import PinsFull
from baton.router.pins.pin import SERVER, SERVER_TTL_S, Pin, Prefix
from baton.router.pins.request import PinRequest
from baton.router.served_model import ServedModel
from baton.settings.regular_file import open_regular
from baton.settings.values import OptionError

logger = logging.getLogger(__name__)

FIELDS = frozenset({"prompt", "messages", "tools", "chat_template_kwargs", "add_special_tokens"})
MAX_BYTES = 16 << 20  # of one file


@dataclass(frozen=True, slots=True)
class PrefixFile:
    """The content of a file."""

    path: str
    text: str
    body: PinRequest


def read_prefix_files(paths: Iterable[str]) -> list[PrefixFile]:
    """Return the contents of files. Raises OptionError."""
    return [_prefix_file(path, _text(path)) for path in paths]


async def pin_files(model: ServedModel, files: Iterable[PrefixFile]) -> None:
    """Have a model's keeper pin the files' texts on all workers that compute prompts, also on those that join later.

    Raises OptionError for a text that does not fit the model's context, and for more than a router keeps.
    """
    for file in files:
        try:
            source = await file.body.source(InlineWork(), model.pipeline.context_len())
            token_ids, images = await model.pipeline.tokenize_with_images(source, file.body.adds_special_tokens)
        except EngineError as error:
            raise OptionError(f"pin_prefix: {file.path}: {error}") from error
        pin = Pin(
            name=_name(file, images),
            owner=SERVER,
            prefix=Prefix.of(token_ids, "", images=images),
            expires_s=time.monotonic() + SERVER_TTL_S,
            is_everywhere=True,
        )
        try:
            model.pins.keep(pin)
        except PinsFull as error:
            raise OptionError(f"pin_prefix: {file.path}: {error}; pin fewer files, or smaller images") from error
        logger.info("%s will be pinned as %s, %d tokens", file.path, pin.name, pin.num_tokens)


def _name(file: PrefixFile, images: Iterable[Image]) -> str:
    """Return a name that is equal at all routers, unless a URL has led them to different images."""
    parts = (file.text.encode(), *(image.digest for image in images))
    return f"prefix-{blake2b(b''.join(parts), digest_size=8).hexdigest()}"


def _prefix_file(path: str, text: str) -> PrefixFile:
    if not path.endswith(".json"):
        return PrefixFile(path, text, PinRequest(prompt=text))
    try:
        body = PinRequest.model_validate(orjson.loads(text))
        body.check()
    except (orjson.JSONDecodeError, InvalidRequest) as error:
        raise OptionError(f"pin_prefix: {path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise OptionError(f"pin_prefix: {path}: {place}: {first['msg']}") from None
    if foreign := sorted(body.model_fields_set - FIELDS):
        known = ", ".join(sorted(FIELDS))
        raise OptionError(f"pin_prefix: {path}: {foreign[0]} is not used here; the file may have {known}")
    return PrefixFile(path, text, body)


def _text(path: str) -> str:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise OptionError(f"pin_prefix: cannot read {path}: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise OptionError(f"pin_prefix: {path} is larger than {MAX_BYTES} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise OptionError(f"pin_prefix: {path} is not UTF-8: {error.reason} at byte {error.start}") from None
    if not text:
        raise OptionError(f"pin_prefix: {path} is empty")
    return text
