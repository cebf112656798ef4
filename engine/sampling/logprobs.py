"""Log-probabilities of the model's own distribution, for answers that report them."""

import torch
from torch import Tensor

from baton.engine.outputs import PositionLogprobs, TokenLogprob
from baton.engine.sampling.truncation import find_candidates


def position_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> list[PositionLogprobs]:
    """What stands at each position, and the `num_top` most probable tokens there.

    logits: [num_positions, vocab] float32, as the model gave them; token_ids: [num_positions] int64, on its device.
    Equally probable tokens share the better rank.
    """
    log_total = logits.logsumexp(-1, keepdim=True)
    chosen = logits.gather(1, token_ids[:, None])
    ranks = (logits > chosen).count_nonzero(-1) + 1
    top = find_candidates(logits, min(num_top, logits.shape[1]))
    top_ranks = torch.searchsorted(-top.logits, -top.logits) + 1
    columns = zip(
        token_ids.tolist(),
        (chosen - log_total)[:, 0].tolist(),
        ranks.tolist(),
        top.token_ids.tolist(),
        (top.logits - log_total).tolist(),
        top_ranks.tolist(),
        strict=True,
    )
    return [
        PositionLogprobs(
            TokenLogprob(token_id, logprob, rank),
            tuple(TokenLogprob(*candidate) for candidate in zip(ids, logprobs, candidate_ranks, strict=True)),
        )
        for token_id, logprob, rank, ids, logprobs, candidate_ranks in columns
    ]
