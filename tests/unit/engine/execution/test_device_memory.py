"""GPU memory available for KV, with a fake meter; the measured steps are computed on a CPU."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError
from baton.engine.execution import device_memory, loaded_model
from baton.engine.execution.cuda_graphs import recorded_sizes
from baton.engine.execution.device_memory import RECORDED_BYTES, bytes_for_kv, check_fits, greatest_step
from baton.engine.execution.drafted_states import Advance, DraftedStates
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models import load_model
from baton.engine.models.causal_lm import CausalLM
from baton.engine.vision.image import Image
from baton.engine.vision.step_images import CACHE_BYTES
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU
from tests.unit.engine.tensor_rig import TensorRig
from tests.vision_checkpoints import make_vision_checkpoint


class ScriptedMeter:
    """Meter that computes what it measures and returns the given peaks, in bytes, in turn."""

    total_bytes = 80_000
    non_torch_bytes = 3_000

    def __init__(self, *peaks: int) -> None:
        self._peaks = list(peaks)

    def peak_bytes(self, compute: Callable[[], object]) -> int:
        compute()
        return self._peaks.pop(0)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


def kv_bytes(directory: Path, config: EngineConfig, *peaks: int) -> int:
    model_config = read_model_config(directory, "float32")
    model = load_model(directory, model_config, CPU, attention_for(model_config, config.block_size, CPU))
    layout = KVCacheLayout.of(model_config, config.block_size)
    return bytes_for_kv(
        config, 512, model, layout, model_config.vocab_size, ScriptedMeter(*peaks), records=not config.enforce_eager
    )


def test_weights_activations_and_other_memory_are_subtracted(directory: Path) -> None:
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, enforce_eager=True)
    assert kv_bytes(directory, config, 12_000) == 40_000 - 3_000 - 12_000


def test_the_encoder_of_images_gets_memory_for_the_largest_image_and_its_cache(tmp_path: Path) -> None:
    directory = make_vision_checkpoint(tmp_path / "model")
    served = read_model_config(directory, "float32")
    model = load_model(directory, served, CPU, attention_for(served, 16, CPU))
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, enforce_eager=True)
    layout, encoder = KVCacheLayout.of(served, 16), model.vision
    assert encoder is not None
    sizes: list[int] = []

    class Encoder:
        config = encoder.config

        def encode(self, image: Image) -> Tensor:
            sizes.append(image.num_tokens)
            return encoder.encode(image)

    def left(step: int, image: int) -> int:
        meter = ScriptedMeter(step, image)
        return bytes_for_kv(config, 130, model, layout, served.vocab_size, meter, records=False, encoder=Encoder())

    vectors = 256 * 64 * 4  # of a step's tokens, which may all be those of images
    assert left(12_000, 20_000 + vectors) == 40_000 - 3_000 - 20_000 - vectors - CACHE_BYTES
    assert left(12_000, 5_000) == 40_000 - 3_000 - 12_000 - vectors - CACHE_BYTES
    assert sizes == [121, 121], "the largest square of 130 tokens"


def test_memory_of_other_processes_matters_only_if_it_leaves_less_than_the_share(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory, "OWN_BYTES", 2_000)
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, enforce_eager=True)
    assert kv_bytes(directory, config, 12_000) == 40_000 - 2_000 - 12_000
    monkeypatch.setattr(ScriptedMeter, "non_torch_bytes", 50_000)
    assert kv_bytes(directory, config, 12_000) == 76_000 - 50_000 - 12_000


def test_more_kv_than_the_gpu_has_free_is_refused() -> None:
    check_fits(77_000, CPU, ScriptedMeter())
    with pytest.raises(EngineError, match="only 77000 of the 80000 bytes of cpu are free"):
        check_fits(77_001, CPU, ScriptedMeter())


def test_ranks_measure_together(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank computes the greatest step with the others, and samples from its own logits."""
    measured: dict[int, int] = {}

    def load_and_measure(
        path: Path, served: ModelConfig, device: torch.device, attention: AttentionBackend, *rest: Any
    ) -> CausalLM:
        model = load_model(path, served, device, attention, *rest)
        shard = rest[2].shard
        config = EngineConfig(model=str(path), max_num_seqs=4, max_num_batched_tokens=32, gpu_memory_utilization=0.5)
        layout = KVCacheLayout.of(served, 16, 2, 2)
        columns = served.vocab_size // (1 if shard.rank == 0 else 2)
        measured[shard.rank] = bytes_for_kv(config, 512, model, layout, columns, ScriptedMeter(12_000), records=False)
        return model

    monkeypatch.setattr(loaded_model, "load_model", load_and_measure)
    with closing(TensorRig(directory, 2)) as rig:
        assert rig.engine.runner.model is not rig.follower(1)  # both have loaded
        assert measured == dict.fromkeys(range(2), 40000 - 3000 - 12000)


