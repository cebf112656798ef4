"""The body of an embedding request, and its inputs."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from baton.engine.errors import InvalidRequest
from baton.engine.pooling.config import PoolingConfig, PoolingParams
from baton.router.errors import FieldError
from baton.router.openai.ignored_fields import Label
from baton.router.openai.prompts import TEXT_SCHEMA, TOKEN_IDS_SCHEMA, read_token_ids
from baton.router.openai.request_body import WHOLE, RequestBody
from baton.router.request_context import INT32_MAX

MAX_INPUTS = 2048  # of one request, as in OpenAI's API
MAX_TOKENS = 1 << 19  # of all inputs of one request; more token ids would exceed the bounds of bodies, too
KINDS = "input must be a string, a list of strings, a list of token ids or a list of such lists"
INPUT_SCHEMA: dict[str, object] = {
    "anyOf": [
        TEXT_SCHEMA,
        {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": TEXT_SCHEMA},
        {**TOKEN_IDS_SCHEMA, "minItems": 1},
        {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": {**TOKEN_IDS_SCHEMA, "minItems": 1}},
    ]
}
Input = str | list[int]


class EmbeddingRequest(RequestBody):
    """Body of an embedding request."""

    input: Annotated[object, WithJsonSchema(INPUT_SCHEMA)]  # validated by `read_inputs`
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1, le=INT32_MAX), WHOLE] | None = None
    user: Label | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None  # -1: to the context
    truncation_side: Literal["left", "right"] = "right"  # where tokens are removed
    add_special_tokens: bool = True
    normalize: bool | None = None  # None: as the model's pooling does
    use_activation: bool | None = None  # vLLM's newer name of `normalize`
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX), WHOLE] = 0
    cache_salt: Label | None = None

    def params(self, pooling: PoolingConfig) -> PoolingParams:
        """Return the engine's options. Raises FieldError for those that the model does not have."""
        if self.normalize is not None and self.use_activation not in (None, self.normalize):
            raise FieldError("use_activation", "use_activation and normalize are the same option, but differ; send one")
        normalizes = self.use_activation if self.normalize is None else self.normalize
        params = PoolingParams(dimensions=self.dimensions, normalizes=normalizes)
        try:
            pooling.check(params)
        except InvalidRequest as error:
            raise FieldError("dimensions", str(error)) from error
        return params

    def max_tokens(self, context_len: int) -> int | None:
        """Return the length to which inputs are truncated; None: longer ones than the context are an error.

        Raises FieldError.
        """
        wanted = self.truncate_prompt_tokens
        if wanted is None or wanted == -1:
            return None if wanted is None else context_len
        if not 1 <= wanted <= context_len:
            text = (
                f"truncate_prompt_tokens is {wanted}, but must be -1 or from 1 to the context of {context_len} tokens"
            )
            raise FieldError("truncate_prompt_tokens", text)
        return wanted


def read_inputs(given: object) -> Iterator[Input]:
    """Yield the inputs, each validated only when it is reached: hundreds of thousands of ids take a while.

    Raises FieldError for other types than the four kinds, and above the limits.
    """
    if isinstance(given, str):
        yield given
        return
    if not isinstance(given, list):
        raise FieldError("input", KINDS)
    if not given:
        raise FieldError("input", "input is empty; at least one input is needed")
    if type(given[0]) in (int, float):
        yield _ids(given, "input")
        return
    if len(given) > MAX_INPUTS:
        raise FieldError("input", f"input has {len(given)} inputs, over the limit of {MAX_INPUTS} of one request")
    is_ids = isinstance(given[0], list)
    for place, each in enumerate(given):
        name = f"input[{place}]"
        if is_ids:
            yield _ids(each, name)
        elif isinstance(each, str):
            yield each
        else:
            raise FieldError(name, f"{name} has another type than input[0]; {KINDS}")


def input_name(given: object, place: int) -> str:
    """Return an input's name in errors. `given`: the field `input`."""
    is_list = isinstance(given, list) and type(given[0]) not in (int, float)
    return f"input[{place}]" if is_list else "input"


def _ids(given: object, name: str) -> list[int]:
    if isinstance(given, list) and len(given) > MAX_TOKENS:
        raise FieldError(name, f"{name} has {len(given)} token ids, over the limit of {MAX_TOKENS} of one request")
    return read_token_ids(given, name)
