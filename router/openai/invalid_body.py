"""The error for an invalid body: its first problem, in OpenAI's wording if there is one."""

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.openai.ignored_fields import NeutralFields

# By the names in llama.cpp, Ollama, SGLang, Text Generation Inference and transformers.
RENAMED: Mapping[str, str] = {
    "eos_token_id": "stop_token_ids",
    "format": "response_format",
    "grammar": "ebnf",
    "input": "messages",
    "inputs": "prompt",
    "max_completion_tokens": "max_tokens",
    "max_gen_len": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_length": "min_tokens",
    "min_new_tokens": "min_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "no_stop_trim": "include_stop_str_in_output",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "random_seed": "seed",
    "rep_pen": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
    "sampling_seed": "seed",
    "stop": "stop_sequences",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "structural_tag": "response_format",
    "text": "prompt",
    "token_ids": "tokens",
    "top_n_tokens": "top_logprobs",
}
MAX_COMPARED_CHARS = 64  # longest name for which similar ones are searched: the time grows with the length
TEMPLATE_OPTIONS = frozenset({"enable_thinking", "reasoning_effort", "thinking"})
SAMPLER = "This sampler"
ADAPTER_FIELDS = frozenset({"adapter_id", "adapter_source", "lora", "lora_path", "lora_request"})
FEATURES: Mapping[str, str] = {
    "dry_multiplier": SAMPLER, "dynatemp_range": SAMPLER, "epsilon_cutoff": SAMPLER, "eta_cutoff": SAMPLER,
    "mirostat": SAMPLER, "smoothing_factor": SAMPLER, "tfs_z": SAMPLER, "top_a": SAMPLER, "top_n_sigma": SAMPLER,
    "typical_p": SAMPLER, "xtc_probability": SAMPLER,
    "images": "Multimodal input", "thinking_token_budget": "This budget",
    "watermark": "A watermark",
}  # fmt: skip


def advice(name: str, known: Collection[str]) -> str:
    """Return advice about an unknown field, given the names of known ones; empty if there is none."""
    if name in ADAPTER_FIELDS and "model" in known:
        return "Name the LoRA adapter as the `model`; GET /v1/models lists those of this server."
    if name in FEATURES:
        return f"{FEATURES[name]} is not supported by this server."
    if RENAMED.get(name) in known:
        return f"Use {RENAMED[name]}."
    if option := template_advice(name, known):
        return option
    similar = get_close_matches(name, known, n=1, cutoff=0.8) if len(name) <= MAX_COMPARED_CHARS else ()
    return f"Did you mean {similar[0]}?" if similar else ""


def template_advice(name: str, known: Collection[str]) -> str:
    """Return how to set an option of chat templates; empty for other fields."""
    if name in TEMPLATE_OPTIONS and "chat_template_kwargs" in known:
        return f'If the chat template has this option, set it in chat_template_kwargs: {{"{name}": ...}}.'
    return ""


UNIONS = (("response_format",), ("tool_choice",))
MAX_NAME_CHARS = 200
MAX_SHOWN_CHARS = 50


def invalid_body(model: type[BaseModel], error: ValidationError) -> InvalidRequest:
    """Return the error for the first problem of a body."""
    problem = error.errors(include_url=False, include_context=False)[0]
    location = problem["loc"]
    is_unknown = problem["type"] == "extra_forbidden"  # the last part is the client's name, whatever it looks like
    location = (*(part for part in location[:-1] if not _is_tag(part)), *location[-1:])
    if location and not is_unknown and _is_tag(location[-1]):
        location = location[:-1]
    if location[0:1] in UNIONS:
        location = (*location[:1], *location[2:])  # without the tag of the union
    if not location:
        return InvalidRequest("the body must be a JSON object" if "model" in problem["type"] else problem["msg"])
    name = _path(location)
    if is_unknown:
        text = f"Unrecognized request argument supplied: {name}"
        known = model.model_fields if len(location) == 1 else ()
        more = advice(str(location[0]), known)
        return FieldError(name, f"{text}. {more}" if more else text, "unknown_parameter")
    if location[0] in NeutralFields.__annotations__:
        text = f"{location[0]} is not supported by this server; omit it"
        option = template_advice(str(location[0]), model.model_fields)
        return FieldError(str(location[0]), f"{text}. {option}" if option else text)
    shown = _shown(problem["input"])
    return FieldError(name, f"{name}: {problem['msg']}" + (f", not {shown}" if shown else ""))


def _is_tag(part: int | str) -> bool:
    """Return whether a part of a location is the tag of a union, `<text>`, which is no name of the client's."""
    return isinstance(part, str) and part.startswith("<") and part.endswith(">")


def _shown(value: object) -> str:
    """Return a short scalar as JSON, and nothing for other values."""
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float) else ""
    return shown if len(shown) < MAX_SHOWN_CHARS else ""


def _path(location: tuple[int | str, ...]) -> str:
    """Return a field's path in OpenAI's notation: messages[0].role."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")[:MAX_NAME_CHARS]
