"""The rows of the matrix: features, by the workers on which they are tested."""

from tests.integration.matrix import bodies
from tests.integration.matrix.bodies import GREEDY, SEEDED, WHOLE, prompt, repeated_prompt, text_prompt
from tests.integration.matrix.cluster import ADAPTER, DRAFT_MODEL
from tests.integration.matrix.feature import CHAT, ClusterSpec, Feature, Status, Untested
from tests.integration.matrix.moves import MOVES

SHARDED = ("--kv-shards=2",)  # workers of one rank and of two then have the same blocks


def refused(reason: str, evidence: str) -> Untested:
    """Return a cell that a worker refuses when it starts."""
    return Untested(Status.REFUSED, reason, evidence)


ADAPTER_TEST = Untested(
    Status.ELSEWHERE,
    "the row's adapter changes experts, which several workers cannot share then",
    "tests/integration/handover/test_expert_parallel.py",
)
NO_EXPERTS = {"EP 2": refused("the model has no experts", "expert_parallel: .* without experts to spread")}
INT8_SHARDS = Untested(
    Status.NOT_APPLICABLE,
    "other tokens: ranks have one rank's weights, but round their columns of activations with scales of their own",
)
EMBEDDING_TEST = Untested(Status.ELSEWHERE, "embeddings are no streams", "tests/integration/http/test_embeddings.py")
EMBEDDING_MOVES = ("local", "prefix hit", "prefill killed")
ONE_WORKER = Untested(Status.NOT_APPLICABLE, "one prefill worker computes an embedding; no KV moves")


def of_model(name: str, tokens: list[int]) -> Feature:
    """Return a feature that is a property of the model or its KV: with a sampled request."""
    return Feature(name, {"prompt": tokens, **SEEDED, **WHOLE})


