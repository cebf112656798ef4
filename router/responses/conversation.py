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
from baton.router.responses.items import (
    ID_PREFIXES,
    STORED_ITEMS,
    InputItem,
    Json,
    ReferenceItem,
    count_parts,
    stored_item,
)
from baton.router.responses.request import ResponseRequest, SharedFields
from baton.router.responses.store.base import MAX_TURNS, ResponseStore, TenantId
from baton.router.responses.stored import StoredResponse, decode, json_bytes
from baton.router.responses.tools import chat_choice, chat_tools
from baton.rpc.status import Internal

RESPONSE_PREFIX = "resp_"
ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[io]\d+")  # of an item of a response, after whose id it is named
MAX_REFERENCED = 64  # responses whose items a request refers to
MAX_JSON_BYTES = 1 << 24  # of the responses that a request continues and refers to
MAX_PARTS = 1 << 15  # items and parts of items of these responses


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

    def stored_items(self, response_id: str) -> list[Json]:
        """Return the request's items for the store."""
        return [
            stored_item(item, item_id(response_id, item.type, f"i{place}")) for place, item in enumerate(self.items)
        ]


@dataclass(frozen=True, slots=True)
class Records:
    """Content of the records that a request needs, not parsed yet."""

    earlier: Sequence[bytes]  # of the responses that it continues, from the first one
    referenced: Mapping[str, bytes]  # of the responses to whose items it refers, by their ids

    @property
    def num_bytes(self) -> int:
        """Bytes of JSON."""
        return sum(map(json_bytes, self.earlier)) + sum(map(json_bytes, self.referenced.values()))


class ConversationLoader:
    """Reads records of stored responses of one tenant."""

    def __init__(
        self, store: ResponseStore | None, off_reason: str | None, tenant: TenantId, upload: Upload | None = None
    ) -> None:
        """`off_reason`: why there is no store. `upload`: counts what is read, as it counts the body."""
        self._store = store
        self._off_reason = off_reason
        self._tenant = tenant
        self._upload = upload
        self._num_bytes = 0  # of JSON in the records

    async def load(self, body: ResponseRequest) -> Records:
        """Return the records of a request.

        Raises NotStored, StoreLost, Overloaded, Internal, or FieldError if the conversation cannot be continued.
        """
        earlier: Sequence[bytes] = ()
        if body.previous_response_id is not None:
            earlier = await self.chain(body.previous_response_id, PREVIOUS, PREVIOUS_NOT_FOUND)
        return Records(earlier, await self._referenced(body.input))

    async def chain(self, response_id: str, field: str, code: str) -> Sequence[bytes]:
        """Return the records of the conversation that ends with a response, from the first. Raises as `load`.

        `field`, `code`: for errors.
        """
        chain = await self._needed(field).chain(self._tenant, response_id)
        if chain.missing_id is not None:
            named = "Previous response" if field == PREVIOUS else "Response"
            text = f"{named} with id '{response_id}' not found."
            if chain.missing_id != response_id:
                text = f"{named} with id '{response_id}' continues '{chain.missing_id[:128]}', which is not found."
            raise NotStored(text, field, code)
        if chain.is_too_long:
            raise _too_long(field, f"{MAX_TURNS} responses")
        contents = [record.content for record in chain.records]
        self._count(contents, field)
        return contents

    def _count(self, contents: Sequence[bytes], field: str) -> None:
        """Count records. Raises FieldError, or Overloaded if the router's budget for bodies has no room for them."""
        num_bytes = sum(map(json_bytes, contents))
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_JSON_BYTES:
            raise _too_long(field, f"{MAX_JSON_BYTES} bytes")
        if self._upload is not None:
            self._upload.add(num_bytes)

    def _needed(self, field: str) -> ResponseStore:
        if self._store is None:
            raise FieldError(
                field, f"{field} is not available: {self._off_reason}; send the whole conversation in input"
            )
        return self._store

    async def _referenced(self, items: Sequence[InputItem]) -> Mapping[str, bytes]:
        """Return the records of the responses to whose items the items refer, by the responses' ids."""
        found: dict[str, bytes] = {}
        wanted: set[str] = set()
        for place, item in enumerate(items):
            if not isinstance(item, ReferenceItem):
                continue
            field = _reference_field(place)
            if item.id in wanted:  # each reference is replaced by the item, which was counted once
                text = f"Duplicate item found with id '{item.id[:128]}'. Remove duplicate items from your input."
                raise FieldError(field, text)
            wanted.add(item.id)
            store = self._needed(field)
            response_id = _response_of(item.id)
            if response_id is None:
                raise _not_stored(item.id, field)
            if response_id in found:
                continue
            if len(found) >= MAX_REFERENCED:
                raise FieldError(field, f"{field}: the items belong to over {MAX_REFERENCED} responses; send the items")
            record = await store.get(self._tenant, response_id)
            if record is None:
                raise _not_stored(item.id, field)
            self._count([record.content], field)
            found[response_id] = record.content
        return found


def _reference_field(place: int) -> str:
    """Return the name in errors of a reference in the request's input."""
    return f"input[{place}].id"


def _response_of(wanted: str) -> str | None:
    """Return the id of the response with an item; None if no item has such an id."""
    match = ITEM_ID.fullmatch(wanted)
    return None if match is None else RESPONSE_PREFIX + match[1]


def _too_long(field: str, limit: str) -> FieldError:
    text = f"{field}: the conversation is too long to be stored; begin a new one, and send its items in input"
    return FieldError(field, f"{text} (the limit is {limit})")


def _not_stored(wanted: str, field: str) -> NotStored:
    return NotStored(f"Item with id '{wanted[:128]}' not found. Only items of stored responses are kept.", field)


class _Reader:
    """Parser of records, which counts the items and their parts in all of them."""

    def __init__(self) -> None:
        self._num_parts = 0

    def read(self, content: bytes, field: str) -> StoredResponse:
        """Return the response in a record. Raises FieldError for too many items and parts, and Internal."""
        response = decode(content)
        self._num_parts += count_parts(response.items)
        if self._num_parts > MAX_PARTS:
            raise _too_long(field, f"{MAX_PARTS} items and parts of items")
        return response


def read_responses(contents: Sequence[bytes], field: str) -> list[StoredResponse]:
    """Return the responses in the records of a conversation; takes long, like `decode`.

    `field`: for errors. Raises FieldError for too many items and parts of items, and Internal for damaged records.
    """
    reader = _Reader()
    return [reader.read(content, field) for content in contents]


def read_conversation(body: ResponseRequest, records: Records) -> Conversation:
    """Parse a request's records, and replace references by the items that they stand for; takes long, like `decode`.

    Raises NotStored, FieldError for too many items and parts of items, and Internal for damaged records.
    """
    reader = _Reader()
    earlier = [reader.read(content, PREVIOUS) for content in records.earlier]
    known: dict[str, Mapping[object, Json]] = {}  # items of each response, by their ids
    items: list[InputItem] = []
    for place, item in enumerate(body.input):
        if not isinstance(item, ReferenceItem):
            items.append(item)
            continue
        field, response_id = _reference_field(place), _response_of(item.id)
        assert response_id is not None
        if response_id not in known:
            response = reader.read(records.referenced[response_id], field)
            known[response_id] = {each.get("id"): each for each in response.items}
        found = known[response_id].get(item.id)
        if found is None:
            raise _not_stored(item.id, field)
        items += stored_items([found])
    return Conversation(earlier, items)


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
