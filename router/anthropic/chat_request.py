"""Conversion of Anthropic's requests to chat requests."""

from collections.abc import Sequence
from typing import Any

from baton.router.anthropic.conversation import Conversation, last_mark
from baton.router.anthropic.request import CountTokensRequest, MessagesRequest
from baton.router.anthropic.tools import chat_choice, check_tools, is_parallel
from baton.router.errors import FieldError
from baton.router.openai.chat import THINKING_OPTIONS, ChatRequest
from baton.router.openai.fields import StreamOptions
from baton.router.openai.messages import ChatMessage, PlainMessage
from baton.router.openai.structured_output import JsonSchemaFormat
from baton.router.output.format import OutputFormat
from baton.router.text.chat_template import ChatTemplate

EFFORT = "reasoning_effort"  # an option of chat templates
# Fields with the same name and meaning in chat requests.
SAME_FIELDS = (
    "model", "max_tokens", "stream", "temperature", "top_p", "top_k", "seed", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "cache_salt", "priority",
)  # fmt: skip


def prompt_request(body: CountTokensRequest, template: ChatTemplate, form: OutputFormat) -> ChatRequest:
    """Return a chat request with the same prompt, whose fields were validated under Anthropic's names.

    Raises FieldError, with Anthropic's names, if the fields contradict each other or the model lacks an option.
    """
    return ChatRequest.model_construct(**_prompt_fields(body, template, form, Conversation(body.system)))


def chat_request(
    body: MessagesRequest, template: ChatTemplate, form: OutputFormat
) -> tuple[ChatRequest, Sequence[ChatMessage | PlainMessage]]:
    """Return the chat request for a message, and its beginning that is marked by `cache_control`.

    Raises FieldError like `prompt_request`.
    """
    conversation = Conversation(body.system)
    fields = _prompt_fields(body, template, form, conversation)
    fields |= {name: getattr(body, name) for name in SAME_FIELDS}
    fields["stop"] = body.stop_sequences
    fields["parallel_tool_calls"] = is_parallel(body.tool_choice)
    if body.stream:
        fields["stream_options"] = StreamOptions(include_usage=True)
    if body.metadata is not None:
        fields["user"] = body.metadata.user_id
    if body.output_config is not None and body.output_config.format is not None:
        schema = {"name": "output", "schema": body.output_config.format.schema_, "strict": True}
        fields["response_format"] = JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": schema})
    return ChatRequest.model_construct(**fields), _marked(body, conversation)


def _marked(body: MessagesRequest, conversation: Conversation) -> Sequence[Any]:
    """Return the messages up to the last mark. Templates show tools in front of them, or with the system prompt."""
    messages = conversation.messages()
    if body.cache_control is not None:
        return messages
    if not conversation.marked and any(tool.cache_control is not None for tool in body.tools):
        return messages[:1] if body.system else ()
    return conversation.marked


def _prompt_fields(
    body: CountTokensRequest, template: ChatTemplate, form: OutputFormat, conversation: Conversation
) -> dict[str, Any]:
    check_tools(body.tools, body.tool_choice)
    marked = max((place for place, message in enumerate(body.messages) if last_mark(message) >= 0), default=-1)
    for place, message in enumerate(body.messages):
        conversation.add(message, place, takes_mark=place == marked)
    is_to_continue = conversation.is_to_continue()
    return {
        "messages": conversation.messages(),
        "add_generation_prompt": not is_to_continue,
        "continue_final_message": is_to_continue,
        "tools": [tool.chat_tool() for tool in body.tools],
        "tool_choice": chat_choice(body.tool_choice),
        "chat_template_kwargs": {**_template_options(body, template, form), **body.chat_template_kwargs},
    }


def _template_options(body: CountTokensRequest, template: ChatTemplate, form: OutputFormat) -> dict[str, object]:
    """Return the template's options for `thinking` and `output_config.effort`.

    Raises FieldError if reasoning is enabled, but the model does not reason as far as template and parser show.
    """
    options: dict[str, object] = {}
    thinking = body.thinking
    effort = None if body.output_config is None else body.output_config.effort
    has_effort = template.has_variable(EFFORT)
    if thinking is not None:
        options = {name: thinking.type != "disabled" for name in THINKING_OPTIONS if template.has_variable(name)}
        if thinking.type == "enabled" and not options and not has_effort and form.reasoning is None:
            text = "thinking is not supported: the model's chat template has no such option; omit it"
            raise FieldError("thinking", text)
    if effort is not None and has_effort:
        options[EFFORT] = template.highest_effort(effort)
    return options
