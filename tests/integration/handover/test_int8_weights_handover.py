"""Workers with and without int8 weights hand nothing over to each other."""

from pathlib import Path

import pytest
import torch

from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_processes

pytestmark = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="products in int8 need VNNI")

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


async def test_workers_with_different_weight_types_do_not_hand_over(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    workers = worker_processes(model, tmp_path, ("prefill",), ("decode", "--quantization=int8"))
    async with workers as (prefill, decode), decode_client(decode) as client:
        described = [await each.describe() for each in (prefill, decode)]
        assert described[0].fingerprint != described[1].fingerprint  # routers pair only equal ones
        generation = await client.generate(list(range(3, 90)), GREEDY, await prefill.peer())
        assert generation.served_by.prefill_worker == generation.served_by.decode_worker
        load = await decode.wait_idle()
    assert (load.handovers, load.handover_failures) == (0, 1)
