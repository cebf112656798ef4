"""The `/v1/responses` route."""

from dataclasses import dataclass
from functools import partial

from baton.router.errors import FieldError
from baton.router.generation import Generation
from baton.router.http.body_reader import BodyReader
from baton.router.http.exchange import Exchange
from baton.router.openai.chat import ChatApi, ChatRequest
from baton.router.responses.conversation import (
    ConversationLoader,
    Records,
    chat_messages,
    chat_request,
    new_response_id,
    read_conversation,
)
from baton.router.responses.field_names import FieldNames
from baton.router.responses.request import ResponseRequest
from baton.router.responses.response_object import ResponseObject
from baton.router.responses.saver import ResponseSaver
from baton.router.responses.shape import ResponsesShape
from baton.router.responses.store.base import tenant_of
from baton.router.responses.store.factory import off_reason
from baton.router.responses.stored import PackedInput, pack
from baton.router.responses.storing_exchange import StoringExchange
from baton.router.service import RouterService

ITEM_BYTES = 1 << 10  # of a body that take as long to parse as an item takes to be converted and compressed
RECORD_WEIGHT = 2  # bytes of a body that take as long to parse as one of a record, which may have tiny items
MAX_LOGPROBS = 1 << 17  # of one response; a token and its best candidates, each some 100 bytes of JSON


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request, ready to run."""

    chat: ChatRequest
    names: FieldNames
    packed: PackedInput | None  # the request's items for the store; None: the response is not stored


class ResponsesApi:
    """Handler of requests for responses."""

    def __init__(self, service: RouterService, chat: ChatApi, reader: BodyReader) -> None:
        self._service = service
        self._chat = chat
        self._reader = reader
        self._off_reason = off_reason(service.config)

    async def create(self, body: ResponseRequest, exchange: Exchange) -> None:
        """Generate a response, send it, and store it unless the request says otherwise."""
        service = self._service
        model = await service.models.find(body.model)
        body.check()
        tenant, response_id = tenant_of(exchange.client.key), new_response_id()
        loader = ConversationLoader(service.response_store, self._off_reason, tenant, exchange.upload)
        store = service.response_store if body.store else None
        records = await loader.load(body)
        stored_id = None if store is None else response_id
        num_body_bytes = 0 if exchange.upload is None else exchange.upload.num_bytes  # with the records
        weight = max(num_body_bytes, RECORD_WEIGHT * records.num_bytes, ITEM_BYTES * len(body.input))
        prepared = await self._reader.convert(exchange, weight, partial(_prepare, body, records, stored_id))
        del records
        body.input = []
        response = ResponseObject(response_id, body, model.name, store is not None)
        shape: ResponsesShape | None = None

        def make_shape(generation: Generation) -> ResponsesShape:
            nonlocal shape
            _check_logprobs(generation)
            num_top, with_reasoning = body.num_logprobs, body.include_reasoning
            shape = ResponsesShape(
                response_id, response, generation, prepared.names, model.tokenizer, num_top, with_reasoning
            )
            return shape

        if store is not None and prepared.packed is not None:
            saver = ResponseSaver(store, tenant, response_id, body.previous_response_id, prepared.packed)
            exchange = StoringExchange(exchange, lambda: saver.save(None if shape is None else shape.result))
        try:
            await self._chat.respond(model, prepared.chat, exchange, make_shape)
        except Exception as error:
            if (renamed := prepared.names.renamed(error)) is error:
                raise
            raise renamed from error


def _check_logprobs(generation: Generation) -> None:
    """Raise FieldError for more logprobs than the end of a stream, which repeats them, should have."""
    sampling = generation.sampling
    num_logprobs = 0 if sampling.logprobs is None else sampling.max_tokens * (1 + sampling.logprobs)
    if num_logprobs > MAX_LOGPROBS:
        text = f"the response may have {num_logprobs} logprobs, over the limit of {MAX_LOGPROBS}"
        raise FieldError("top_logprobs", f"{text}; ask for fewer, or for a smaller max_output_tokens")


def _prepare(body: ResponseRequest, records: Records, response_id: str | None) -> _Prepared:
    """`response_id`: None if the response is not stored. Raises InvalidRequest or Internal."""
    conversation = read_conversation(body, records)
    messages = chat_messages(body, conversation)
    names = FieldNames(messages.names)
    chat = chat_request(body, messages, names)
    return _Prepared(chat, names, None if response_id is None else pack(conversation.stored_items(response_id)))
