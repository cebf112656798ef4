"""`LLM` with the bundled model and real workers: outputs, failures, and several callers."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from baton import LLM, LoRARequest, SamplingParams, StructuredOutputsParams
from baton.offline.errors import Ended, RequestFailed, StartFailed
from tests.adapters import make_adapter
from tests.oracle import Oracle

pytestmark = pytest.mark.slow
MODEL = Path(__file__).parents[3] / "baton" / "bundled_model"
LONG = "Answer in one sentence. " * 30 + "What is a list?"
PROMPTS = [f"{LONG} Number {number}." for number in range(24)]
GREEDY = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
ENGINE: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": "64MiB"}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """One prefill and two decode workers."""
    with LLM(num_decode=2, **ENGINE) as made:
        yield made


@pytest.fixture(scope="module")
def colocated() -> Iterator[LLM]:
    """One worker that prefills too, with adapters and embeddings."""
    with LLM(num_prefill=0, enable_lora=True, pooling="last", **ENGINE) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(llm: LLM) -> list[list[int]]:
    """Greedy tokens of all prompts."""
    return tokens(llm, PROMPTS)


def tokens(llm: LLM, prompts: Sequence[str], use_tqdm: Any = False) -> list[list[int]]:
    """Return the greedy tokens of prompts."""
    return [each.outputs[0].token_ids for each in llm.generate(prompts, GREEDY, use_tqdm=use_tqdm)]


def process(name: str) -> psutil.Process:
    """Return the process with a word in its command line, of the LLM with two decode workers."""
    children = psutil.Process().children(recursive=True)
    [worker] = [each for each in children if "--worker-id=decode-1" in each.cmdline()]
    [found] = [each for each in psutil.Process(worker.ppid()).children() if name in each.cmdline()]
    return found


def bar_that_calls(act: Callable[[], None]) -> Any:
    """Return a progress bar's class whose first update calls `act`."""

    class Bar:
        def __init__(self, **_: Any) -> None:
            self._num = 0

        def update(self, count: int) -> None:
            if not self._num:
                act()
            self._num += count

        def close(self) -> None:
            assert self._num == len(PROMPTS)

    return Bar


def test_greedy_tokens_are_those_of_transformers(llm: LLM, undisturbed: list[list[int]]) -> None:
    prompts = ["A list in Python is", LONG]
    oracle = Oracle(MODEL)
    for output in llm.generate(prompts, GREEDY, use_tqdm=False):
        assert output.outputs[0].token_ids == oracle.greedy(output.prompt_token_ids, 48)
    assert len(undisturbed) == len(PROMPTS)
    url, key = llm._requests.url, llm._requests.key
    page = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {key}"}, trust_env=False).text
    handovers = [float(line.split()[-1]) for line in page.splitlines() if line.startswith("baton:handovers_total{")]
    assert sum(handovers) > 0
    assert httpx.get(f"{url}/metrics", trust_env=False).status_code == 401


def test_greedy_tokens_are_those_of_the_http_api(llm: LLM, cluster_url: str) -> None:
    body = {
        "messages": [{"role": "user", "content": LONG}],
        "temperature": 0,
        "max_tokens": 24,
        "return_token_ids": True,
        "repetition_penalty": 1,
    }
    answer = httpx.post(f"{cluster_url}/v1/chat/completions", json=body, timeout=120, trust_env=False).json()
    [output] = llm.chat(body["messages"], SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)  # type: ignore[arg-type]  # a list
    assert output.prompt_token_ids == answer["prompt_token_ids"]
    assert output.outputs[0].token_ids == answer["choices"][0]["token_ids"]
    assert output.outputs[0].text == answer["choices"][0]["message"]["content"]


@pytest.mark.parametrize("name", ["--worker-id=decode-0", "--worker-id=prefill-0", "baton.router"])
def test_a_killed_process_loses_no_prompt(llm: LLM, undisturbed: list[list[int]], name: str) -> None:
    assert tokens(llm, PROMPTS, bar_that_calls(process(name).kill)) == undisturbed