def test_recorded_decodes_get_their_own_memory(directory: Path) -> None:
    config = EngineConfig(model=str(directory), gpu_memory_utilization=0.5, max_num_seqs=5)
    recorded = 2_000 + RECORDED_BYTES * len(recorded_sizes(5))
    assert kv_bytes(directory, config, 12_000, 9_000, 11_000) == 40_000 - 3_000 - 12_000 - recorded


@pytest.mark.parametrize(("max_num_seqs", "max_model_len"), [(8, 1000), (8, 60), (1, 33), (199, 1000)])
def test_the_greatest_step_fills_the_budget(max_num_seqs: int, max_model_len: int) -> None:
    config = EngineConfig(model="none", max_num_batched_tokens=200, max_num_seqs=max_num_seqs)
    step = greatest_step(config, max_model_len)
    assert sum(item.num_new_tokens for item in step) == 200
    assert len(step) >= max_num_seqs
    assert all(item.samples for item in step)
    assert max(item.num_new_tokens for item in step) <= max_model_len


def test_recurrent_states_are_part_of_the_measured_step(tmp_path: Path) -> None:
    assert left_with_states(tmp_path, None) == int(80_000 * 0.9) - 3_000 - 12_000


@pytest.mark.parametrize(
    ("max_num_seqs", "max_model_len", "num_speculative", "num_drafts"),
    [(8, 1000, 5, 35), (8, 4, 5, 21), (40, 1000, 64, 159), (199, 1000, 5, 0), (198, 1000, 5, 1), (1, 1000, 5, 0)],
)
def test_the_greatest_step_has_as_many_drafts_as_fit(
    max_num_seqs: int, max_model_len: int, num_speculative: int, num_drafts: int
) -> None:
    step = greatest_step(
        drafting(num_speculative, max_num_batched_tokens=200, max_num_seqs=max_num_seqs), max_model_len
    )
    assert sum(item.num_new_tokens for item in step) == 200
    assert max(item.num_new_tokens for item in step) <= max_model_len
    counts = [len(item.drafts) for item in step]
    assert sum(counts) == num_drafts
    assert max(counts) - min(counts[: max_num_seqs - 1], default=0) <= 1, "for as many requests as possible"
    order = [(item.num_new_tokens > 1, -len(item.drafts)) for item in step]
    assert order == sorted(order), "the order of steps"


def test_drafted_tokens_take_the_place_of_prompt_logprobs() -> None:
    """A step may have 512 rows of logits in addition to those of its requests; drafted ones are sampled, too."""
    step = greatest_step(drafting(5, max_num_batched_tokens=8192, max_num_seqs=256), 4096)
    (prompt,) = (item for item in step if item.request.sampling.prompt_logprobs is not None)
    assert sum(len(item.drafts) for item in step) == 510
    assert prompt.num_new_tokens == 2


@pytest.mark.parametrize("num_speculative", [1, 3, 30])
def test_the_measured_step_of_a_recurrent_model_records_its_drafted_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_speculative: int
) -> None:
    recorded: list[int] = []
    record = DraftedStates.record

    def counted(self: DraftedStates, advance: Advance, inputs: Sequence[Tensor]) -> None:
        record(self, advance, inputs)
        recorded.append(len(self._recorded[-1][1][0]))

    monkeypatch.setattr(DraftedStates, "record", counted)
    options = f'{{"method": "ngram", "num_speculative_tokens": {num_speculative}}}'
    assert left_with_states(tmp_path, options) == int(80_000 * 0.9) - 3_000 - 12_000
    assert set(recorded) == {2 + min(2 * num_speculative, 28)}  # of two requests, in a step of 32 tokens


def drafting(num_speculative: int, **options: int) -> EngineConfig:
    speculative_config = f'{{"method": "ngram", "num_speculative_tokens": {num_speculative}}}'
    return EngineConfig(model="none", speculative_config=speculative_config, **options)  # type: ignore[arg-type]


def left_with_states(tmp_path: Path, speculative_config: str | None) -> int:
    model_directory = tmp_path / "model"
    if not model_directory.exists():
        make_checkpoint("qwen3-next", model_directory)
    config = EngineConfig(
        model=str(model_directory),
        max_num_seqs=3,
        max_num_batched_tokens=32,
        gpu_memory_utilization=0.9,
        speculative_config=speculative_config,
    )
    served = read_model_config(Path(config.model), "float32")
    layout = KVCacheLayout.of(served, config.block_size, groups=KVGroups.of(config, served))
    groups = KVGroups.of(config, served).with_states(config, served, layout.block_bytes)
    attention = attention_for(served, config.block_size, CPU)
    model = load_model(Path(config.model), served, CPU, attention, groups=groups)
    meter = ScriptedMeter(12_000)
    assert model.is_recurrent
    columns = served.vocab_size
    return bytes_for_kv(config, 64, model, layout, columns, meter, records=False, groups=groups)
