"""A tensor in a checkpoint's file: its place, dtype and shape. No torch."""

import os
import stat
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

MAX_NAME_CHARS = 512


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location, dtype and shape of a stored tensor."""

    name: str
    file: Path
    dtype: str  # torch's name; gguf- and a type for blocks; or the format's name of any other dtype
    shape: tuple[int, ...]
    offset: int  # of the first byte in the file
    num_bytes: int


def find_tensor(
    tensors: Mapping[str, StoredTensor], name: str, shapes: Sequence[tuple[int, ...]], dtypes: Container[str]
) -> StoredTensor:
    """Return a tensor that has one of these shapes and dtypes. Raises InvalidCheckpoint or UnsupportedModel."""
    stored = tensors.get(name)
    if stored is None:
        raise InvalidCheckpoint(f"tensor {name} is missing from the checkpoint")
    if stored.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise InvalidCheckpoint(f"tensor {name} has shape {list(stored.shape)}, but the config needs {wanted}")
    if stored.dtype not in dtypes:
        raise UnsupportedModel(f"tensor {name} has dtype {stored.dtype}, which is not supported")
    return stored


def file_status(path: Path) -> os.stat_result:
    """Return the status of a regular file. Raises InvalidCheckpoint, also for pipes and devices (endless)."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path} does not exist") from None
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCheckpoint(f"{path} is not a regular file")
    return status
