"""Families by the architecture that a checkpoint names."""

from difflib import get_close_matches

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import UnsupportedModel
from baton.engine.families.base import Family
from baton.engine.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3, DEEPSEEK_V32, GLM4_MOE_LITE
from baton.engine.families.ernie import ERNIE, ERNIE_MOE
from baton.engine.families.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3_TEXT
from baton.engine.families.gemma4 import GEMMA4, GEMMA4_TEXT
from baton.engine.families.glm import GLM, GLM4, GLM4_MOE
from baton.engine.families.gpt_oss import GPT_OSS
from baton.engine.families.granite import GRANITE, GRANITE_MOE
from baton.engine.families.llama import LLAMA
from baton.engine.families.llama4 import LLAMA4, LLAMA4_TEXT
from baton.engine.families.mamba.bamba import BAMBA
from baton.engine.families.mamba.falcon_h1 import FALCON_H1
from baton.engine.families.mamba.granite import GRANITE_HYBRID
from baton.engine.families.mamba.nemotron_h import NEMOTRON_H
from baton.engine.families.mamba.plain import MAMBA2
from baton.engine.families.minimax import MINIMAX_M2
from baton.engine.families.mistral import MINISTRAL3, MISTRAL, MISTRAL3, MIXTRAL
from baton.engine.families.olmo import OLMO2, OLMO3
from baton.engine.families.olmoe import OLMOE
from baton.engine.families.phi3 import PHI3
from baton.engine.families.qwen.images import QWEN2_5_VL
from baton.engine.families.qwen.recurrent import QWEN3_5, QWEN3_NEXT
from baton.engine.families.qwen.text import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from baton.engine.families.seed_oss import SEED_OSS
from baton.engine.families.smollm3 import SMOLLM3

FAMILIES = (
    *(
        LLAMA,
        LLAMA4,
        LLAMA4_TEXT,
        MISTRAL,
        MISTRAL3,
        MINISTRAL3,
        MIXTRAL,
        QWEN2,
        QWEN2_MOE,
        QWEN2_5_VL,
        QWEN3,
        QWEN3_MOE,
        QWEN3_NEXT,
        QWEN3_5,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        DEEPSEEK_V32,
        PHI3,
        OLMO2,
        OLMO3,
        OLMOE,
        SMOLLM3,
    ),
    *(GEMMA, GEMMA2, GEMMA3, GEMMA3_TEXT, GEMMA4, GEMMA4_TEXT, GPT_OSS),
    *(GRANITE, GRANITE_MOE, GLM, GLM4, GLM4_MOE, GLM4_MOE_LITE, SEED_OSS, ERNIE, ERNIE_MOE, MINIMAX_M2),
    *(NEMOTRON_H, GRANITE_HYBRID, BAMBA, FALCON_H1, MAMBA2),
)

_BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}

HEADLESS, CAUSAL = "Model", "ForCausalLM"  # endings of architectures: Qwen3Model is Qwen3ForCausalLM without lm_head
ENDINGS = (CAUSAL, "ForConditionalGeneration", "LMHeadModel", HEADLESS)
ENCODERS = ("Bert", "BERT", "Roberta", "RoBERTa", "MPNet", "Electra", "T5Encoder", "DebertaV2", "NewModel")


def family_of(architecture: str) -> Family:
    """Return the family of a supported architecture."""
    return _BY_ARCHITECTURE[architecture]


def read_architecture(config: JsonObject) -> str:
    """Return the architecture that a config.json names, that of the model with its head.

    Raises UnsupportedModel, naming the supported architectures and the one that is nearest by its name.
    """
    names = config.texts("architectures")
    name = names[0] if len(names) == 1 else ""
    if name.endswith(HEADLESS) and (causal := name.removesuffix(HEADLESS) + CAUSAL) in _BY_ARCHITECTURE:
        return causal
    if name in _BY_ARCHITECTURE:
        return name
    found = ", ".join(map(shown, names[:3])) or "none named"
    why = " (it is an encoder; embeddings need a decoder)" if any(each in name for each in ENCODERS) else ""
    nearest = _nearest(name)
    closest = f"; the nearest is {nearest}" if nearest else ""
    raise UnsupportedModel(
        f"{config.source}: architecture {found} is not supported{why}, only {', '.join(_BY_ARCHITECTURE)}{closest}"
    )


def _nearest(name: str) -> str | None:
    """Return the supported architecture with the most similar name; the endings, which many share, do not count."""
    stems = {_stem(each): each for each in _BY_ARCHITECTURE}
    found = get_close_matches(_stem(name), stems, 1)
    return stems[found[0]] if found else None


def _stem(name: str) -> str:
    ending = next((each for each in ENDINGS if name.endswith(each)), "")
    return name.removesuffix(ending).lower()
