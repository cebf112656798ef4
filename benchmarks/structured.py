"""Cost of structured output.

    make engines-peers                                          once, for vLLM
    python -m benchmarks.structured [--json FILE] [--repeats N] [--only SYSTEMS]

A random model with the shape of Qwen3-0.6B, greedy. A wave is a number of requests started at once; each generates the
same number of tokens, so that only the cost of a token differs. Two things keep random weights to outputs like those of
trained ones: a bias forbids white space, with which they would fill their objects, and numbers have at most three
digits. The waves of all rows of all systems are interleaved. Baton runs as a prefill and a decode worker, and as one
worker that does both, like vLLM.

- free: no grammar.
- schema: objects of numbers, enumerations and booleans under short names; a schema in which little is forced.
- long names: the same values under long names, most of whose tokens the grammar forces.

The second table is about the other requests while one more request arrives: with a schema of 50 properties that is
compiled for the first time, or without a grammar. TPOT is the mean time per token of one request.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from statistics import median

import click
import httpx
import orjson
from tokenizers import Tokenizer

from baton.engine.checkpoint.model_config import read_model_config
from benchmarks.engines.checkpoint import DENSE, ensure_checkpoint
from benchmarks.engines.peers import VLLM
from benchmarks.load import percentile
from benchmarks.report import Report
from benchmarks.server import free_port, served

CACHE = Path.home() / ".cache" / "baton" / "engines"
BATON, COLOCATED, PEER = "baton", "baton colocated", "vllm"
FREE, SCHEMA, LONG_NAMES = "free", "schema", "long names"
NUM_REQUESTS, PROMPT_LEN, NUM_TOKENS = 8, 64, 128
NUM_ITEMS = 40  # more than an output has
FIRST_WORD = 300  # token ids from here on are words
NUM_PROPERTIES = 50
ARRIVAL_TOKENS = 24  # after this many tokens of the first stream, one more request arrives
NAMES = (
    "identifier_of_the_customer", "preferred_language_of_the_customer", "has_confirmed_the_address",
    "number_of_open_orders",
)  # fmt: skip
TIMEOUT_S = 600.0
READY_S = 300.0
SPEED_COLUMNS = ("system", "output", "output tok/s", "of its free output", "of vllm", "TPOT p50 ms")
DELAY_COLUMNS = ("system", "one more request", "TPOT p50 ms", "TPOT p99 ms", "longest gap ms", "p99 of no grammar's")


def objects(names: Sequence[str]) -> dict[str, object]:
    """Return the schema of a list of objects that is longer than any output here."""
    number = {"type": "integer", "minimum": 0, "maximum": 999}
    values = (number, {"enum": ["de", "en", "fr"]}, {"type": "boolean"}, number)
    item = {
        "type": "object",
        "properties": dict(zip(names, values, strict=True)),
        "required": list(names),
        "additionalProperties": False,
    }
    return {"type": "array", "items": item, "minItems": NUM_ITEMS}


SCHEMAS = {FREE: None, SCHEMA: objects(("a", "b", "c", "d")), LONG_NAMES: objects(NAMES)}


def new_schema(number: int) -> dict[str, object]:
    """Return a schema of many properties that no earlier request had."""
    kinds = ({"type": "integer"}, {"type": "string"}, {"type": "boolean"}, {"enum": ["small", "medium", "large"]})
    properties = {f"property_{number}_{place}": kinds[place % len(kinds)] for place in range(NUM_PROPERTIES)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrival times of one request's tokens, in seconds."""

    times_s: Sequence[float]

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first event, which may have several tokens."""
        return (self.times_s[-1] - self.times_s[0]) / (len(self.times_s) - 1)

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two events."""
        return max(later - earlier for earlier, later in pairwise(self.times_s))


