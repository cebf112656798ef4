"""Directory that stands for a GGUF file: links to the file's parts, and the config and tokenizer written out.

Everything else then reads a checkpoint's directory, whatever the format of its weights. The directory is made once for
each state of a file, in the cache of Hugging Face's libraries.
"""

import os
import re
import shutil
import struct
import tempfile
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from baton.engine.checkpoint.gguf.config import gguf_config
from baton.engine.checkpoint.gguf.header import GgufHeader, read_header
from baton.engine.checkpoint.gguf.metadata import Metadata
from baton.engine.checkpoint.gguf.tensors import all_parts, read_gguf_tensors
from baton.engine.checkpoint.gguf.tokenizer import as_json, gguf_tokenizer
from baton.engine.checkpoint.json_object import shown
from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.errors import InvalidCheckpoint

SUFFIX = ".gguf"
NO_TOKENIZER = "-no-tokenizer"  # end of the directory's name
VERSION = 1  # of what is written out; increment when it changes
ROPE_FREQS = "rope_freqs.weight"
MAX_FREQS = 1 << 12
MADE = re.compile(rf".+-[0-9a-f]{{16}}(?:{NO_TOKENIZER})?")  # names of the directories
KEPT_S = 7 * 24 * 3600  # since its last use, a directory whose files were deleted or changed
NO_STATE = "/"  # in no directory's name


def checkpoint_directory(model: Path, cache: Path | None = None, *, with_tokenizer: bool = True) -> Path:
    """Return the directory of a model; for a GGUF file, any of its parts, one that stands for it.

    with_tokenizer: whether that needs the file's tokenizer; if another one is used, any kind of it is accepted.
    Raises InvalidCheckpoint or UnsupportedModel for a file that is damaged or not supported.
    """
    if model.suffix != SUFFIX or not model.is_file():
        return model
    parts = [path.absolute() for path in all_parts(model)]
    root = _default_cache() if cache is None else cache
    directory = root / f"{parts[0].stem}-{_state(parts)}{'' if with_tokenizer else NO_TOKENIZER}"
    if directory.is_dir():
        with suppress(OSError):  # a cache that is only readable
            os.utime(directory)
    else:
        _make(directory, parts, with_tokenizer)
        _remove_stale(root)
    return directory


def _default_cache() -> Path:
    from huggingface_hub.constants import HF_ASSETS_CACHE  # slow to import

    return Path(HF_ASSETS_CACHE) / "baton" / "gguf"


def written_files(parts: list[Path], with_tokenizer: bool) -> dict[str, str]:
    """Return the contents of the files that describe a model, by name. Raises InvalidCheckpoint or UnsupportedModel."""
    first = read_header(parts[0])
    metadata = Metadata(first.metadata, str(parts[0]))
    if (count := first.metadata.get("split.count", 1)) not in (0, 1, len(parts)):
        raise InvalidCheckpoint(f"{parts[0]} says that it is one of {shown(count)} files, but there are {len(parts)}")
    tensors = read_gguf_tensors(parts)
    config = gguf_config(metadata, tensors, _rope_factors(first, parts))
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id") if key in config}
    files = {"config.json": as_json(config), "generation_config.json": as_json(generation)}
    if not with_tokenizer:
        return files
    tokenizer = gguf_tokenizer(metadata, metadata.size("context_length"))
    return files | {"tokenizer.json": tokenizer.tokenizer, "tokenizer_config.json": as_json(tokenizer.config)}


def _make(directory: Path, parts: list[Path], with_tokenizer: bool) -> None:
    files = written_files(parts, with_tokenizer)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        try:
            for name, text in files.items():
                (made / name).write_text(text, encoding="utf-8")
            for part in parts:
                (made / part.name).symlink_to(part)
            made.chmod(0o755)
            made.rename(directory)
        except OSError:
            shutil.rmtree(made, ignore_errors=True)
            if not directory.is_dir():  # another process has not made it meanwhile
                raise
    except OSError as error:
        raise InvalidCheckpoint(
            f"{directory} cannot be written: {error.strerror}; set HF_HOME to a directory that can be"
        ) from error


def _remove_stale(root: Path) -> None:
    """Remove directories whose GGUF files were deleted or changed, unless they were used within a week.

    A server may still be using them, perhaps on another machine, where the files have other paths.
    """
    oldest = time.time() - KEPT_S
    for directory in root.iterdir():
        links = sorted(directory.glob(f"*{SUFFIX}")) if MADE.fullmatch(directory.name) else []
        if not links or not any(map(_has_changed, links)) or _state_or_none(links) in directory.name:
            continue
        with suppress(FileNotFoundError):  # another process removes it too
            if directory.stat().st_mtime < oldest:
                shutil.rmtree(directory, ignore_errors=True)


def _has_changed(link: Path) -> bool:
    """Return whether a link's file was deleted, or changed after the link was made."""
    try:
        return link.stat().st_mtime_ns > link.lstat().st_mtime_ns
    except FileNotFoundError:
        return True
    except OSError:  # for example in a folder of another user
        return False


def _state_or_none(links: list[Path]) -> str:
    try:
        return _state([link.readlink() for link in links])
    except OSError:
        return NO_STATE


def _state(parts: list[Path]) -> str:
    digest = blake2b(f"{VERSION}".encode(), digest_size=8)
    for part in parts:
        status = os.stat(part)
        digest.update(f"\n{part}:{status.st_size}:{status.st_mtime_ns}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _rope_factors(first: GgufHeader, parts: list[Path]) -> list[float] | None:
    """Return the divisors of rotary frequencies; None if the files have none."""
    headers = [first, *(read_header(part) for part in parts[1:])]
    found = next((each for header in headers for each in header.tensors if each.name == ROPE_FREQS), None)
    return None if found is None else _floats(found)


def _floats(tensor: StoredTensor) -> list[float]:
    if tensor.dtype != "float32" or tensor.num_bytes > 4 * MAX_FREQS:
        raise InvalidCheckpoint(f"{tensor.file}: tensor {tensor.name} must have at most {MAX_FREQS} numbers in F32")
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        return [number for (number,) in struct.iter_unpack("<f", file.read(tensor.num_bytes))]