def test_logprobs_and_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=2, prompt_logprobs=1, n=2, ignore_eos=True)
    [output] = llm.generate([LONG], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    oracle = Oracle(MODEL)
    for completion in output.outputs:
        assert completion.logprobs is not None
        wanted = oracle.logprobs([*output.prompt_token_ids, *completion.token_ids])[-6:]
        found = [at[token].logprob for at, token in zip(completion.logprobs, completion.token_ids, strict=True)]
        assert found == pytest.approx(wanted, abs=1e-3)
        assert completion.cumulative_logprob == pytest.approx(sum(wanted), abs=1e-2)
        assert [next(iter(at.values())).rank for at in completion.logprobs] == [1] * 6


def test_samples_repeat_in_another_llm_with_the_same_seed(llm: LLM, colocated: LLM) -> None:
    params = SamplingParams(temperature=1, max_tokens=16, n=2, seed=7)
    one, other = (each.generate(PROMPTS[:4], params, use_tqdm=False) for each in (llm, colocated))
    assert [output.outputs for output in one] == [output.outputs for output in other]
    assert one[0].outputs[0].token_ids != one[0].outputs[1].token_ids


def test_structured_outputs(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
    outputs = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    assert {output.outputs[0].text for output in outputs} <= {"yes", "no"}
    wrong = SamplingParams(structured_outputs=StructuredOutputsParams(regex="("))
    with pytest.raises(RequestFailed, match=r"structured_outputs.regex"):
        llm.generate(["a"], wrong, use_tqdm=False)


def test_one_bad_prompt_is_an_error_before_any_work(llm: LLM) -> None:
    with pytest.raises(ValueError, match=r"prompt 2: its .* tokens exceed the context of 4096 tokens"):
        llm.generate([*PROMPTS[:2], "word " * 5000], GREEDY, use_tqdm=bar_that_calls(lambda: pytest.fail("began")))
    with pytest.raises(ValueError, match="sampling_params has 1 elements, but there are 2 prompts"):
        llm.generate(PROMPTS[:2], [GREEDY], use_tqdm=False)


async def test_calls_in_threads_in_a_running_loop_and_in_two_llms(llm: LLM, colocated: LLM) -> None:
    alone = tokens(llm, PROMPTS[:4])
    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(tokens, each, PROMPTS[:4]) for each in (llm, llm, colocated)]
        found = await asyncio.gather(*map(asyncio.wrap_future, calls))
    assert found == [alone] * 3


def test_adapters_and_embeddings(colocated: LLM, tmp_path: Path) -> None:
    adapter = LoRARequest(
        "random", 1, str(make_adapter(MODEL, tmp_path / "random", ("q_proj", "k_proj", "v_proj", "o_proj")))
    )
    base, adapted, again = (
        colocated.generate([LONG], GREEDY, use_tqdm=False, lora_request=each)[0].outputs[0].token_ids
        for each in (None, adapter, adapter)
    )
    assert base != adapted == again
    with pytest.raises(ValueError, match=r"give the one in .* another name"):
        colocated.generate([LONG], GREEDY, lora_request=LoRARequest("random", 1, "/elsewhere"))
    first, other, same = colocated.embed(["a list", "a file", "a list"], use_tqdm=False)
    assert first.outputs.embedding == pytest.approx(same.outputs.embedding)
    assert first.outputs.embedding != other.outputs.embedding
    assert first.outputs.hidden_size == 256
    unlike, alike = colocated.score("a list", ["a file", "a list"], use_tqdm=False)
    assert alike.outputs.score == pytest.approx(1)
    assert unlike.outputs.score < 0.999
    with pytest.raises(ValueError, match=r"^data_2, prompt 1: it is empty"):
        colocated.score("a list", ["a file", []], use_tqdm=False)
    with pytest.raises(ValueError, match=r"^data_1 must be a prompt or a list of prompts"):
        colocated.score(5, "a list", use_tqdm=False)  # type: ignore[arg-type]


def test_the_prefix_cache_is_reset(colocated: LLM) -> None:
    once = SamplingParams(temperature=0, max_tokens=1)
    colocated.generate(LONG, once, use_tqdm=False)
    [cached] = colocated.generate(LONG, once, use_tqdm=False)
    assert colocated.reset_prefix_cache()
    [computed] = colocated.generate(LONG, once, use_tqdm=False)
    assert cached.num_cached_tokens > 0 == computed.num_cached_tokens


def test_what_cannot_start_has_a_reason() -> None:
    before = threading.active_count()
    with pytest.raises(StartFailed, match=r"would fit|memory"):
        LLM(kv_cache_memory_bytes="900GiB")
    with pytest.raises(ValueError, match="max_model_len"):
        LLM(max_model_len=0)
    assert threading.active_count() == before


def test_a_closed_llm_takes_no_calls() -> None:
    made = LLM(num_prefill=0, **ENGINE)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(made.generate, PROMPTS, SamplingParams(max_tokens=2000, ignore_eos=True), use_tqdm=False)
        time.sleep(0.5)
        made.close()
        with pytest.raises(Ended, match="closed"):
            call.result()
    made.close()
    with pytest.raises(Ended, match="closed"):
        made.generate("a")


def test_weights_from_a_disk_give_the_same_tokens(tmp_path: Path) -> None:
    """Prefill and decode workers lay one file out, and hand KV over."""
    with LLM(dtype="bfloat16", kv_cache_memory_bytes="64MiB") as made:
        expected = tokens(made, PROMPTS[:6])
    offloaded = {"weights_offload": "disk", "weights_offload_dir": str(tmp_path), "weights_memory_bytes": "6MiB"}
    with LLM(dtype="bfloat16", kv_cache_memory_bytes="64MiB", **offloaded) as made:
        assert tokens(made, PROMPTS[:6]) == expected
    assert len(list(tmp_path.glob("*.weights"))) == 1
