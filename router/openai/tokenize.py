"""`/tokenize` and `/detokenize`, in vLLM's shapes."""

from pydantic import BaseModel

from engine.errors import InvalidRequest
from router.generation import ChatPrompt
from router.openai.errors import FieldError
from router.openai.messages import ChatMessage, template_messages
from router.service import RouterService


class TokenizeRequest(BaseModel):
    """A text, or messages for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None  # None: for a text yes, for messages no
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False
    chat_template_kwargs: dict[str, object] | None = None


class TokenizeAnswer(BaseModel):
    """Tokens of a prompt."""

    count: int
    max_model_len: int | None  # None while no worker is there to say
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(BaseModel):
    """Tokens."""

    model: str | None = None
    tokens: list[int]


class DetokenizeAnswer(BaseModel):
    """The tokens' text."""

    prompt: str


class TokenizeApi:
    """Serves the tokenizer."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    async def tokenize(self, body: TokenizeRequest) -> TokenizeAnswer:
        """Tokens of a text or of messages, as a request would have them."""
        service = self._service
        service.check_model(body.model)
        prompt: str | ChatPrompt
        if body.messages is not None:
            prompt = ChatPrompt(
                messages=template_messages(body.messages),
                add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
                continue_final_message=body.continue_final_message,
                template_options=body.chat_template_kwargs or {},
            )
        elif body.prompt is not None:
            prompt = body.prompt
        else:
            raise InvalidRequest("prompt or messages is needed")
        special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
        tokens = await service.pipeline.tokenize(prompt, special) if prompt else []
        names = [service.tokenizer.token_name(token_id) for token_id in tokens] if body.return_token_strs else None
        return TokenizeAnswer(
            count=len(tokens), max_model_len=service.pool.max_model_len(), tokens=tokens, token_strs=names
        )

    async def detokenize(self, body: DetokenizeRequest) -> DetokenizeAnswer:
        """Text of tokens, special ones included."""
        service = self._service
        service.check_model(body.model)
        if any(not 0 <= token_id < service.model.vocab_size for token_id in body.tokens):
            raise FieldError("tokens", f"tokens has an id outside 0 to {service.model.vocab_size - 1}")
        return DetokenizeAnswer(prompt=await service.tokenizer.decode(body.tokens, skip_special_tokens=False))