PLAIN = ClusterSpec(
    "requests",
    "bundled",
    (
        Feature("greedy", {"prompt": text_prompt(1), **GREEDY, **WHOLE}),
        Feature("seeded", {"prompt": text_prompt(2), **SEEDED, **WHOLE}),
        Feature("penalties", bodies.PENALISED),
        Feature("logprobs", {"prompt": text_prompt(4), **SEEDED, **WHOLE, "logprobs": 2}),
        Feature("stop strings", bodies.STOPPED),
        Feature("min_tokens", bodies.SHORTEST),
        Feature("n = 2", {"prompt": text_prompt(9), **SEEDED, **WHOLE, "n": 2}, num_completions=2),
        Feature("grammar", bodies.GRAMMAR),
        Feature("JSON schema", bodies.SCHEMA),
        Feature("tool calls", bodies.TOOL_CALL, CHAT),
    ),
    SHARDED,
    router={"tool_call_parser": "hermes", "reasoning_parser": "none"},
    small_pool_blocks=46,
    longest=704,
)
REQUESTS = (
    PLAIN,
    ClusterSpec(
        "reasoning",
        "thinking",
        (Feature("reasoning", bodies.REASONING, CHAT),),
        SHARDED,
        router={"tool_call_parser": "none", "reasoning_parser": "deepseek_r1"},
    ),
    ClusterSpec(
        "LoRA adapter",
        "bundled",
        (Feature("LoRA adapter", {"model": ADAPTER, "prompt": text_prompt(11), **SEEDED, **WHOLE}),),
        (*SHARDED, "--enable-lora"),
        router={"enable_lora": True},
        untested={"EP 2": ADAPTER_TEST},
    ),
    ClusterSpec(
        "activated LoRA adapter",
        "bundled",
        (Feature("activated LoRA adapter", {"model": ADAPTER, "prompt": text_prompt(22), **SEEDED, **WHOLE}),),
        (*SHARDED, "--enable-lora"),
        router={"enable_lora": True},
        invocation=tuple(text_prompt(22)[50:53]),
    ),
)
DRAFTS = (
    ClusterSpec(
        "n-gram drafts",
        "bundled",
        (Feature("n-gram drafts", {"prompt": repeated_prompt(), **GREEDY, **WHOLE}),),
        SHARDED,
        ('--speculative-config={"method": "ngram", "num_speculative_tokens": 6}',),
    ),
    ClusterSpec(
        "draft model",
        "bundled",
        (Feature("draft model", {"prompt": repeated_prompt(), **GREEDY, **WHOLE}),),
        SHARDED,
        (f'--speculative-config={{"method": "draft_model", "model": "{DRAFT_MODEL}", "num_speculative_tokens": 4}}',),
        usual_moves=(),
    ),
    ClusterSpec(
        "drafts, recurrent state",
        "qwen3-next",
        (Feature("drafts, recurrent state", bodies.BIASED),),
        (*SHARDED, "--state-checkpoint-tokens=32"),
        ('--speculative-config={"method": "ngram", "num_speculative_tokens": 6}',),
        small_pool_blocks=45,
        usual_moves=("prefix hit",),
    ),
)
KV_TYPES = (
    ClusterSpec(
        "int8 KV",
        "bundled",
        (of_model("int8 KV", text_prompt(12)),),
        (*SHARDED, "--kv-cache-dtype=int8"),
        usual_moves=(),
    ),
    ClusterSpec(
        "int4 KV",
        "bundled",
        (of_model("int4 KV", text_prompt(13)),),
        (*SHARDED, "--kv-cache-dtype=int4"),
    ),
)
WEIGHTS = (
    ClusterSpec(
        "int8 weights",
        "bundled",
        (of_model("int8 weights", text_prompt(14)),),
        (*SHARDED, "--quantization=int8"),
        untested={"TP 2": INT8_SHARDS},
        needs_vnni=True,
    ),
    ClusterSpec(
        "int4 weights",
        "bundled",
        (of_model("int4 weights", text_prompt(15)),),
        (*SHARDED, "--quantization=int4"),
        usual_moves=(),
    ),
    ClusterSpec(
        "GPTQ",
        "gptq",
        (of_model("GPTQ", prompt(16)),),
        SHARDED,
        untested=NO_EXPERTS,
        usual_moves=("TP 2",),
    ),
    ClusterSpec("GGUF", "gguf", (of_model("GGUF", text_prompt(17)),), SHARDED),
)
MODELS = (
    ClusterSpec(
        "images",
        "images",
        (Feature("images", bodies.IMAGE, CHAT),),
        SHARDED,
        untested=NO_EXPERTS,
        usual_moves=("pull", "decode killed", "prefill killed", "drained", "role change"),  # they share workers
    ),
    ClusterSpec(
        "sliding window",
        "gemma3",
        (of_model("sliding window", prompt(18)),),
        (*SHARDED, "--hybrid-kv-cache"),
        small_pool_blocks=20,  # each has KV of all layers, of which windows give back most
        longest=240,
        untested=NO_EXPERTS,
        usual_moves=("shared memory", "restart"),
    ),
    ClusterSpec(
        "recurrent state",
        "qwen3-next",
        (of_model("recurrent state", prompt(19)),),
        (*SHARDED, "--state-checkpoint-tokens=32"),
        small_pool_blocks=45,
        usual_moves=("NIXL", "preemption"),
    ),
    ClusterSpec(
        "latent attention",
        "deepseek-v3",
        (of_model("latent attention", prompt(20)),),
        usual_moves=("EP 2",),
    ),
    ClusterSpec(
        "mixture of experts",
        "mixtral",
        (of_model("mixture of experts", prompt(21)),),
        SHARDED,
        usual_moves=("TCP", "staged"),
    ),
)
ELSEWHERE = (
    ClusterSpec(
        "embeddings",
        "",
        (Feature("embeddings", {}),),
        untested={move.name: EMBEDDING_TEST if move.name in EMBEDDING_MOVES else ONE_WORKER for move in MOVES},
    ),
)
# A test file each, because files run in parallel; the page has the rows in this order.
CLUSTERS = (*REQUESTS, *DRAFTS, *KV_TYPES, *WEIGHTS, *MODELS, *ELSEWHERE)
