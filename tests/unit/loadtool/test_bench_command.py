"""`baton bench` against a small real server: measurements, files and refusals."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner, Result

from baton.cli.bench import command
from tests.unit.cli.small_server import Reply, Routes, json_reply, serving

MODEL = Path(__file__).parents[3] / "baton" / "bundled_model"
GAP_S = 0.02
STREAM = {"content-type": "text/event-stream"}
SERVED = {
    "x-baton-prefill": "prefill-0",
    "x-baton-decode": "decode-0",
    "x-baton-kv-transport": "tcp",
    "x-baton-cached-tokens": "2",
    "x-baton-handed-over-tokens": "6",
}


def event(content: object) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


class SlowModel:
    """A model that generates a token every GAP_S and keeps the request bodies."""

    def __init__(self, *, takes_token_ids: bool = True, num_good: int = 1 << 30) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.tpots_s: list[float] = []  # of the responses, as sent
        self._takes_token_ids = takes_token_ids
        self._num_good = num_good  # number of responses before 429

    def respond(self, body: dict[str, Any]) -> Reply:
        self.bodies.append(body)
        if "prompt" in body and not self._takes_token_ids and not isinstance(body["prompt"], str):
            return json_reply({"error": {"message": "prompt must be a string"}}, 400)
        if len(self.bodies) > self._num_good:
            return json_reply({"error": {"message": "enough"}}, 429)
        return Reply(self._tokens(body), 200, {**STREAM, **SERVED})

    def _tokens(self, body: dict[str, Any]) -> Iterator[bytes]:
        times_s = []
        for number in range(body["max_tokens"]):
            time.sleep(GAP_S)
            times_s.append(time.perf_counter())
            piece = {"delta": {"content": "x"}} if "messages" in body else {"text": "x"}
            yield event(
                {"choices": [{**piece, "finish_reason": "length" if number + 1 == body["max_tokens"] else None}]}
            )
        self.tpots_s.append((times_s[-1] - times_s[0]) / max(1, len(times_s) - 1))
        usage = {
            "prompt_tokens": 8,
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": 2},
        }
        yield event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"

    @property
    def routes(self) -> Routes:
        return {
            "/v1/models": lambda _: json_reply({"data": [{"id": "tiny"}]}),
            "/v1/completions": self.respond,
            "/v1/chat/completions": self.respond,
        }


def bench(*arguments: str, env: dict[str, str] | None = None) -> Result:
    clean = {"COLUMNS": "140", "OPENAI_API_KEY": None, "BATON_API_KEY": None, **(env or {})}
    return CliRunner().invoke(command, arguments, env=clean)


SHORT = ("--random-input-len=8", "--random-output-len=4")


def test_a_sweep_measures_and_writes_everything(tmp_path: Path) -> None:
    model = SlowModel()
    json_file, page, profile = tmp_path / "load.json", tmp_path / "load.html", tmp_path / "profile.json"
    with serving(model.routes) as url:
        result = bench(
            f"--base-url={url}/v1", *SHORT, "--num-prompts=8", "--max-concurrency=1,4", "--num-warmups=2",
            "--goodput", "ttft:500", "tpot:500", f"--json={json_file}", "--per-request", f"--html={page}",
            f"--profile={profile}",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len(model.bodies) == 1 + 2 + 8 + 8  # with the small first request and two warm-ups
    content = json.loads(json_file.read_text())
    assert (content["model"], content["dataset"], content["prompts"]) == ("tiny", "synthetic", "token ids")
    assert content["settings"]["slo"] == "ttft=500ms,tpot=500ms"
    first, second = content["runs"]
    for run in (first, second):
        assert (run["num_completed"], run["num_failed"], run["num_output_tokens"]) == (8, 0, 32)
        assert run["ttft_ms"]["min"] >= 1000 * GAP_S * 0.95
        assert run["goodput"]["num_good"] == 8
        assert run["paths"]["by_transport"] == {"tcp": 8}
        assert (run["num_cached_tokens"], run["num_input_tokens"]) == (16, 64)
        assert len(run["requests"]) == 8
        assert len(run["requests"][0]["itls_s"]) == 3
    assert (first["max_concurrency"], second["max_concurrency"]) == (1, 4)
    seen = [run["tpot_ms"]["mean"] for run in (first, second)]
    measured = [1000 * fmean(model.tpots_s[begin : begin + 8]) for begin in (3, 11)]  # a busy machine sleeps longer
    assert seen == pytest.approx(measured, rel=0.2)
    assert first["e2e_ms"]["mean"] == pytest.approx(first["ttft_ms"]["mean"] + 3 * seen[0])
    assert first["output_tokens_per_s"] <= 4000 / first["e2e_ms"]["mean"]
    assert second["output_tokens_per_s"] > 1.5 * first["output_tokens_per_s"]
    prompts = [tuple(body["prompt"]) for body in model.bodies]
    assert len(set(prompts)) == len(prompts)  # each run has its own prompts
    assert len(json.loads(profile.read_text())["requests"]) == 16
    assert page.read_text().count("<svg") == 4 + 4 + 2 * 2
    assert "8 prefilled elsewhere (8 over tcp)" in result.output
    assert "4 concurrent" in result.output


@pytest.mark.slow
def test_same_prompts_are_sent_in_every_run() -> None:
    model = SlowModel()
    with serving(model.routes) as url:
        result = bench(f"--base-url={url}", *SHORT, "--num-prompts=3", "--max-concurrency=1,1", "--same-prompts")
    assert result.exit_code == 0, result.output
    prompts = [body["prompt"] for body in model.bodies[1:]]
    assert prompts[:3] == prompts[3:]


@pytest.mark.slow
def test_an_open_loop_sends_at_its_rate() -> None:
    model = SlowModel()
    with serving(model.routes) as url:
        result = bench(f"--base-url={url}", *SHORT, "--duration=0.5", "--request-rate=40", "--burstiness=4")
    assert result.exit_code == 0, result.output
    assert 10 <= len(model.bodies) <= 32
    assert "late by p99" in result.output


def test_text_is_sent_if_the_server_refuses_token_ids() -> None:
    model = SlowModel(takes_token_ids=False)
    with serving(model.routes) as url:
        flags = (f"--base-url={url}", *SHORT, "--num-prompts=2", "--max-concurrency=1")
        result = bench(*flags, f"--tokenizer={MODEL}")
        assert result.exit_code == 0, result.output
        assert all(isinstance(body["prompt"], str) for body in model.bodies[1:])
        refused = bench(*flags)
        assert refused.exit_code == 1
        assert "400: prompt must be a string" in refused.output


def test_chats_are_sent_with_the_api_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("from-a-file\n")
    model = SlowModel()
    with serving(model.routes) as url:
        flags = (
            f"--base-url={url}",
            *SHORT,
            "--num-prompts=2",
            "--max-concurrency=1",
            "--endpoint=/v1/chat/completions",
        )
        result = bench(*flags, f"--tokenizer={MODEL}", f"--api-key-file={key}", "--extra-body", '{"top_p": 0.5}')
    assert result.exit_code == 0, result.output
    assert all(body["messages"][0]["role"] == "user" and body["top_p"] == 0.5 for body in model.bodies)


def test_refused_requests_are_counted_separately() -> None:
    model = SlowModel(num_good=3)
    with serving(model.routes) as url:
        result = bench(f"--base-url={url}", *SHORT, "--num-prompts=5", "--max-concurrency=1")
    assert result.exit_code == 0
    assert "2 answered, 3 rejected (429), 0 failed" in result.output
    assert "3 x status 429: enough" in result.output


def test_a_server_that_refuses_everything_is_reported_before_the_load() -> None:
    routes: Routes = {
        "/v1/models": lambda _: json_reply({"data": [{"id": "tiny"}]}),
        "/v1/completions": lambda _: json_reply({"error": {"message": "who are you?"}}, 401),
    }
    with serving(routes) as url:
        result = bench(f"--base-url={url}", "--max-concurrency=1")
        assert result.exit_code == 1
        assert "401: who are you?" in result.output
        nameless = bench(f"--base-url={url}", "--max-concurrency=1", "--model=m", "--endpoint=/v1/chat/completions")
        assert "404" in nameless.output
    with serving({"/v1/completions": lambda _: json_reply({"choices": []})}) as url:
        assert "set --model" in bench(f"--base-url={url}", "--max-concurrency=1").output
        result = bench(f"--base-url={url}", "--max-concurrency=1", "--model=m")
        assert "is not an event stream" in result.output
    assert "no server responds" in bench("--base-url=http://a..b", "--max-concurrency=1").output
    gone = bench(f"--base-url={url}", "--max-concurrency=1")
    assert "no server responds" in gone.output
    assert gone.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "--request-rate N (open loop) or --max-concurrency N (closed loop)"),
        (("--time-scale=2",), "has no times"),
        (("--request-rate=fast",), "'fast' must be a number, or a list like 1,2,4"),
        (("--request-rate=0",), "must be above 0"),
        (("--request-rate=1,-2",), "must be above 0"),
        (("--max-concurrency=0",), "must be 1 or more"),
        (("--max-concurrency=1.5",), "must be a number"),
        (("--request-rate=1", "--max-concurrency=1"), "mutually exclusive"),
        (("--max-concurrency=1", "--burstiness=2"), "needs --request-rate"),
        (("--max-concurrency=1", "--goodput=ttfb:5"), "write ttft=1s,tpot=50ms,e2el=10s (names: ttft, tpot, e2el)"),
        (("--max-concurrency=1", "--slo=ttft=5"), "'ttft=5' has no unit; write 5s or 5ms"),
        (("--max-concurrency=1", "--slo", "ttft:5s"), "'ttft:5s' is not an objective"),
        (("--max-concurrency=1", "--slo", "ttft=1s", "tpot=5"), "'tpot=5' has no unit"),
        (("--max-concurrency=1", "--dataset-name=random", "--dataset-path=/nowhere"), "needs --dataset mooncake"),
        (("a", "b", "--max-concurrency=1"), "unexpected argument 'b'"),
        (("a", "--model=b", "--max-concurrency=1"), "MODEL is a and --model is b"),
        (("--max-concurrency=1", "tpot:5"), "unexpected argument 'tpot:5'"),
        (("--max-concurrency=1", "a", "tpot=5ms"), "unexpected argument 'tpot=5ms'"),
        (("--max-concurrency=1", "--num-prompts=0"), "x>=1"),
        (("--max-concurrency=1", "--duration=0"), "x>0"),
        (("--max-concurrency=1", "--random-range-ratio=1"), "from 0 to below 1"),
        (("--max-concurrency=1", "--scale-lengths=0"), "must be above 0"),
        (("--max-concurrency=1", "--dataset=mooncake"), "needs --dataset-path FILE"),
        (("--max-concurrency=1", "--dataset=azure", "--dataset-path=/nowhere"), "/nowhere: No such file"),
        (("--max-concurrency=1", "--dataset-path=/nowhere"), "needs --dataset mooncake, azure or sharegpt"),
        (("--max-concurrency=1", "--dataset=burstgpt"), "'synthetic', 'random', 'sharegpt', 'mooncake', 'azure'"),
        (("--max-concurrency=1", "--token-ids=5"), "must be FIRST:LAST, like 100:1000"),
        (("--max-concurrency=1", "--tokenizer=/nowhere"), "does not exist"),
        (("--max-concurrency=1", "--url=ftp://localhost"), "must be a URL like http://127.0.0.1:8000"),
        (("--max-concurrency=1", "--header=x"), "must be 'NAME: VALUE', like 'x-team: search'"),
        (("--max-concurrency=1", "--extra-body=[1]"), "must be a JSON object"),
        (("--max-concurrency=1", "--extra-body={"), "invalid JSON"),
        (("--max-concurrency=1", "--json=/nowhere/a.json"), "there is no directory /nowhere"),
        (("--max-concurrency=1", "--per-request"), "needs --json FILE"),
        (("--max-concurency=1",), "--max-concurrency"),
    ],
)
def test_invalid_options_are_refused_with_the_valid_ones(arguments: tuple[str, ...], expected: str) -> None:
    result = bench("--base-url=http://127.0.0.1:9", *arguments)
    assert result.exit_code in (1, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert expected in " ".join(result.output.split()).replace("│ ", "")


def test_an_empty_key_file_is_an_error(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("\n")
    assert "it is empty" in bench("--max-concurrency=1", f"--api-key-file={key}").output
