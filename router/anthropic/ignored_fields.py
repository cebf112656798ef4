"""Request fields of Anthropic that are accepted without effect: some always, others only with neutral values."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from baton.router.anthropic.blocks import CacheControl
from baton.router.openai.ignored_fields import Label
from baton.router.openai.request_body import RequestBody

Object = dict[str, object]


def _no_thread(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("no_thread", "this server keeps no threads; send the whole conversation instead")


Thread = Annotated[None, BeforeValidator(_no_thread)]


class IgnoredFields(RequestBody):
    """Fields for services of Anthropic that this server does not have, or does not need."""

    cache_control: CacheControl | None = None
    compaction: Object | None = None  # like the next field: the conversation is used as the client sends it
    context_management: Object | None = None
    diagnostics: Object | None = None
    inference_geo: Label | None = None
    service_tier: Label | None = None
    speed: Label | None = None
    container: None = None
    fallbacks: None = None
    thread: Thread = None
    mcp_servers: Annotated[list[object], Field(max_length=0, fail_fast=True)] | None = None
