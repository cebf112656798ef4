"""Evaluation of the trained model."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast, Qwen3MoeForCausalLM

from bundled_model.conversations import Fact
from bundled_model.text import TrainingText
from bundled_model.tokenizer import render_call
from bundled_model.tool_conversations import Message, build_json_chats, build_tool_chats
from bundled_model.trainer import mean_loss

MAX_ANSWER_TOKENS = 160
NUM_FACTS = 200
NUM_MADE_UP = 100
EVALUATION_SEED = 987_654  # of made-up conversations; others than those of the training


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Results for the model card."""

    held_out_perplexity: float  # per token, on held-out pages
    held_out_bits_per_byte: float
    late_perplexity: float  # in the second half of a full context
    well_known_repeated: float  # trained facts on well-known modules repeated exactly
    others_repeated: float  # the same for other modules
    num_facts: int  # of each kind
    calls_right: float  # calls of the tools that were trained, with other values
    invented_calls_right: float  # the same of tools whose names were not trained
    json_right: float  # JSON answers that are right
    num_made_up: int  # of each of these kinds
    smallest_expert_share: float  # of a layer's tokens; 1 / 8 is uniform
    largest_expert_share: float
    answers: tuple[tuple[str, str], ...]  # questions and greedy answers


@torch.no_grad()
def evaluate(
    model: Qwen3MoeForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    text: TrainingText,
    questions: Sequence[str],
    seed: int,
) -> Evaluation:
    """Evaluate on held-out pages, on some trained facts, and on fixed questions; takes minutes."""
    model.set_experts_implementation("eager")
    pages: list[list[int]] = tokenizer(list(text.held_out_pages))["input_ids"]
    loss = mean_loss(model, pages)
    num_tokens = sum(min(len(page), 512) - 1 for page in pages)
    num_bytes = sum(len(tokenizer.decode(page[1:512]).encode()) for page in pages)
    shares = _expert_shares(model, pages)
    rng = random.Random(seed)
    well_known, others = (rng.sample(facts, NUM_FACTS) for facts in (text.well_known_facts, text.other_facts))
    return Evaluation(
        held_out_perplexity=math.exp(loss),
        held_out_bits_per_byte=loss * num_tokens / num_bytes / math.log(2),
        late_perplexity=math.exp(_late_loss(model, [token for page in pages for token in page])),
        well_known_repeated=_repeated(model, tokenizer, well_known),
        others_repeated=_repeated(model, tokenizer, others),
        num_facts=NUM_FACTS,
        calls_right=_calls_right(model, tokenizer, False),
        invented_calls_right=_calls_right(model, tokenizer, True),
        json_right=_json_right(model, tokenizer),
        num_made_up=NUM_MADE_UP,
        smallest_expert_share=float(shares.min()),
        largest_expert_share=float(shares.max()),
        answers=tuple((question, answer(model, tokenizer, question)) for question in questions),
    )


def answer(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    """Return the greedy answer."""
    return reply(model, tokenizer, [{"role": "user", "content": question}])


def reply(
    model: Qwen3MoeForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the greedy answer to messages."""
    inputs = tokenizer.apply_chat_template(
        list(messages), tools=list(tools) or None, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "repetition_penalty": 1.0}
    output = model.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS, **greedy)
    return str(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


def _repeated(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, facts: Sequence[Fact]) -> float:
    return sum(answer(model, tokenizer, fact.questions[0]) == fact.answer for fact in facts) / len(facts)


def _calls_right(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, invented: bool) -> float:
    chats = build_tool_chats(10 * NUM_MADE_UP, random.Random(EVALUATION_SEED))
    asked = [chat for chat in chats if chat.is_invented is invented and "tool_calls" in chat.messages[1]][:NUM_MADE_UP]
    num_right = 0
    for chat in asked:
        expected = "\n".join(map(render_call, chat.messages[1]["tool_calls"]))
        num_right += reply(model, tokenizer, chat.messages[:1], chat.tools) == expected
    return num_right / len(asked)


def _json_right(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast) -> float:
    chats = build_json_chats(NUM_MADE_UP, random.Random(EVALUATION_SEED))
    return sum(reply(model, tokenizer, chat[:1]) == chat[1]["content"] for chat in chats) / len(chats)


def _late_loss(model: Qwen3MoeForCausalLM, stream: Sequence[int]) -> float:
    length = min(model.config.max_position_embeddings, len(stream))
    tokens = torch.tensor([stream[:length]])
    logits = model(input_ids=tokens, use_cache=False).logits[0, length // 2 : -1].float()
    return float(torch.nn.functional.cross_entropy(logits, tokens[0, length // 2 + 1 :]))


def _expert_shares(model: Qwen3MoeForCausalLM, pages: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the fraction of routed tokens by expert: [num_layers, num_experts]."""
    config = model.config
    counts = torch.zeros(config.num_hidden_layers, config.num_experts)
    for page in pages:
        output = model(input_ids=torch.tensor([page[:512]]), output_router_logits=True, use_cache=False)
        for layer, logits in enumerate(output.router_logits):
            chosen = logits.topk(config.num_experts_per_tok).indices.flatten()
            counts[layer] += torch.bincount(chosen, minlength=config.num_experts)
    return counts / counts.sum(-1, keepdim=True)
