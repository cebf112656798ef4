"""A head that the training script makes is often right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from baton.cli.options.model_source import BUNDLED
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from scripts.site.links import ROOT
from tests.unit.engine.speculation.draft_rig import run_and_free
from tests.unit.engine.speculation.heads.head_rig import head_engine
from tests.unit.engine.speculation.speculation_rig import assert_equal, copies, engine_of, run

QUESTIONS = ("What does os.path.join do?", "What is a list?", "How do I open a file?", "What does json.dumps do?")
OPTIONS = {"kv_cache_memory_bytes": 64 << 20, "max_num_batched_tokens": 256}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_trained_head_is_often_right(tmp_path: Path) -> None:
    head = tmp_path / "head"
    script = ["scripts/train_draft_head.py", "--output", str(head), "--steps", "60"]
    ended = subprocess.run([sys.executable, *script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    requests = []
    for number, question in enumerate(QUESTIONS):
        prompt = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
        sampling = SamplingParams(temperature=number % 2 * 0.7, seed=number, max_tokens=60, ignore_eos=True)
        requests.append(Request(RequestId(str(number)), prompt, len(prompt), sampling))
    expected = run(engine_of(BUNDLED, False, **OPTIONS), copies(requests))
    engine = head_engine(BUNDLED, "eagle3", head, **OPTIONS)
    assert_equal(run_and_free(engine, requests), expected)
    counters = engine.stats().speculation
    assert counters.accepted_by_position[0] > 0.1 * counters.num_drafts
