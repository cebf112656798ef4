"""Conversion of a bf16 Qwen3 checkpoint to GGUF, for llama.cpp: `python gguf_conversion.py CHECKPOINT FILE [q8_0]`.

The tokenizer is left out, because requests are token ids. Norms are converted to fp32, as llama.cpp requires; other
tensors keep their bits. With q8_0, llama.cpp's quantiser then replaces the file by a quantised one.
"""

import ctypes
import json
import sys
from collections import defaultdict
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

ARCHITECTURES = {"Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3, "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE}


def main() -> None:
    """Convert. Arguments: the checkpoint's directory, the output file, and optionally q8_0."""
    checkpoint, target, *quantised = sys.argv[1:]
    plain = Path(f"{target}.bf16") if quantised else Path(target)
    write_bf16(Path(checkpoint), plain)
    if quantised:
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
        status = llama_cpp.llama_model_quantize(bytes(plain), target.encode(), ctypes.byref(params))
        plain.unlink()
        if status:
            raise SystemExit(f"llama_model_quantize says {status}")


def write_bf16(checkpoint: Path, target: Path) -> None:
    """Write every tensor under llama.cpp's name; the experts of a layer are stacked into one tensor."""
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    write_metadata(writer, config)
    experts: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for name, tensor in read_tensors(checkpoint).items():
        if ".experts." in name:
            layer, _, rest = name.partition(".experts.")
            number, _, matrix = rest.partition(".")
            experts[f"{layer}.experts.{matrix}"][int(number)] = tensor
        else:
            add(writer, names, name, tensor)
    for name, parts in experts.items():
        add(writer, names, name, np.stack([parts[number] for number in range(len(parts))]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_metadata(writer: gguf.GGUFWriter, config: dict[str, int | float]) -> None:
    """Write the model's shape and the vocabulary size, without a vocabulary."""
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_parameters", config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def read_tensors(checkpoint: Path) -> dict[str, np.ndarray]:
    """Return each tensor's bits as lazily read 16-bit integers."""
    tensors = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(start - 8))
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            if tensor["dtype"] != "BF16":
                raise SystemExit(f"{name} is {tensor['dtype']}, but must be BF16")
            offset = start + tensor["data_offsets"][0]
            tensors[name] = np.memmap(path, np.uint16, "r", offset, tuple(tensor["shape"]))
    return tensors


def add(writer: gguf.GGUFWriter, names: gguf.TensorNameMap, name: str, tensor: np.ndarray) -> None:
    """Add a tensor: vectors in fp32, matrices unchanged."""
    target = names.get_name(name, try_suffixes=(".weight",))
    if target is None:
        raise SystemExit(f"llama.cpp has no name for {name}")
    if tensor.ndim == 1:
        writer.add_tensor(target, (tensor.astype(np.uint32) << 16).view(np.float32))
    else:
        bits = np.ascontiguousarray(tensor).view(np.uint8)
        writer.add_tensor(target, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)


if __name__ == "__main__":
    main()
