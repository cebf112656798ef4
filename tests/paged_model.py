"""Drives a model over paged KV with any mixture of prefill chunks and decodes."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.attention import int4_rows, int8_rows
from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.execution.batch import Batch, GroupBlocks
from baton.engine.execution.state_blocks import StateBlocks
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models import Model, load_model

CPU = torch.device("cpu")


class PagedModel:
    """A loaded model, a pool full of other requests' leavings, and sequences in scattered blocks of it."""

    def __init__(
        self,
        directory: Path,
        *,
        dtype: str = "auto",
        kv_dtype: str = "auto",
        quantization: str | None = None,
        block_size: int = 16,
        seed: int = 0,
        attention_of: Callable[[ModelConfig, int], AttentionBackend] | None = None,
        on_cpu: bool = True,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        """on_cpu: False reads the config as for a GPU, for example with float16; overrides: of its values.

        attention_of: what serves instead of what the config asks for; of the model and a block's tokens."""
        self.config = read_model_config(directory, dtype, on_cpu=on_cpu, overrides=overrides)
        if attention_of is not None:
            attention = attention_of(self.config, block_size)
        else:
            attention = attention_for(self.config, block_size, CPU, kv_dtype)
        engine = EngineConfig(model=str(directory), device="cpu", block_size=block_size)
        self.groups = KVGroups.of(engine, self.config)
        self.layout = KVCacheLayout.of(self.config, block_size, kv_dtype=kv_dtype, groups=self.groups)
        self.groups = self.groups.with_states(engine, self.config, self.layout.block_bytes)
        self.model: Model = load_model(
            directory, self.config, CPU, attention, quantization=quantization, groups=self.groups
        )
        generator = torch.Generator().manual_seed(seed)
        leavings = KVCacheLayout.of(self.config, block_size, groups=self.groups).pool_shape(160)
        rows = torch.empty(leavings).normal_(generator=generator).mul_(5)
        encoders = {torch.int8: int8_rows.encode, int4_rows.DTYPE: int4_rows.encode}
        encode = encoders.get(self.layout.dtype)
        self.pool = encode(rows) if encode is not None else rows.to(self.layout.dtype)
        self._free = random.Random(seed).sample(range(1, 160), 159)
        self._tables: dict[str, list[list[int]]] = {}  # of each group
        self._states: dict[str, list[int]] = {}  # blocks of the recurrent state
        self._computed: dict[str, int] = {}

    def step(self, new_tokens: Mapping[str, list[int]]) -> dict[str, Tensor]:
        """Computes each sequence's next tokens; returns the logits after each of them: [num_new, vocab]."""
        names = sorted(new_tokens, key=lambda name: len(new_tokens[name]) > 1)
        batch = self.batch(names, [new_tokens[name] for name in names])
        logits = self.model.forward(batch, self.pool).split_with_sizes(batch.query_lens_list)
        return dict(zip(names, logits, strict=True))

    def greedy(self, prompts: Mapping[str, list[int]], num_tokens: int) -> dict[str, list[int]]:
        """The most probable continuation of each prompt."""
        outputs: dict[str, list[int]] = {name: [] for name in prompts}
        new_tokens = dict(prompts)
        for _ in range(num_tokens):
            for name, logits in self.step(new_tokens).items():
                outputs[name].append(int(logits[-1].argmax()))
                new_tokens[name] = outputs[name][-1:]
        return outputs

    def batch(self, names: list[str], tokens: list[list[int]]) -> Batch:
        """The batch of the named sequences' next tokens, with logits for all of them; those of one token come first."""
        size = self.layout.block_size
        starts = [self._computed.get(name, 0) for name in names]
        query_lens = [len(part) for part in tokens]
        context_lens = [start + count for start, count in zip(starts, query_lens, strict=True)]
        for name, length in zip(names, context_lens, strict=True):
            for table in self._tables.setdefault(name, [[] for _ in self.groups.spans]):
                table += [self._free.pop() for _ in range(-(-length // size) - len(table))]
            if name not in self._states:
                self._states[name] = [self._free.pop() for _ in range(self.groups.num_state_blocks)]
            self._computed[name] = length
        positions = [torch.arange(s, c) for s, c in zip(starts, context_lens, strict=True)]
        first, *others = [self._blocks(group, names, positions) for group in range(self.groups.num_groups)]
        num_tokens = sum(query_lens)
        return Batch(
            token_ids=torch.tensor([token for part in tokens for token in part]),
            positions=torch.cat(positions),
            slot_mapping=first.slot_mapping,
            query_starts=torch.tensor([0, *query_lens]).cumsum(0),
            context_lens=torch.tensor(context_lens),
            block_tables=first.block_tables,
            logits_indices=torch.arange(num_tokens),
            query_lens_list=query_lens,
            context_lens_list=context_lens,
            num_decodes=query_lens.count(1),
            other_groups=tuple(others),
            states=self._state_blocks(names, starts),
        )

    def _state_blocks(self, names: list[str], starts: list[int]) -> StateBlocks | None:
        if self.groups.states is None:
            return None
        blocks = torch.tensor([self._states[name] for name in names])
        new_rows = torch.tensor([row for row, start in enumerate(starts) if start == 0], dtype=torch.int64)
        return StateBlocks(blocks, blocks, new_rows, new_rows.new_empty(0))

    def _blocks(self, group: int, names: list[str], positions: list[Tensor]) -> GroupBlocks:
        """Slots of the sequences' new tokens, and their block tables, in a group."""
        size, tables = self.layout.block_size, [self._tables[name][group] for name in names]
        slots = [
            torch.tensor(table)[places // size] * size + places % size
            for table, places in zip(tables, positions, strict=True)
        ]
        longest = max(map(len, tables))
        return GroupBlocks(torch.cat(slots), torch.tensor([table + [0] * (longest - len(table)) for table in tables]))
