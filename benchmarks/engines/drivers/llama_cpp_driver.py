"""llama.cpp through its C interface, with the continuous batching of its server.

A batch has the next token of every decoding sequence, then as much of the waiting prompts as fits. With prefix caching
a request goes to the free slot with the longest common prefix, which it reuses, as in the server. With a store, a saved
state that has more of the prompt replaces the slot's; see `llama_cpp_states`.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import llama_cpp
import numpy as np
from driver import NewTokens, Setting, serve
from llama_cpp_states import saved_states

BATCH_TOKENS = 2048  # this and the next are the server's defaults
MICRO_BATCH_TOKENS = 512
CONTEXT_STEP = 256  # tokens; each sequence's context is rounded up to a multiple


@dataclass(slots=True)
class SlotRequest:
    """A request in a slot of the KV cache."""

    request: int
    token_ids: list[int]  # prompt, then output
    num_computed: int
    num_left: int  # output tokens to come


class LlamaCppEngine:
    """Owner of a model, a context and its sequences, by slot number."""

    version = f"llama-cpp-python {llama_cpp.__version__}"

    def __init__(self, setting: Setting) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            setting.model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"{setting.model} could not be loaded")
        self._context = llama_cpp.llama_init_from_model(self._model, context_params(setting))
        if not self._context:
            raise RuntimeError("the context could not be created")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._sequences: dict[int, SlotRequest] = {}
        self._free_slots: dict[int, list[int]] = {slot: [] for slot in range(setting.max_num_seqs)}  # cached tokens
        self._keeps = setting.prefix_caching
        self._states = saved_states(setting)

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        """Add a request in a free slot; there is a slot for each concurrent request."""
        slot = max(self._free_slots, key=lambda slot: _num_common(self._free_slots[slot], prompt))
        num_known = _num_common(self._free_slots.pop(slot), prompt)
        saved = [_num_common(token_ids, prompt) for token_ids in self._states.tokens()]
        if max(saved, default=0) > num_known:
            num_known = max(saved)
            llama_cpp.llama_memory_seq_rm(self._memory, slot, 0, -1)
            self._states.restore(self._context, slot, saved.index(num_known))
        num_kept = min(num_known, len(prompt) - 1)  # the last gives the logits
        llama_cpp.llama_memory_seq_rm(self._memory, slot, num_kept, -1)
        self._sequences[slot] = SlotRequest(request, list(prompt), num_kept, num_output_tokens)

    def step(self) -> Iterable[NewTokens]:
        """Compute one batch."""
        rows = self._fill_batch()
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        return [self._take(slot, row) for slot, row in rows.items()]

    def _fill_batch(self) -> dict[int, int]:
        """Fill the batch, and return the row of each slot's last token, if it is in the batch."""
        self._batch.n_tokens = 0
        rows = {}
        for slot, sequence in sorted(self._sequences.items(), key=lambda item: _missing(item[1]) > 1):
            num_new = min(_missing(sequence), BATCH_TOKENS - self._batch.n_tokens)
            is_whole = num_new == _missing(sequence)
            for position in range(sequence.num_computed, sequence.num_computed + num_new):
                self._append(slot, sequence.token_ids[position], position)
            sequence.num_computed += num_new
            if is_whole and num_new:
                rows[slot] = self._batch.n_tokens - 1
                self._batch.logits[rows[slot]] = 1
        return rows

    def _append(self, slot: int, token_id: int, position: int) -> None:
        row = self._batch.n_tokens
        self._batch.token[row], self._batch.pos[row], self._batch.logits[row] = token_id, position, 0
        self._batch.n_seq_id[row], self._batch.seq_id[row][0] = 1, slot
        self._batch.n_tokens += 1

    def _take(self, slot: int, row: int) -> NewTokens:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        token_id = int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())
        sequence = self._sequences[slot]
        sequence.token_ids.append(token_id)
        sequence.num_left -= 1
        if not sequence.num_left:
            del self._sequences[slot]
            known = sequence.token_ids[: sequence.num_computed]
            self._free_slots[slot] = known if self._keeps else []
            if known not in self._states.tokens():
                self._states.save(self._context, slot, known)
        return NewTokens(sequence.request, [token_id])


def context_params(setting: Setting) -> ctypes.Structure:
    """Return parameters that give each sequence a separate part of the cache, as in the server with slots."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = setting.max_num_seqs * -(-setting.max_model_len // CONTEXT_STEP) * CONTEXT_STEP
    params.n_batch = BATCH_TOKENS
    params.n_ubatch = MICRO_BATCH_TOKENS
    params.n_seq_max = setting.max_num_seqs
    params.n_threads = params.n_threads_batch = setting.num_threads
    if setting.kv_cache == "int8":
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_Q8_0
    return params


def _num_common(kept: Sequence[int], prompt: Sequence[int]) -> int:
    length = 0
    for left, right in zip(kept, prompt, strict=False):
        if left != right:
            break
        length += 1
    return length


def _missing(sequence: SlotRequest) -> int:
    return len(sequence.token_ids) - sequence.num_computed


if __name__ == "__main__":
    serve(LlamaCppEngine)
