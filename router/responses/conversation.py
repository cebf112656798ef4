"""Loads what a request continues or refers to, and makes the request for a chat completion."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from baton.router.admission.body_budget import Upload
from baton.router.errors import FieldError
from baton.router.openai.chat import ChatRequest
from baton.router.openai.invalid_body import invalid_body
from baton.router.responses.chat_messages import ChatMessages
from baton.router.responses.errors import PREVIOUS_NOT_FOUND, NotStored
from baton.router.responses.field_names import PREVIOUS, FieldNames
from baton.router.responses.items import ID_PREFIXES, STORED_ITEMS, InputItem, Json, ReferenceItem, stored_item
from baton.router.responses.request import ResponseRequest, SharedFields
from baton.router.responses.store.base import MAX_TURNS, ResponseStore, TenantId
from baton.router.responses.stored import StoredResponse, decode, json_bytes
from baton.router.responses.tools import chat_choice, chat_tools
from baton.rpc.status import Internal

RESPONSE_PREFIX = "resp_"
ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[io]\d+")  # of an item of a response, after whose id it is named
MAX_REFERENCED = 64  # responses whose items a request refers to
MAX_JSON_BYTES = 1 << 24  # of the responses of one conversation


def new_response_id() -> str:
    """Return a random id, which cannot be guessed."""
    return RESPONSE_PREFIX + secrets.token_hex(16)


def item_id(response_id: str, kind: str, place: str) -> str:
    """Return the id of an item; `place`: i and its number in the input, o and its number in the output."""
    return f"{ID_PREFIXES[kind]}_{response_id.removeprefix(RESPONSE_PREFIX)}{place}"


@dataclass(frozen=True, slots=True)
class Conversation:
    """The conversation that a request continues, and its own items."""

    earlier: Sequence[StoredResponse]  # from the first one
    items: Sequence[InputItem]  # of the request, with references replaced by what they refer to

    @property
    def num_items(self) -> int:
        """Number of items, of earlier responses too."""
        return len(self.items) + sum(len(response.items) for response in self.earlier)

    def stored_items(self, response_id: str) -> list[Json]:
        """Return the request's items for the store."""
        return [
            stored_item(item, item_id(response_id, item.type, f"i{place}")) for place, item in enumerate(self.items)
        ]


