"""One inference, from the inputs and parameters of either front end to a request of the completions API."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import orjson
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from baton.router.errors import FieldError
from baton.router.kserve import tensors
from baton.router.kserve.tensors import (
    EXCLUDE_INPUT,
    INPUTS,
    RETURN_FLAGS,
    SAMPLING_PARAMETERS,
    STREAM,
    TEXT_INPUT,
    TEXT_OUTPUT,
    TOKEN_IDS,
    Value,
)
from baton.router.openai.completions import CompletionRequest
from baton.router.openai.invalid_body import invalid_body
from baton.router.openai.request_body import OrText
from baton.router.served_model import ServedModel
from baton.router.served_models import ServedModels
from baton.rpc.status import NotFound

VERSION = "1"  # of each model
MAX_OPTIONS_BYTES = 64 << 10  # of `sampling_parameters`, which is parsed on the event loop
MAX_PARAMETERS = 256
BAD_WORDS, STOP_WORDS = "bad_words", "stop_words"
TIMEOUT = "timeout"  # parameter with the time limit of a request in microseconds, as Triton has it
# Parameters of clients that concern the protocol alone.
PROTOCOL_PARAMETERS = frozenset({"binary_data_output", "triton_enable_empty_final_response"})
# Fields of the completions API that inputs replace, or whose results no output has.
OTHER_FIELDS = frozenset({"prompt", "model", "echo", "stream_options", "logprobs", "prompt_logprobs"})


def find_model(models: ServedModels, name: str, version: str) -> ServedModel:
    """Return the model of a request. Raises NotFound for an unknown one, or another version than the only one."""
    model = models.named(name)
    if version not in ("", VERSION):
        raise NotFound(f"The model `{model.name}` has no version `{version[:50]}`; its only version is `{VERSION}`.")
    return model


@dataclass(frozen=True, slots=True)
class Inference:
    """A valid inference."""

    body: CompletionRequest
    wanted: tuple[str, ...]  # names of the outputs
    request_id: str  # the client's; empty: none
    timeout_s: float | None  # None: the router's default


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceInputs:
    """Decoded inputs and parameters of an inference."""

    inputs: Mapping[str, Value]  # by name
    parameters: Mapping[str, object]
    outputs: Sequence[str] = ()  # requested; empty: the text, and those that the inputs ask for
    request_id: str = ""
    may_stream: bool  # whether the call can return several responses

    async def read(self) -> Inference:
        """Return the inference. Raises InvalidRequest whose text names the input or parameter."""
        if any(isinstance(value, dict | list) for value in self.parameters.values()):
            return await asyncio.to_thread(self._read)  # megabytes of a schema would delay other requests
        return self._read()

    def _read(self) -> Inference:
        tensors.check_outputs(self.outputs)
        inputs, options = dict(self.inputs), dict[str, object]()
        timeout_s = None
        for name, value in self.parameters.items():
            if name in INPUTS:
                if name == SAMPLING_PARAMETERS and isinstance(value, dict):
                    options |= value
                else:
                    inputs.setdefault(name, tensors.checked(name, value))
            elif name == TIMEOUT:
                timeout_s = _seconds(value)
            elif name not in PROTOCOL_PARAMETERS:
                options[name] = value
        if TEXT_INPUT not in inputs:
            raise FieldError(TEXT_INPUT, f"{TEXT_INPUT} is required")
        options |= _options(inputs.get(SAMPLING_PARAMETERS, "{}"))
        _rename_words(options)
        stream = bool(inputs.get(STREAM, False))
        if stream and not self.may_stream:
            text = f"{STREAM} must be false: this call returns one response; use ModelStreamInfer or generate_stream"
            raise FieldError(STREAM, text)
        excludes_input = bool(inputs.get(EXCLUDE_INPUT, stream))
        if stream and not excludes_input:
            raise FieldError(EXCLUDE_INPUT, f"{EXCLUDE_INPUT} must be true if {STREAM} is true")
        flags = [name for flag, name in RETURN_FLAGS.items() if inputs.get(flag, False)]
        wanted = tuple(dict.fromkeys(self.outputs)) or (TEXT_OUTPUT, *flags)
        body = _completion(options, {"prompt": inputs[TEXT_INPUT], "stream": stream, "echo": not excludes_input})
        if body.n > 1 and TOKEN_IDS in wanted:
            raise FieldError("n", f"n is {body.n}, but must be 1 if {TOKEN_IDS} is returned")
        return Inference(body, wanted, self.request_id, timeout_s)


def _completion(options: Mapping[str, object], inputs: Mapping[str, object]) -> CompletionRequest:
    for name in options:
        if name in OTHER_FIELDS:
            raise FieldError(name, f"{name} is not available in this protocol; omit it")
    converted = {name: _converted(name, value) for name, value in options.items()}
    try:
        return CompletionRequest.model_validate(converted | dict(inputs))
    except ValidationError as error:
        raise invalid_body(CompletionRequest, error) from error


def _options(text: Value) -> dict[str, object]:
    """Return the options in `sampling_parameters`. Raises FieldError."""
    assert isinstance(text, str)
    if len(text) > MAX_OPTIONS_BYTES:
        limit = f"over the limit of {MAX_OPTIONS_BYTES}"
        raise FieldError(SAMPLING_PARAMETERS, f"{SAMPLING_PARAMETERS} has {len(text)} characters, {limit}")
    try:
        options = orjson.loads(text)
    except orjson.JSONDecodeError:
        options = None
    if not isinstance(options, dict) or len(options) > MAX_PARAMETERS:
        text = f"{SAMPLING_PARAMETERS} must be a JSON object with at most {MAX_PARAMETERS} fields"
        raise FieldError(SAMPLING_PARAMETERS, text)
    for name in options:
        if name in INPUTS:
            raise FieldError(SAMPLING_PARAMETERS, f"{SAMPLING_PARAMETERS} has {name}, which is an input of its own")
    return options


def _rename_words(options: dict[str, object]) -> None:
    """Rename the fields that clients of TensorRT-LLM's backend send, often without a word. Raises FieldError."""
    for name in (BAD_WORDS, STOP_WORDS):
        words = options.pop(name, None)
        given = [words] if isinstance(words, str) else words or []
        if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
            raise FieldError(name, f"{name} must be a string, or a list of strings")
        if not (given := [word for word in given if word]):
            continue
        if name == BAD_WORDS:
            raise FieldError(name, f"{name} is not supported by this server; omit it")
        if "stop" in options:
            raise FieldError(name, f"{name} and stop must not both be given")
        options["stop"] = given


