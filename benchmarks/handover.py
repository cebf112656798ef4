"""Overhead of a handover.

    python -m benchmarks.handover [--json FILE] [--requests N] [--model DIR]

For each prompt length and transport, requests go one after the other through one prefill and one decode worker. For
each request the decode worker reports the time from the end of the last prefill chunk (on the prefill worker's clock)
until the request is schedulable (last block received and checked; same host's clock), and the transfer time of the
blocks. Overhead is the former minus the part of the latter that falls into it. Hidden is the fraction of the transfer
that overlapped with prefill. For comparison, the time of a plain copy of the same bytes is measured in the same run.
"""

import asyncio
import random
import tempfile
import time
from pathlib import Path
from statistics import median

import click
import grpc
import torch

from baton.engine.checkpoint.model_config import read_model_config
from baton.protos import common_pb2, router_pb2, router_pb2_grpc
from benchmarks.load import percentile
from benchmarks.report import Report
from benchmarks.serve import random_model
from benchmarks.server import free_port, served

PROMPT_LENS = (128, 512, 4096)
NUM_OUTPUT_TOKENS = 4
LONG_PROMPT = 2048  # from this length on, only a third of the requests are run
TRANSPORTS = ("shared_memory", "nixl", "tcp")
COLUMNS = ("transport", "prompt", "MB", "overhead p50 ms", "overhead p99 ms", "transfer ms", "plain copy ms",
           "copy / transfer", "hidden %", "TTFT p50 ms")  # fmt: skip


async def one_request(
    stub: "router_pb2_grpc.InferenceAsyncStub", prompt: list[int]
) -> tuple[common_pb2.ServedBy, float]:
    """Run a request, and return how it was served and its TTFT in seconds."""
    request = router_pb2.GenerateRequest(
        token_ids=router_pb2.TokenIds(ids=prompt),
        sampling=common_pb2.SamplingParams(temperature=0, max_tokens=NUM_OUTPUT_TOKENS, ignore_eos=True),
    )
    started_s, first_s = time.perf_counter(), 0.0
    served_by = common_pb2.ServedBy()
    async for response in stub.Generate(request):
        first_s = first_s or time.perf_counter()
        if response.HasField("served_by"):
            served_by = response.served_by
    if served_by.handed_over_tokens < len(prompt):
        raise RuntimeError(f"{served_by.handed_over_tokens} of {len(prompt)} tokens were handed over")
    return served_by, first_s - started_s


def copy_s(num_bytes: int) -> float:
    """Return the median seconds to copy this many bytes in memory, on one thread."""
    torch.set_num_threads(1)
    source, target = torch.ones(num_bytes, dtype=torch.uint8), torch.zeros(num_bytes, dtype=torch.uint8)
    times = []
    for _ in range(5):
        started_s = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - started_s)
    return median(times)


async def measure(model: Path, transport: str, num_requests: int, report: Report) -> None:
    """Add the rows of one transport."""
    config = read_model_config(model)
    rng = random.Random(0)
    port = free_port()
    flags = ("--prefill", "1", "--decode", "1", "--transport", transport, "--grpc-port", str(port))
    async with served(str(model), *flags), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: router_pb2_grpc.InferenceAsyncStub = router_pb2_grpc.InferenceStub(channel)
        for prompt_len in (min(prompt_len, config.max_model_len - NUM_OUTPUT_TOKENS) for prompt_len in PROMPT_LENS):
            count = 1 + (num_requests if prompt_len < LONG_PROMPT else max(3, num_requests // 3))
            prompts = [[rng.randrange(config.vocab_size) for _ in range(prompt_len)] for _ in range(count)]
            results = [await one_request(stub, prompt) for prompt in prompts][1:]  # the first is a warmup
            overheads = [1e3 * (served_by.handover_s - served_by.exposed_transfer_s) for served_by, _ in results]
            transfers = [1e3 * served_by.transfer_s for served_by, _ in results]
            exposed = [1e3 * served_by.exposed_transfer_s for served_by, _ in results]
            num_bytes = results[0][0].transferred_bytes
            plain_ms = 1e3 * copy_s(num_bytes)
            report.add(
                transport, prompt_len, num_bytes / 1e6, median(overheads), percentile(overheads, 99),
                median(transfers), plain_ms, plain_ms / median(transfers),
                100 * (1 - sum(exposed) / sum(transfers)), 1e3 * median(ttft_s for _, ttft_s in results),
            )  # fmt: skip
            report.show()


@click.command()
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--requests", "num_requests", default=10, show_default=True, help="Measured requests per row.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(model: Path | None, num_requests: int, json_file: Path | None) -> None:
    """Measure a random model with the shape of Qwen3-0.6B, or the given model."""
    report = Report("Handover from a prefill to a decode worker on one host", COLUMNS)
    report.notes.append("for comparison: users of vLLM's NixlConnector reported 197 ms from prefill to decode")

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            chosen = model or (await random_model(Path(directory)))[1]
            for transport in TRANSPORTS:
                await measure(chosen, transport, num_requests, report)

    asyncio.run(run())
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