class Client:
    """Client of one server with OpenAI's API."""

    def __init__(self, http: httpx.AsyncClient, vocab_size: int, spaces: Sequence[int]) -> None:
        """spaces: tokens of white space."""
        self._http = http
        self._vocab_size = vocab_size
        self._bias = {str(token_id): -100 for token_id in spaces}
        self._rng = random.Random(0)

    async def wave(self, schema: dict[str, object] | None) -> tuple[list[Stream], float]:
        """Run concurrent requests; return their streams and the output tokens per second."""
        started_s = time.perf_counter()
        streams = await asyncio.gather(*(self.stream(schema) for _ in range(NUM_REQUESTS)))
        elapsed_s = time.perf_counter() - started_s
        return streams, sum(len(each.times_s) for each in streams) / elapsed_s

    async def disturbed(self, schema: dict[str, object] | None) -> list[Stream]:
        """Run requests without a grammar, during which one more arrives; return their streams."""
        arrival = asyncio.Event()
        tasks = [asyncio.create_task(self.stream(None, arrival.set)) for _ in range(NUM_REQUESTS - 1)]
        await arrival.wait()
        await self.stream(schema, num_tokens=NUM_TOKENS // 4)
        return list(await asyncio.gather(*tasks))

    async def stream(
        self,
        schema: dict[str, object] | None,
        on_arrival: Callable[[], object] = lambda: None,
        num_tokens: int = NUM_TOKENS,
    ) -> Stream:
        """Run one request; call `on_arrival` after ARRIVAL_TOKENS. Raises RuntimeError for an incomplete output."""
        body: dict[str, object] = {
            "model": "model",
            "prompt": [self._rng.randrange(FIRST_WORD, self._vocab_size) for _ in range(PROMPT_LEN)],
            "max_tokens": num_tokens,
            "temperature": 0,
            "logit_bias": self._bias,
            "stream": True,
            "return_token_ids": True,
            **({"ignore_eos": True} if schema is None else {"structured_outputs": {"json": schema}}),
        }
        times_s: list[float] = []
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise RuntimeError(f"status {response.status_code}: {(await response.aread()).decode()}")
            async for line in response.aiter_lines():
                if line.startswith("data: {") and (choices := orjson.loads(line[len("data: ") :])["choices"]):
                    times_s += [time.perf_counter()] * len(choices[0]["token_ids"])
                    if len(times_s) >= ARRIVAL_TOKENS:
                        on_arrival()
        if len(times_s) != num_tokens:
            raise RuntimeError(f"{len(times_s)} tokens received, {num_tokens} requested")
        return Stream(times_s)


@asynccontextmanager
async def baton(model: Path) -> AsyncIterator[str]:
    """Serve the model with a prefill and a decode worker; yields the URL."""
    async with served(str(model), "--prefill", "1", "--decode", "1", "--served-model-name", "model") as url:
        yield url


@asynccontextmanager
async def colocated(model: Path) -> AsyncIterator[str]:
    """Serve the model with one worker that prefills and decodes; yields the URL."""
    async with served(str(model), "--colocated", "1", "--served-model-name", "model") as url:
        yield url


@asynccontextmanager
async def vllm(model: Path) -> AsyncIterator[str]:
    """Serve the model with vLLM's CPU backend; yields the URL."""
    peers = CACHE / "peers"
    folder, port = peers / VLLM.name, free_port()
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "LD_PRELOAD": f"{folder}/lib/libiomp5.so",
        "VLLM_CACHE_ROOT": f"{folder}/cache",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    process = await asyncio.create_subprocess_exec(
        str(VLLM.python(peers)), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host",
        "127.0.0.1", "--port", str(port), "--served-model-name", "model", "--max-model-len", "2048",
        env={**os.environ, **variables}, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(READY_S), httpx.AsyncClient(base_url=url, trust_env=False) as http:
            while not await _is_healthy(http):
                if process.returncode is not None:
                    raise RuntimeError(f"vllm ended with status {process.returncode}")
                await asyncio.sleep(0.5)
        yield url
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_healthy(http: httpx.AsyncClient) -> bool:
    try:
        return (await http.get("/health")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


SYSTEMS = {BATON: baton, COLOCATED: colocated, PEER: vllm}


@dataclass(slots=True)
class Samples:
    """Results of one row."""

    tokens_per_s: list[float] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)

    def tpot_ms(self, percent: int) -> float:
        """Return a percentile over the requests."""
        return 1e3 * percentile([each.tpot_s for each in self.streams], percent)


async def measure(names: Sequence[str], repeats: int, speeds: Report, delays: Report) -> None:
    """Fill both tables."""
    model = ensure_checkpoint(DENSE, CACHE / "models")
    vocab_size, spaces, numbers = read_model_config(model).vocab_size, _spaces(model), count()
    async with AsyncExitStack() as stack:
        clients = {}
        for name in names:
            url = await stack.enter_async_context(SYSTEMS[name](model))
            limits = httpx.Limits(max_connections=NUM_REQUESTS)
            http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False)
            clients[name] = Client(await stack.enter_async_context(http), vocab_size, spaces)
        fast = {(name, output): Samples() for name in names for output in SCHEMAS}
        slow = {(name, is_new): Samples() for name in names for is_new in (False, True)}
        for repeat in range(repeats + 1):  # the first is a warm-up
            for (name, output), samples in fast.items():
                streams, tokens_per_s = await clients[name].wave(SCHEMAS[output])
                if repeat:
                    samples.streams += streams
                    samples.tokens_per_s.append(tokens_per_s)
            for (name, is_new), samples in slow.items():
                streams = await clients[name].disturbed(new_schema(next(numbers)) if is_new else None)
                if repeat:
                    samples.streams += streams
    _add_rows(fast, slow, speeds, delays)


def _add_rows(
    fast: dict[tuple[str, str], Samples], slow: dict[tuple[str, bool], Samples], speeds: Report, delays: Report
) -> None:
    for (name, output), samples in fast.items():
        rate = median(samples.tokens_per_s)
        peer = fast.get((PEER, output))
        of_peer = rate / median(peer.tokens_per_s) if peer is not None else ""
        free = median(fast[name, FREE].tokens_per_s)
        speeds.add(name, output, rate, rate / free, of_peer, samples.tpot_ms(50))
    for (name, is_new), samples in slow.items():
        gap_ms = 1e3 * max(each.longest_gap_s for each in samples.streams)
        more = f"new schema, {NUM_PROPERTIES} properties" if is_new else "no grammar"
        ratio = samples.tpot_ms(99) / slow[name, False].tpot_ms(99)
        delays.add(name, more, samples.tpot_ms(50), samples.tpot_ms(99), gap_ms, ratio)


def _spaces(model: Path) -> list[int]:
    """Return the tokens of white space."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [place for place in range(tokenizer.get_vocab_size()) if tokenizer.decode([place]).isspace()]


def _names(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",")]
    if unknown := set(names) - set(SYSTEMS):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: only {', '.join(SYSTEMS)} are known")
    return names


@click.command()
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
@click.option("--repeats", default=5, show_default=True, help="Measured waves of each row.")
@click.option("--only", default=",".join(SYSTEMS), show_default=True, callback=_names, help="Systems to measure.")
def main(json_file: Path | None, repeats: int, only: list[str]) -> None:
    """Measure the cost of structured output."""
    speeds = Report(f"{NUM_REQUESTS} requests at once, {NUM_TOKENS} output tokens each", SPEED_COLUMNS)
    delays = Report(f"{NUM_REQUESTS - 1} requests while one more arrives", DELAY_COLUMNS)
    asyncio.run(measure(only, repeats, speeds, delays))
    for report in (speeds, delays):
        report.show()
    if json_file is not None:
        speeds.write(json_file)
        delays.write(json_file.with_name(f"{json_file.stem}_delay{json_file.suffix}"))


if __name__ == "__main__":
    main()