def _seconds(value: object) -> float | None:
    """Return the time limit in seconds, None for 0. Raises FieldError."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:20])
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise FieldError(TIMEOUT, f"{TIMEOUT} must be a number of microseconds, or 0 for no limit")
    return value / 1e6 if value else None


def _converted(name: str, value: object) -> object:
    """Return the value of a field that has no text, parsed if it is given as text.

    Triton's parameters have no lists, in earlier versions no fractions, and its clients send numbers as text.
    """
    is_text = isinstance(value, str) and len(value) <= MAX_OPTIONS_BYTES
    if not is_text or name not in CompletionRequest.model_fields or name in TEXT_FIELDS:
        return value
    assert isinstance(value, str)
    try:
        return orjson.loads(value.lower() if value in ("True", "False") else value)
    except orjson.JSONDecodeError:
        return value  # the field's own check refuses it


def _accepts_text(field: FieldInfo) -> bool:
    return any(isinstance(each, OrText) for each in field.metadata) or _has_text(field.annotation)


def _has_text(annotation: Any) -> bool:
    """Return whether a type accepts strings, apart from strings in its lists and objects."""
    if annotation in (str, object) or isinstance(annotation, str):
        return True
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return any(isinstance(each, OrText) for each in metadata) or _has_text(inner)
    origin = get_origin(annotation)
    is_plain = isinstance(annotation, type) or (isinstance(origin, type) and issubclass(origin, list | dict | tuple))
    return not is_plain and any(map(_has_text, get_args(annotation)))


TEXT_FIELDS = frozenset(name for name, field in CompletionRequest.model_fields.items() if _accepts_text(field))
