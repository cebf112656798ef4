"""Limits that a request must meet to run in an engine at all."""

from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidRequest
from baton.engine.kv.block_manager import BlockManager
from baton.engine.pooling.config import PoolingConfig
from baton.engine.request import Request
from baton.engine.vision.image import check_images


def check_fits_model(request: Request, model: ModelConfig, pooling: PoolingConfig | None, *, generates: bool) -> None:
    """Raise InvalidRequest if the model cannot compute the request. pooling: of the model's embeddings, if any."""
    request.sampling.validate(model.vocab_size)
    if not all(0 <= token_id < model.vocab_size for token_id in request.token_ids):
        raise InvalidRequest(f"a prompt token id is out of range; valid ids are 0 to {model.vocab_size - 1}")
    check_images(request.images, request.token_ids, request.num_prompt_tokens, model.vision)
    if request.pooling is None:
        if not generates:
            raise InvalidRequest("the model only makes embeddings: its checkpoint has no lm_head")
    elif pooling is None:
        raise InvalidRequest("the model makes no embeddings; set pooling if it should")
    else:
        pooling.check(request.pooling)


def check_request(request: Request, blocks: BlockManager, max_model_len: int) -> None:
    """Raise InvalidRequest if the request could never run.

    One that is pooled may fill the context; others must leave room for a token.
    """
    if not 0 < request.num_prompt_tokens <= request.num_tokens:
        raise InvalidRequest("a prompt needs at least one token")
    most = request.num_tokens
    if request.pooling is not None:
        if request.num_tokens > max_model_len:
            raise InvalidRequest(
                f"the input has {request.num_tokens} tokens, but the context has at most {max_model_len}"
            )
    else:
        if request.num_tokens >= max_model_len:
            raise InvalidRequest(
                f"the prompt has {request.num_tokens} tokens, but must leave room for one more in the context of "
                f"{max_model_len} tokens"
            )
        if request.num_output_tokens >= request.sampling.max_tokens:
            raise InvalidRequest(f"the request has its {request.sampling.max_tokens} output tokens already")
        most = min(request.num_prompt_tokens + request.sampling.max_tokens, max_model_len)
    needed, usable = blocks.num_blocks_for(most) + 2 * blocks.groups.num_state_blocks, blocks.num_usable
    if needed > usable:
        raise InvalidRequest(
            f"prompt and output of up to {most} tokens need {needed} blocks of KV, but the pool has {usable}; "
            f"ask for fewer tokens or raise kv_cache_memory_bytes"
        )
