"""How much one request may ask for, whichever front end it comes through."""

from collections.abc import Mapping, Sequence

from baton.router.config import RouterConfig
from baton.router.errors import FieldError
from baton.router.generation import Generation
from baton.rpc.names import NAME_RULE, is_name

MAX_STOP_CHARS = 1024
MAX_TEXT_CHARS = 1024  # of a text that says whose or which a request is
MAX_ENTRIES = 4096  # of any list or object among a request's options
MAX_TEMPLATE_OPTIONS = 64
MAX_METADATA = 16  # of pairs, as OpenAI has it
MAX_METADATA_NAME_CHARS = 64
MAX_METADATA_CHARS = 512
MAX_HELD_LOGPROBS = 1 << 22  # of one answer, which are in memory together at its end


def check_choices(config: RouterConfig, num_prompts: int, n: int) -> None:
    """Raises FieldError for more choices than are ever taken from one request."""
    limit = min(config.max_choices, config.max_inflight)
    if num_prompts * n > limit:
        text = f"n is {n}" + (f" for each of {num_prompts} prompts" if num_prompts > 1 else "")
        raise FieldError("n", f"{text}, over the limit of {limit} choices of one request")


def check_stop(config: RouterConfig, stop: Sequence[str]) -> None:
    """Raises FieldError for stop strings that are too many, too long or empty."""
    if len(stop) > config.max_stop:
        raise FieldError("stop", f"stop has {len(stop)} strings, over the limit of {config.max_stop}")
    if any(not 0 < len(each) <= MAX_STOP_CHARS for each in stop):
        raise FieldError("stop", f"stop has a string that has not 1 to {MAX_STOP_CHARS} characters")


def check_text(field: str, text: str | None) -> None:
    """Raises FieldError for a text that is longer than what says whose or which a request is."""
    if text and len(text) > MAX_TEXT_CHARS:
        raise FieldError(field, f"{field} has {len(text)} characters, over the limit of {MAX_TEXT_CHARS}")


def check_worker_name(field: str, name: str | None) -> None:
    """Raises FieldError for what no worker can be called."""
    if name and not is_name(name):
        raise FieldError(field, f"{field} must be {NAME_RULE}")


def check_metadata(metadata: object) -> None:
    """Raises FieldError for more metadata than OpenAI takes; nobody reads it here."""
    if not isinstance(metadata, Mapping):
        return
    if len(metadata) > MAX_METADATA:
        raise FieldError("metadata", f"metadata has {len(metadata)} entries, over the limit of {MAX_METADATA}")
    for name, value in metadata.items():
        if len(name) > MAX_METADATA_NAME_CHARS or (isinstance(value, str) and len(value) > MAX_METADATA_CHARS):
            text = f"names of {MAX_METADATA_NAME_CHARS} and values of {MAX_METADATA_CHARS} characters"
            raise FieldError("metadata", f"metadata has an entry over the limit of {text}")


def check_template_options(options: Mapping[str, object] | None) -> None:
    """Raises FieldError for too many options of a chat template."""
    if options is not None and len(options) > MAX_TEMPLATE_OPTIONS:
        name = "chat_template_kwargs"
        raise FieldError(name, f"{name} has {len(options)} entries, over the limit of {MAX_TEMPLATE_OPTIONS}")


def check_logprobs(generations: Sequence[Generation], whole: bool) -> None:
    """Raises FieldError for more logprobs than are held for one answer; `whole`: those of its output are held too."""
    num_held = 0
    for generation in generations:
        sampling = generation.sampling
        if sampling.prompt_logprobs is not None:
            num_held += len(generation.token_ids) * (1 + sampling.prompt_logprobs)
        if sampling.logprobs is not None and whole:
            num_held += generation.request.n * sampling.max_tokens * (1 + sampling.logprobs)
    if num_held > MAX_HELD_LOGPROBS:
        text = f"the answer may have {num_held} logprobs, over the limit of {MAX_HELD_LOGPROBS}"
        raise FieldError("logprobs", f"{text}; ask for fewer, for a smaller max_tokens, or for a stream")


def context_error(field: str, max_model_len: int, num_tokens: int) -> FieldError:
    """The error for a prompt that leaves no room in the context, in the words that OpenAI's clients look for."""
    return FieldError(
        field,
        f"This model's maximum context length is {max_model_len} tokens. However, your request has {num_tokens} "
        "input tokens. Please reduce the length of the input messages.",
    )
