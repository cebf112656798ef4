"""Byte-level BPE tokenizer with a ChatML-like template."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import _compile_jinja_template

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)

CALL_MARKERS = ("<tool_call>", "</tool_call>")

CHAT_TEMPLATE = r"""{%- if tools -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0]['role'] == 'system' -%}{{- messages[0]['content'] + '\n' -}}{%- endif -%}
{{- 'You can call these tools:\n' -}}
{%- for tool in tools -%}{{- tool['function'] | tojson + '\n' -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if not (tools and loop.first and message['role'] == 'system') -%}
{{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') -}}
{%- for call in message['tool_calls'] or [] -%}
{%- if message['content'] or not loop.first -%}{{- '\n' -}}{%- endif -%}
{%- set arguments = call['function']['arguments'] -%}
{{- '<tool_call>\n{"name": "' + call['function']['name'] + '", "arguments": ' -}}
{{- arguments if arguments is string else arguments | tojson -}}
{{- '}\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer (Radford et al. 2019): any string can be encoded and decoded losslessly."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CALL_MARKERS),
        min_frequency=2,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in CALL_MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[START_OF_TURN],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def render(messages: list[dict[str, str]]) -> str:
    """Render a conversation as the chat template does."""
    return "".join(f"{START_OF_TURN}{item['role']}\n{item['content']}{END_OF_TURN}\n" for item in messages)


def render_with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Render a conversation with calls."""
    return str(_compiled().render(messages=messages, tools=tools, add_generation_prompt=False))


def render_call(call: Mapping[str, Any]) -> str:
    """Render a call as the chat template does."""
    function = call["function"]
    text = json.dumps({"name": function["name"], "arguments": function["arguments"]})
    return f"{CALL_MARKERS[0]}\n{text}\n{CALL_MARKERS[1]}"


@cache
def _compiled() -> Any:
    return _compile_jinja_template(CHAT_TEMPLATE)