class ConversationLoader:
    """Reads stored responses of one tenant."""

    def __init__(
        self, store: ResponseStore | None, off_reason: str | None, tenant: TenantId, upload: Upload | None = None
    ) -> None:
        """`off_reason`: why there is no store. `upload`: counts what is read, as it counts the body."""
        self._store = store
        self._off_reason = off_reason
        self._tenant = tenant
        self._upload = upload

    async def load(self, body: ResponseRequest) -> Conversation:
        """Return the conversation. Raises NotStored, StoreLost, Overloaded, or FieldError if it cannot be continued."""
        earlier: Sequence[StoredResponse] = ()
        if body.previous_response_id is not None:
            earlier = await self.chain(body.previous_response_id, PREVIOUS, PREVIOUS_NOT_FOUND)
        return Conversation(earlier, await self._resolved(body.input))

    async def chain(self, response_id: str, field: str, code: str) -> Sequence[StoredResponse]:
        """Return the responses of the conversation that ends with one, from the first. Raises as `load`.

        `field`, `code`: for errors.
        """
        chain = await self._needed(field).chain(self._tenant, response_id)
        if chain.missing_id is not None:
            named = "Previous response" if field == PREVIOUS else "Response"
            text = f"{named} with id '{response_id}' not found."
            if chain.missing_id != response_id:
                text = f"{named} with id '{response_id}' continues '{chain.missing_id[:128]}', which is not found."
            raise NotStored(text, field, code)
        too_long = f"{field}: the conversation is too long to be stored; begin a new one, and send its items in input"
        if chain.is_too_long:
            raise FieldError(field, f"{too_long} (the limit is {MAX_TURNS} responses)")
        contents = [record.content for record in chain.records]
        if sum(map(json_bytes, contents)) > MAX_JSON_BYTES:
            raise FieldError(field, f"{too_long} (the limit is {MAX_JSON_BYTES} bytes)")
        return await self._decoded(contents)

    async def _decoded(self, contents: Sequence[bytes]) -> Sequence[StoredResponse]:
        """Return the responses in records. Raises Overloaded if the router's budget for bodies has no room for them."""
        if self._upload is not None:
            self._upload.add(sum(map(json_bytes, contents)))
        return await decode(contents)

    def _needed(self, field: str) -> ResponseStore:
        if self._store is None:
            raise FieldError(
                field, f"{field} is not available: {self._off_reason}; send the whole conversation in input"
            )
        return self._store

    async def _resolved(self, items: Sequence[InputItem]) -> Sequence[InputItem]:
        """Return the items with references replaced by what they refer to."""
        known: dict[str, Mapping[object, Json]] = {}  # items of each response, by their ids
        resolved: list[InputItem] = []
        for place, item in enumerate(items):
            if isinstance(item, ReferenceItem):
                item = await self._referenced(item.id, f"input[{place}].id", known)
            resolved.append(item)
        return resolved

    async def _referenced(self, wanted: str, field: str, known: dict[str, Mapping[object, Json]]) -> InputItem:
        store = self._needed(field)
        match = ITEM_ID.fullmatch(wanted)
        response_id = RESPONSE_PREFIX + match[1] if match else ""
        if match and response_id not in known:
            if len(known) >= MAX_REFERENCED:
                raise FieldError(field, f"{field}: the items belong to over {MAX_REFERENCED} responses; send the items")
            record = await store.get(self._tenant, response_id)
            responses = () if record is None else await self._decoded([record.content])
            known[response_id] = {each.get("id"): each for response in responses for each in response.items}
        found = known.get(response_id, {}).get(wanted)
        if found is None:
            raise NotStored(f"Item with id '{wanted[:128]}' not found. Only items of stored responses are kept.", field)
        [item] = stored_items([found])
        return item


def stored_items(items: Sequence[Json]) -> list[InputItem]:
    """Return stored items. Raises Internal if they are none."""
    try:
        return STORED_ITEMS.validate_python(items)
    except ValidationError as error:
        raise Internal("a stored response is damaged; delete it, or begin a new conversation") from error


def chat_messages(body: ResponseRequest, conversation: Conversation) -> ChatMessages:
    """Return the messages of a request. The instructions of earlier responses are left out, as in OpenAI's API."""
    messages = ChatMessages()
    if body.instructions is not None:
        messages.add_text("system", body.instructions, "instructions")
    for response in conversation.earlier:
        for item in stored_items(response.items):
            messages.add(item, PREVIOUS)
    for place, item in enumerate(conversation.items):
        messages.add(item, f"input[{place}]")
    messages.finish()
    return messages


def chat_request(body: ResponseRequest, messages: ChatMessages, names: FieldNames) -> ChatRequest:
    """Return the chat request. Raises InvalidRequest with the client's names."""
    fields: Json = {name: getattr(body, name) for name in SharedFields.model_fields if name in body.model_fields_set}
    fields |= {"messages": messages.messages, "stream": body.stream, "tools": chat_tools(body.tools)}
    optional: Json = {
        "stream_options": {"include_usage": True} if body.stream else None,
        "max_completion_tokens": body.max_output_tokens,
        "tool_choice": chat_choice(body.tool_choice),
        "response_format": body.text.chat_format(),
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "logprobs": True if body.num_logprobs is not None else None,
        "top_logprobs": body.num_logprobs,
    }
    try:
        return ChatRequest.model_validate({**fields, **optional})
    except ValidationError as error:
        raise names.renamed(invalid_body(ChatRequest, error)) from error
