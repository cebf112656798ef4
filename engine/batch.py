"""The tensors of one step."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of several sequences, flattened; sequences with one new token (decodes) come first.

    Tensors are on the model's device; the plain numbers spare a backend any synchronisation.
    """

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64: block id * block_size + offset where the token's KV is written
    query_starts: Tensor  # [num_seqs + 1] int64: first token of each sequence
    context_lens: Tensor  # [num_seqs] int64: tokens with KV after this step, the new ones included
    block_tables: Tensor  # [num_seqs, max_blocks] int64, padded with block 0, which holds nobody's tokens
    logits_indices: Tensor  # [num_logits] int64: tokens whose logits are needed
    query_lens_list: list[int]  # [num_seqs]
    context_lens_list: list[int]  # [num_seqs]
    num_decodes: int  # sequences with one new token, at the front

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences."""
        return int(self.token_ids.shape[0])

    @property
    def num_seqs(self) -> int:
        """Sequences in the step."""
        return len(self.query_lens_list)
