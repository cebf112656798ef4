"""A prefill worker whose weights differ in one number never hands over."""

import random
from importlib.resources import files
from pathlib import Path

from baton.engine.sampling.params import SamplingParams
from tests.faults.mixed_weights import upgraded_copy
from tests.integration.decode_client import decode_client
from tests.integration.together import together
from tests.integration.worker_process import worker_process

MODEL = Path(str(files("baton"))) / "bundled_model"
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


async def test_a_changed_norm_is_another_model(tmp_path: Path) -> None:
    upgraded = upgraded_copy(MODEL, tmp_path / "upgraded")
    prompt = [300 + random.Random(1).randrange(3000) for _ in range(200)]
    workers = (worker_process("prefill", MODEL, tmp_path), worker_process("decode", upgraded, tmp_path))
    async with together(*workers) as (prefill, decode), decode_client(decode) as client:
        theirs, ours = await prefill.describe(), await decode.describe()
        assert theirs.fingerprint != ours.fingerprint
        alone = await client.generate(prompt, GREEDY)
        handed = await client.submit(prompt, GREEDY, await prefill.peer(), cache_salt="not in the cache")
        await handed.ended.wait()
        assert handed.token_ids == alone.token_ids
        assert handed.served_by.prefill_worker == ours.worker_id
        load = await decode.wait_idle()
        assert (load.handovers, load.handover_bytes, load.handover_failures) == (0, 0, 1)
