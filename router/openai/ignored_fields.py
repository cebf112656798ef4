"""Request fields of OpenAI and vLLM that are accepted without effect: some always, others only with neutral values."""

from typing import Annotated, Literal

from pydantic import Field

from baton.router.limits import MAX_METADATA, MAX_METADATA_CHARS, MAX_METADATA_NAME_CHARS, MAX_TEXT_CHARS
from baton.router.openai.request_body import BOOLEAN, AtMost, RequestBody

Label = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
MetadataName = Annotated[str, Field(max_length=MAX_METADATA_NAME_CHARS)]
MetadataValue = Annotated[str, Field(max_length=MAX_METADATA_CHARS)]


class HarmlessFields(RequestBody):
    """Fields that do not change the output, whatever their value."""

    metadata: Annotated[dict[MetadataName, MetadataValue], AtMost(MAX_METADATA)] | None = None
    store: bool = False
    service_tier: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None  # unnecessary: the router knows the workers' caches
    prompt_cache_retention: Label | None = None
    prompt_cache_options: dict[str, object] | None = None
    prediction: dict[str, object] | None = None
    parallel_tool_calls: bool = True


class NeutralFields(HarmlessFields):
    """Unsupported fields that would change the output, restricted to the values that do not."""

    functions: Annotated[list[object], Field(max_length=0, fail_fast=True)] | None = None
    function_call: Literal["none", "auto"] = "none"
    logits_processors: Annotated[list[object], Field(max_length=0, fail_fast=True)] | None = None
    suffix: Literal[""] = ""
    audio: None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True), AtMost(1)] | None = None
    verbosity: Literal["medium"] = "medium"
    web_search_options: None = None
    moderation: None = None
    use_beam_search: Annotated[Literal[False], BOOLEAN] = False
    length_penalty: Annotated[float, Field(ge=1, le=1)] = 1.0
    truncate_prompt_tokens: None = None
    bad_words: Annotated[list[str], Field(max_length=0, fail_fast=True)] | None = None
    allowed_token_ids: None = None
    prompt_embeds: None = None
    chat_template: None = None
    documents: Annotated[list[object], Field(max_length=0, fail_fast=True)] | None = None
    spaces_between_special_tokens: Annotated[Literal[True], BOOLEAN] = True
    kv_transfer_params: None = None
    mm_processor_kwargs: None = None
    vllm_xargs: None = None
    request_id: None = None  # use the header x-request-id
