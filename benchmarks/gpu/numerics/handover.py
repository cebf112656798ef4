"""Handed-over requests compared with the same requests on a single engine."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu.engine_session import Answer, EngineSession, greedy, random_prompts, start_engine
from benchmarks.gpu.handover_engines import PrefillProcess, Reader, transports_of
from benchmarks.gpu.numerics.answers import compare_answers
from benchmarks.gpu.small_models import SMALL_MODELS, SmallModel, saved
from benchmarks.gpu.stage import Record, Setting

ARCHITECTURES = ("qwen3", "deepseek-v3")
PROMPT_LENS = (1, 16, 17, 40, 100, 256)
NUM_TOKENS = 20


async def handed_over(
    model: Path, setting: Setting, transport: str, prompts: list[list[int]]
) -> tuple[dict[str, Answer], str]:
    """Return the outputs without their first tokens, and the transport used."""
    with PrefillProcess(model, setting, transport) as prefill:
        engine = start_engine(model, setting, kv_cache_memory_bytes=64 << 20)
        session = EngineSession(engine)
        reader = await Reader.connect(session, setting, transport, prefill.description())
        try:
            for index, (prompt, prefilled) in enumerate(zip(prompts, prefill.prefill(prompts), strict=True)):
                await reader.take_over(str(index), prompt, prefilled, NUM_TOKENS)
            choice = reader.transport.choices[reader.peer]
            return session.finish(), f"{choice.transport}: {choice.reason}"
        finally:
            await reader.transport.close()
            engine.close()


def check_handover(
    record: Record, setting: Setting, model: SmallModel, transports: Sequence[str] | None = None
) -> None:
    """Compare the outputs from the second token on; the first one is part of the handover. Default: all transports."""
    directory = saved(model, setting.directory)
    engine = start_engine(directory, setting, kv_cache_memory_bytes=64 << 20)
    prompts = random_prompts(PROMPT_LENS, engine.model_config.vocab_size)
    alone = EngineSession(engine).generate(prompts, greedy(NUM_TOKENS, logprobs=2))
    engine.close()
    expected = {str(index): Answer(each.token_ids[1:], each.top[1:]) for index, each in enumerate(alone)}
    for transport in transports or transports_of(setting):
        case = f"{model.architecture} over {transport}"
        record.attempt(case, partial(compare_over, record, setting, transport, case, directory, prompts, expected))


def compare_over(
    record: Record,
    setting: Setting,
    transport: str,
    case: str,
    directory: Path,
    prompts: list[list[int]],
    expected: dict[str, Answer],
) -> None:
    """Compare the outputs over one transport."""
    ours, way = asyncio.run(handed_over(directory, setting, transport, prompts))
    compare_answers(record, case, ours, expected)
    record.note(f"{case}: {way}")


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    for model in SMALL_MODELS:
        if model.architecture in ARCHITECTURES[: 1 if setting.is_quick else None]:
            record.attempt(model.architecture, partial(check_handover, record, setting, model))
