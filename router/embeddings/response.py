"""The body of an embedding response."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Literal

import numpy as np
import orjson
from typing_extensions import TypedDict

FLOAT_CHARS = 16  # of a float32 in JSON, with the comma
BASE64_CHARS = 16 / 3  # of a float32 in base64: four characters for three bytes


class EmbeddingBody(TypedDict):
    """Embedding of an input: numbers, or float32 in little-endian order, in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """Response of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingBody]
    model: str
    usage: EmbeddingUsage


def encoded(vectors: Sequence[bytes], is_base64: bool, model: str, num_tokens: int) -> bytes:
    """Return the body for embeddings in float32, little-endian."""
    data: list[dict[str, object]] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": b64encode(vector).decode() if is_base64 else np.frombuffer(vector, "<f4"),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return orjson.dumps(
        {"object": "list", "data": data, "model": model, "usage": usage}, option=orjson.OPT_SERIALIZE_NUMPY
    )


def max_bytes(num_vectors: int, size: int, is_base64: bool) -> int:
    """Return about the largest size of a body."""
    return int(num_vectors * size * (BASE64_CHARS if is_base64 else FLOAT_CHARS))
