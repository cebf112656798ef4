"""Tensors of GGUF files under the names of transformers' checkpoints."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from baton.engine.checkpoint.gguf.header import GgufHeader, read_header
from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.errors import InvalidCheckpoint

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
EXPERTS = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}
UNUSED = ("rope_freqs.weight",)  # the config has it
NAME = re.compile(
    r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+?)(?P<stacked>_exps)?(?:\.(?P<expert>\d+))?\.(?P<kind>weight|bias)"
)
SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
MAX_EXPERTS = 4096  # of a layer
MAX_PARTS = 999


def read_gguf_tensors(files: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return all tensors of a model's files by name. Raises InvalidCheckpoint or UnsupportedModel."""
    found: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in renamed(read_header(file)):
            if tensor.name in found:
                raise InvalidCheckpoint(f"{tensor.name} is in {found[tensor.name].file.name} and in {file.name}")
            found[tensor.name] = tensor
    return found


def renamed(header: GgufHeader) -> Iterator[StoredTensor]:
    """Return a file's tensors under transformers' names; stacked experts as one tensor each, unknown names as is."""
    for tensor in header.tensors:
        if tensor.name not in UNUSED:
            yield from _renamed(tensor)


def model_name(path: Path) -> str:
    """Return the name of a model in a GGUF file, without the number of one of several files."""
    match = SPLIT.fullmatch(path.name)
    return path.stem if match is None else match["stem"]


def all_parts(path: Path) -> list[Path]:
    """Return all files of a model, given any of them: names end in -00001-of-00003.gguf if there are several.

    Raises InvalidCheckpoint if one is missing.
    """
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= MAX_PARTS:
        raise InvalidCheckpoint(f"{path}: its name says {count} files, but there must be from 1 to {MAX_PARTS}")
    parts = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    for part in parts:
        if not part.is_file():
            raise InvalidCheckpoint(f"{path} is one of {count} files, but {part.name} is missing")
    return parts


def _renamed(tensor: StoredTensor) -> Iterator[StoredTensor]:
    match = NAME.fullmatch(tensor.name)
    if match is None:
        yield tensor
        return
    layer, part, kind = match["layer"], match["part"], match["kind"]
    if layer is None:
        is_plain = part in TOP and not match["stacked"] and not match["expert"]
        yield replace(tensor, name=f"{TOP[part]}.{kind}") if is_plain else tensor
        return
    prefix = f"model.layers.{int(layer)}"
    if match["stacked"] and part in EXPERTS and len(tensor.shape) == 3:
        if tensor.shape[0] > MAX_EXPERTS:
            raise InvalidCheckpoint(f"{tensor.file}: {tensor.name} has {tensor.shape[0]} experts, over {MAX_EXPERTS}")
        for expert in range(tensor.shape[0]):
            size = tensor.num_bytes // tensor.shape[0]
            name = f"{prefix}.mlp.experts.{expert}.{EXPERTS[part]}.{kind}"
            yield StoredTensor(name, tensor.file, tensor.dtype, tensor.shape[1:], tensor.offset + expert * size, size)
    elif match["expert"] and part in EXPERTS:  # as older converters wrote Mixtral's
        yield replace(tensor, name=f"{prefix}.mlp.experts.{int(match['expert'])}.{EXPERTS[part]}.{kind}")
    elif part in IN_LAYER and not match["stacked"] and not match["expert"]:
        yield replace(tensor, name=f"{prefix}.{IN_LAYER[part]}.{kind}")
    else:
        yield tensor
