"""The prefixes of --pin-prefix: text files that are pinned on all workers that compute prompts."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from baton.engine.errors import EngineError
from baton.router.pins.pin import SERVER, SERVER_TTL_S, Pin, Prefix
from baton.router.served_model import ServedModel
from baton.settings.regular_file import open_regular
from baton.settings.values import OptionError

logger = logging.getLogger(__name__)

MAX_BYTES = 16 << 20  # of one file


@dataclass(frozen=True, slots=True)
class PrefixFile:
    """The text of a file."""

    path: str
    text: str


def read_prefix_files(paths: Iterable[str]) -> list[PrefixFile]:
    """Return the texts of files. Raises OptionError."""
    return [PrefixFile(path, _text(path)) for path in paths]


async def pin_files(model: ServedModel, files: Iterable[PrefixFile]) -> None:
    """Have a model's keeper pin the files' texts on all workers that compute prompts, also on those that join later.

    Raises OptionError for a text that does not fit the model's context.
    """
    for file in files:
        try:
            token_ids = await model.pipeline.tokenize(file.text, True)
        except EngineError as error:
            raise OptionError(f"pin_prefix: {file.path}: {error}") from error
        pin = Pin(
            name=f"prefix-{blake2b(file.text.encode(), digest_size=8).hexdigest()}",  # equal at all routers
            owner=SERVER,
            prefix=Prefix.of(token_ids, ""),
            expires_s=time.monotonic() + SERVER_TTL_S,
            is_everywhere=True,
        )
        logger.info("%s will be pinned as %s, %d tokens", file.path, pin.name, pin.num_tokens)
        model.pins.keep(pin)


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
