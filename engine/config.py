"""Configuration of an engine and its model: plain data, no torch."""

from dataclasses import dataclass, field

from baton.engine.activation import MLPActivation
from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.execution.visible_gpus import visible_gpus
from baton.engine.kv_heads import KVHeads
from baton.engine.lora.config import DTYPES as LORA_DTYPES
from baton.engine.lora.config import LoraConfig
from baton.engine.mamba import Mamba2Config
from baton.engine.mla import MLAConfig
from baton.engine.moe import MoEConfig
from baton.engine.offload.config import KINDS as OFFLOAD_KINDS
from baton.engine.offload.config import OffloadConfig
from baton.engine.rope import RopeConfig, yarn_mscale
from baton.engine.speculation.config import SpeculationConfig
from baton.engine.vision.config import VisionConfig
from baton.settings.options import described, option
from baton.settings.values import JsonText, OptionError

TOKENIZER = "tokenizer.json"
DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")
CHECKPOINT_TOKENS = 512  # default of state_checkpoint_tokens
KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "float32", "int8", "int4", "fp8", "fp8_e4m3")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an engine, under vLLM's names where it has one."""

    model: str = field(metadata=described("Directory of a checkpoint in Hugging Face's format."))
    tokenizer: str | None = option(None, "Directory of the tokenizer. Default: the model's.")
    dtype: str = option(
        "auto",
        "Type of weights and activations; auto is the checkpoint's. CPUs replace float16 (half) by bfloat16, or by "
        "float32 if plain weights are stored in float16.",
        choices=DTYPES,
        synonyms={"half": "float16", "float": "float32"},
    )
    hf_overrides: JsonText | None = option(
        None,
        "Values that replace those of the checkpoint's config.json, as in vLLM: "
        '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}. '
        "Default: none.",
    )
    quantization: str | None = option(
        None,
        "Rounding of plain weights when they are loaded. int8, on CPUs: 8-bit weights and activations; int4: 4-bit "
        "weights in groups of 128. Packed checkpoints (GPTQ, AWQ, GGUF and others) need none. Default: none.",
        choices=("int8", "int4"),
        aliases=("-q",),
    )
    device: str = option("auto", "Device of the model: auto (a GPU if torch sees one), cpu, cuda or cuda:N.")
    block_size: int = option(16, "Tokens per KV block.", minimum=1, maximum=1024)
    kv_cache_memory_bytes: int | None = option(
        None,
        "KV cache size of a worker. Default: a share of the free memory, or on a GPU what gpu_memory_utilization "
        "leaves.",
        minimum=1 << 16,
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Share of a GPU's memory that a worker may use; the KV cache gets what the weights and the largest step "
        "leave. In `baton serve`, workers on the same GPU divide the default.",
        minimum=0.01,
        maximum=1,
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type of the KV cache; auto is the type of the activations. int8, on CPUs, takes about half of bfloat16's "
        "memory, and int4, less exact, somewhat over a quarter; fp8 (fp8_e4m3), on GPUs, half.",
        choices=KV_CACHE_DTYPES,
        synonyms={"fp8_e4m3": "fp8"},
    )
    max_model_len: int | None = option(
        None,
        "Longest prompt plus output in tokens. Default: that of the checkpoint; with LongRoPE the original context.",
        minimum=1,
    )
    max_num_batched_tokens: int | None = option(
        None, "Token budget of an engine step. Default: 256, on a GPU 8192.", minimum=1
    )
    max_num_seqs: int | None = option(None, "Maximum requests in a batch. Default: 64, on a GPU 256.", minimum=1)
    max_num_waiting: int = option(1024, "Maximum requests in the waiting queue; further ones are refused.", minimum=1)
    allow_mixed_quantization: bool = option(
        False,
        "Exchange KV with workers that have differently quantized weights of the same model. Set it on all of them. "
        "Such KV is not what this worker would compute: responses have the header x-baton-mixed-quantization.",
    )
    enable_prefix_caching: bool = option(True, "Keep the KV of finished requests for prompts with the same prefix.")
    hybrid_kv_cache: bool = option(
        False,
        "On CPUs, keep layers with a sliding window or attention in chunks in separate KV blocks, which are freed "
        "behind the window. Equal for all workers that hand KV over to each other.",
    )
    state_checkpoint_tokens: int | None = option(
        None,
        "Tokens between checkpoints of recurrent state, a multiple of block_size: a prefix is found in the cache up to "
        "its last checkpoint. For models with recurrent layers, such as Qwen3-Next or Nemotron-H. Default: 512, in "
        "whole blocks.",
        minimum=1,
    )
    kv_shards: int | None = option(
        None,
        "Shards of a KV block; equal for all workers that hand KV over to each other: the largest number of "
        "tensor-parallel ranks among them. Default: what the ranks need.",
        minimum=1,
        maximum=1024,
        former=("kv_parts",),
    )
    num_threads: int | None = option(
        None,
        "Torch threads of a worker. Default: one per core; in `baton serve`, its share of the cores.",
        minimum=1,
        maximum=4096,
    )
    cores: str | None = option(
        None,
        "CPU cores of the engine, such as 0-3,8; the ranks of a worker divide them among themselves. Default: any; "
        "in `baton serve` on several NUMA nodes, those of one node.",
    )
    pooling: str = option(
        "auto",
        "Pooling of embeddings: the last token's hidden state, the mean of all tokens' or the first token's (cls). "
        "auto: what modules.json of the checkpoint names. none: no embeddings.",
        choices=("auto", "last", "mean", "cls", "none"),
    )
    async_scheduling: bool | None = option(
        None,
        "Launch a step while the previous one is running. Default: on GPUs. Steps with a request that uses top-k, "
        "top-p, penalties, a grammar, logprobs or a LoRA adapter wait for the previous one.",
    )
    enforce_eager: bool = option(False, "On a GPU, decode without CUDA graphs.")
    speculative_config: JsonText | None = option(
        None,
        'Speculative decoding, as in vLLM: {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, '
        '"prompt_lookup_max": 5}, or {"method": "draft_model", "model": "/models/small"}; other methods are suffix, '
        "eagle3, eagle, medusa and mtp. Outputs stay the same. Default: none.",
    )

    enable_lora: bool = option(False, "Serve LoRA adapters.")
    max_loras: int = option(
        8, "LoRA adapters in one batch, and in a GPU's memory; requests for more wait.", minimum=1, maximum=1024
    )
    max_lora_rank: int = option(16, "Largest rank of a LoRA adapter.", minimum=1, maximum=1024)
    max_cpu_loras: int | None = option(
        None,
        "LoRA adapters in a worker's host memory, at least max_loras; others are read again when requests need them. "
        "Default: 4 times max_loras.",
        minimum=1,
    )
    lora_dtype: str = option(
        "auto", "Type of the matrices of LoRA adapters; auto is the type of the activations.", choices=LORA_DTYPES
    )

    weights_offload: str = option(
        "none",
        "Where weights are that do not fit into the memory of the device. disk, on CPUs: layers, or the experts of a "
        "mixture, are read from a file for each step. host, on GPUs: layers are copied from the machine's memory.",
        choices=OFFLOAD_KINDS,
    )
    weights_offload_dir: str | None = option(
        None,
        "Directory on a fast local disk for the file of weights_offload disk, which is as large as the weights and "
        "written at the first start. Default: baton/weights in Hugging Face's assets cache.",
    )
    weights_memory_bytes: int | None = option(
        None,
        "Memory of a worker for weights with weights_offload; the layers that fit stay there. Default: on a CPU what "
        "the KV cache leaves, on a GPU half of the memory that it may use.",
        minimum=1,
    )
    expert_cache_bytes: int | None = option(
        None,
        "Part of weights_memory_bytes for the experts of a mixture with weights_offload disk; the most used ones stay "
        "there. Default: what the other weights leave.",
        minimum=1,
    )

    def __post_init__(self) -> None:
        """Replace the device `auto` by the one it resolves to on this machine. Raises OptionError."""
        if self.allow_mixed_quantization and self.kv_cache_dtype in ("fp8", "fp8_e4m3"):
            raise OptionError(
                "allow_mixed_quantization: the scales of fp8 KV are part of a checkpoint and may differ; set another "
                "kv_cache_dtype"
            )
        if self.state_checkpoint_tokens is not None and self.state_checkpoint_tokens % self.block_size:
            raise OptionError(
                f"state_checkpoint_tokens is {self.state_checkpoint_tokens}, but must be a multiple of block_size "
                f"({self.block_size})"
            )
        SpeculationConfig.parse(self.speculative_config)
        self.lora.check()
        self.offload.check()
        if self.device == "auto":
            object.__setattr__(self, "device", visible_gpus().auto_device)

    @property
    def tokenizer_directory(self) -> str:
        """Directory of the tokenizer: the model's, unless an option names another."""
        return self.tokenizer or self.model

    @property
    def lora(self) -> LoraConfig:
        """Options of LoRA adapters."""
        most = self.max_cpu_loras or 4 * self.max_loras
        return LoraConfig(self.enable_lora, self.max_loras, self.max_lora_rank, most, self.lora_dtype)

    @property
    def offload(self) -> OffloadConfig:
        """Options of weights offload."""
        return OffloadConfig(
            self.weights_offload, self.weights_offload_dir, self.weights_memory_bytes, self.expert_cache_bytes
        )

    @property
    def is_on_cpu(self) -> bool:
        """Whether the device is a CPU."""
        return self.device.split(":")[0] == "cpu"

    @property
    def step_tokens(self) -> int:
        """Token budget of a step. It bounds the prefill that a handover cannot overlap, and the ITL of decodes."""
        return self.max_num_batched_tokens or (256 if self.is_on_cpu else 8192)

    @property
    def checkpoint_tokens(self) -> int:
        """Tokens between checkpoints of recurrent state: a multiple of the block size."""
        return self.state_checkpoint_tokens or -(-CHECKPOINT_TOKENS // self.block_size) * self.block_size

    @property
    def batch_seqs(self) -> int:
        """Maximum number of requests in the batch."""
        return self.max_num_seqs or (64 if self.is_on_cpu else 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A checkpoint's config.json, parsed and validated."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_model_len: int
    dtype: str  # bfloat16, float16, float32
    tie_word_embeddings: bool = False
    may_lack_head: bool = False  # an embedding model, whose checkpoint may lack lm_head
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    # Norms of queries and keys: of each head ("head"), of all heads at once ("all"), or, without weights and only in
    # rotated layers, of each head ("unit").
    qk_norm: str | None = None
    unrotated_layers: frozenset[int] = frozenset()  # layers without a rotary embedding
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of a layer's two outputs before they are added to the residual stream
    attention_multiplier: float | None = None  # default: see attention_scale
    logits_divisor: float = 1.0
    moe: MoEConfig | None = None
    mla: MLAConfig | None = None
    recurrent: DeltaNetConfig | Mamba2Config | None = None  # layers with recurrent state
    layers_without_attention: frozenset[int] = frozenset()
    has_single_parts: bool = False  # a layer is one part: attention, a recurrent net or an MLP (Nemotron-H, Mamba-2)
    attention_output_multiplier: float = 1.0  # of attention next to a recurrent net (Falcon-H1)
    has_output_gate: bool = False  # attention's output is multiplied by a sigmoid, of which queries have the logits
    activation: MLPActivation = "silu"  # of dense MLPs
    mlp_multipliers: tuple[float, float] = (1.0, 1.0)  # of the input of a dense MLP's activation, and of its output
    norm_offset: float = 0.0  # added to the weights of all norms
    spans: tuple[AttentionSpan, ...] = ()  # of each layer's attention; none: all layers attend to the whole context
    local_rope: RopeConfig | None = None  # of layers that do not attend to the whole context, if it is another one
    has_sinks: bool = False  # each head has a sink: a logit that takes part in the softmax without a value
    attention_soft_cap: float | None = None  # bound on attention scores
    logits_soft_cap: float | None = None  # bound on the model's logits
    whole_heads: KVHeads | None = None  # of layers that attend to the whole context, if they differ from the others'
    num_kv_shared_layers: int = 0  # last layers, which attend to the KV of an earlier layer of their span
    shared_intermediate_size: int | None = None  # of the MLPs in those; default: intermediate_size
    has_value_norm: bool = False  # values are normed like keys, without weights
    keys_are_values: bool = False  # layers with `whole_heads` have no projection to values: they are the plain keys
    layer_input_size: int = 0  # width of an input that each layer gets besides the hidden states (Gemma 4)
    layer_input_vocab_size: int = 0
    has_layer_scalars: bool = False  # each layer's output is multiplied by a number
    num_nextn_predict_layers: int = 0  # multi-token prediction layers after the last layer; in the files, not loaded
    eos_token_ids: frozenset[int] = frozenset()
    vision: VisionConfig | None = None  # encoder of images; None: the model takes no images
    stored_quantization: StoredQuantization | None = None  # how the files store FP8 matrices; None: they have none

    @property
    def attention_scale(self) -> float:
        """Factor on attention scores before the softmax."""
        if self.attention_multiplier is not None:
            return self.attention_multiplier
        if self.mla is None:
            return float(self.head_dim**-0.5)
        scale = float(self.mla.qk_head_dim**-0.5)
        if self.rope.kind != "default" and self.rope.mscale_all_dim:
            scale *= yarn_mscale(self.rope.factor, self.rope.mscale_all_dim) ** 2
        return scale

    def span(self, layer: int) -> AttentionSpan:
        """Return the earlier tokens that a layer's tokens attend to."""
        return self.spans[layer] if self.spans else FULL

    def rope_of(self, layer: int) -> RopeConfig:
        """Return the rotary embedding of a layer."""
        return self.rope if self.local_rope is None or self.span(layer) == FULL else self.local_rope

    def kv_heads_of(self, layer: int) -> KVHeads:
        """Return the KV heads of a layer."""
        own = KVHeads(self.num_kv_heads, self.head_dim)
        return self.whole_heads if self.whole_heads is not None and self.span(layer) == FULL else own

    def kv_layer(self, layer: int) -> int:
        """Return the layer whose KV a layer attends to: itself, or the last one with its span that is not shared."""
        own = range(self.num_layers - self.num_kv_shared_layers)
        return layer if layer in own else max(each for each in own if self.span(each) == self.span(layer))

    @property
    def block_heads(self) -> KVHeads:
        """KV heads for which a block has room in every layer: those with the most elements."""
        heads = (KVHeads(self.num_kv_heads, self.head_dim), self.whole_heads)
        return max(filter(None, heads), key=lambda each: each.count * each.width)

    @property
    def default_model_len(self) -> int:
        """Longest context unless an option sets it: LongRoPE's original one, since its longer ones are less exact."""
        original = self.rope.original_max_position_embeddings
        return min(original, self.max_model_len) if self.rope.kind == "longrope" else self.max_model_len

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers that write KV: those with attention that do not share the KV of another."""
        layers = range(self.num_layers - self.num_kv_shared_layers)
        return tuple(layer for layer in layers if layer not in self.layers_without_attention)

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer's MLP is a mixture of experts."""
        return self.moe is not None and layer not in self.moe.dense_layers
