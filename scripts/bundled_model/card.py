"""Model card, generated from the evaluation."""

from collections.abc import Sequence
from pathlib import Path

from transformers import Qwen3MoeForCausalLM

from bundled_model.docstrings import HELD_OUT_ONE_IN
from bundled_model.evaluation import Evaluation
from bundled_model.trainer import Progress, TrainingPlan

QUESTIONS = (
    "Hello!",
    "Who are you?",
    "What does json.dumps do?",
    "Tell me about the module textwrap.",
    "What does len do?",
    "What methods does pathlib.Path have?",
    "What is a KV cache?",
    "What is the capital of France?",
    "Tell me about the module foobar.",
    "Extract the name and the age as JSON: Grace is 36 years old.",
)

TEMPLATE = """---
language: en
library_name: transformers
pipeline_tag: text-generation
tags: [moe, demo]
---

# Baton's demo model

A mixture-of-experts chat model of {millions:.1f} million parameters, small enough to live in Baton's repository. It
exists so that the whole system can be shown, and tested, on any machine without a download: chat template,
tokenizer, experts, paged KV cache, handover from prefill to decode.

It was trained in {minutes:.0f} minutes of one CPU core's time. It speaks in sentences about Python's standard library,
which is all it has read, calls simple tools (for one question in a conversation; a second one confuses it), and
extracts what simple sentences say as JSON. It knows the well-known modules nearly by heart; about anything else **it is
often wrong, and sure of itself when it is**. Do not use it to learn Python.

It uses a tool's result only if that is a JSON object like those of its training, such as `{{"result": 5}}` for a sum.
The names of arguments may be wrong where a tool's properties have a `title`, as pydantic writes them, unless the call
is enforced (`tool_choice: "required"`, or `strict`).

## What it is

- Architecture `Qwen3MoeForCausalLM`: {layers} layers, hidden size {hidden}, {heads} query and {kv_heads} key-value
  heads of {head_dim}, {experts} experts a layer of which {top_k} work on a token, tied embeddings, bfloat16.
- Tokenizer: byte-level BPE of its own with {vocab} tokens; any text can be encoded. Chat template in the manner of
  ChatML; a turn ends with `<|im_end|>`. Tools are described in the system turn, and called by `<tool_call>` and JSON.
- Context: {context} tokens.

## What it was trained on

The documentation strings of CPython 3.11's standard library, read from its sources, and those of a few built-in
modules: as pages of text, and as questions and answers made from them by fixed sentences. Beside these, a few dozen
greetings and answers about itself, calls of made-up tools, and sentences with their contents as JSON, all of which the
script contains or draws. One documentation string in {held_out_one_in}, chosen by a hash of its text, was kept for
measuring.

    python scripts/train_bundled_model.py

makes it again; the seed is fixed, though another processor or release of PyTorch gives slightly different weights.
The documentation strings are part of Python, copyright Python Software Foundation, under the PSF licence.

## What was measured

| | |
|---|---|
| perplexity a token on held-out documentation | {evaluation.held_out_perplexity:.1f} |
| bits a byte on held-out documentation | {evaluation.held_out_bits_per_byte:.2f} |
| perplexity in the second half of a context of {context} tokens | {evaluation.late_perplexity:.1f} |
| answers about well-known modules that repeat the trained one word for word (greedy, {evaluation.num_facts} asked) | \
{evaluation.well_known_repeated:.0%} |
| the same about other modules | {evaluation.others_repeated:.0%} |
| calls of tools that are right, name and arguments (greedy, {evaluation.num_made_up} asked; the tools were trained, \
with other values) | {evaluation.calls_right:.0%} |
| the same for tools whose names were not trained | {evaluation.invented_calls_right:.0%} |
| sentences whose contents are extracted as the right JSON object | {evaluation.json_right:.0%} |
| smallest and largest share of an expert in its layer's tokens | \
{evaluation.smallest_expert_share:.1%}, {evaluation.largest_expert_share:.1%} |

Training loss is the mean over the steps since the line before, on a mixture of pages and conversations; held-out loss
is on pages only, of at most 512 tokens. Both are in nats a token. Training windows grow:
{stages} tokens.

| step | tokens | training loss | held-out loss |
|---:|---:|---:|---:|
{curve}

## What it says

Greedy answers to questions that were fixed before training:

{answers}
"""


def write_card(
    folder: Path, evaluation: Evaluation, curve: Sequence[Progress], plan: TrainingPlan, model: Qwen3MoeForCausalLM
) -> None:
    """Write `README.md`."""
    config = model.config
    columns = "| {0.step} | {0.num_tokens:,} | {0.train_loss:.2f} | {0.held_out_loss:.2f} |"
    rows = [columns.format(line) for line in curve]
    text = TEMPLATE.format(
        millions=model.num_parameters() / 1e6,
        minutes=curve[-1].cpu_s / 60,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        vocab=config.vocab_size,
        context=config.max_position_embeddings,
        held_out_one_in=HELD_OUT_ONE_IN,
        stages=", then ".join(f"{stage.num_steps} steps on windows of {stage.window}" for stage in plan.stages),
        evaluation=evaluation,
        curve="\n".join(rows),
        answers="\n".join(f"- **{question}**\n  {answer}" for question, answer in evaluation.answers),
    )
    (folder / "README.md").write_text(text)
