"""From the tokens of one completion to its parts: markers, stop strings, calls too many and counts of reasoning."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2
from baton.protos.worker_pb2 import RequestDelta
from baton.router.generation import CompletionDelta, Generation, GenerationRequest
from baton.router.openai.chat_parts import merged
from baton.router.output.completion import CompletionOutput
from baton.router.output.format import OutputFormat
from baton.router.output.rules import NO_TOOLS, OutputRules, ToolUse
from baton.router.parsing.base import CallArguments, CallStart, Content, OutputPart, Reasoning, Tool
from baton.router.resumption.resumed_output import ResumedOutput
from baton.router.resumption.resumption import CompletionStart
from baton.router.text.tokenizer import Tokenizer
from tests.unit.router.rigs.running_router import MODEL

END = 2  # <|im_end|>
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TOOLS = (Tool(name="f", parameters={}), Tool(name="g", parameters={}))
TOOL_USE = ToolUse(offered=TOOLS)
THOUGHT = "<think>\nIt is 5.\n</think>\n\nLet me see.\n"
CALL_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module", params=[False, True], ids=["markers are text", "markers are tokens"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    directory = Path(MODEL)
    if request.param:
        directory = with_markers(tmp_path_factory.mktemp("markers"))
    tokenizer = Tokenizer(str(directory))
    yield tokenizer
    tokenizer.close()


def with_markers(directory: Path) -> Path:
    """Copy the tokenizer of the bundled model, with the markers as special tokens."""
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (directory / name).write_bytes((Path(MODEL) / name).read_bytes())
    content = json.loads((Path(MODEL) / "tokenizer.json").read_text())
    like = content["added_tokens"][-1]
    ids = {each["content"]: each["id"] for each in content["added_tokens"]}
    others = [each for each in content["added_tokens"] if each["content"] not in MARKERS]
    markers = [
        like | {"id": ids.get(each, 4096 + place), "content": each, "special": True}
        for place, each in enumerate(MARKERS)
    ]
    content["added_tokens"] = others + markers
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return directory


def generation(
    tokenizer: Tokenizer, use: ToolUse = TOOL_USE, is_open: bool | None = None, **options: Any
) -> Generation:
    rules = OutputRules(OutputFormat("hermes", "qwen3", tokenizer.single_tokens(MARKERS)), use)
    request = GenerationRequest(request_id="r", prompt=[300], sampling=SamplingParams(), output_rules=rules, **options)
    return Generation(request, [300], SamplingParams(), is_reasoning_open=is_open)


def run(
    output: CompletionOutput | ResumedOutput,
    token_ids: Sequence[int],
    step: int = 1,
    end: int = common_pb2.FINISH_REASON_STOP,
) -> CompletionDelta:
    """Push the tokens in steps, and return all deltas as one."""
    whole = CompletionDelta(0)
    for first in range(0, len(token_ids), step):
        given = token_ids[first : first + step]
        finish = end if first + step >= len(token_ids) else 0
        whole.extend(output.push(RequestDelta(token_ids=given, finish_reason=finish)))  # type: ignore[arg-type]
        if output.finished:
            break
    return whole


def parts(delta: CompletionDelta) -> list[OutputPart]:
    assert delta.parts is not None
    assert not delta.text
    return list(merged(delta.parts))


async def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return [*await tokenizer.encode(text, add_special_tokens=False), END]


@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_reasoning_content_and_calls(tokenizer: Tokenizer, step: int) -> None:
    token_ids = await encoded(tokenizer, f"{THOUGHT}{CALL_F}\n{CALL_G}")
    whole = run(CompletionOutput(0, generation(tokenizer), tokenizer), token_ids, step)
    kinds = [type(part) for part in parts(whole)]
    assert kinds == [Reasoning, Content, CallStart, CallArguments, CallStart, CallArguments]
    assert parts(whole)[2:] == [
        CallStart(0, "f"), CallArguments(0, '{"a": 1}'), CallStart(1, "g"), CallArguments(1, "{}"),
    ]  # fmt: skip
    assert (whole.finish_reason, whole.stop_reason, whole.token_ids) == ("tool_calls", None, token_ids)
    if step == 1:
        num_content = len(await encoded(tokenizer, f"Let me see.\n{CALL_F}\n{CALL_G}"))
        assert abs(len(token_ids) - num_content - whole.num_reasoning_tokens) <= 3  # of white space and markers


async def test_how_an_output_with_calls_ends(tokenizer: Tokenizer) -> None:
    token_ids = await encoded(tokenizer, CALL_F)
    assert run(CompletionOutput(0, generation(tokenizer), tokenizer), token_ids).finish_reason == "tool_calls"
    cut = run(CompletionOutput(0, generation(tokenizer), tokenizer), token_ids, end=common_pb2.FINISH_REASON_LENGTH)
    assert cut.finish_reason == "length"
    stopped = run(CompletionOutput(0, generation(tokenizer, stop=("</tool_call>",)), tokenizer), token_ids)
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", "</tool_call>")
    plain = run(CompletionOutput(0, generation(tokenizer), tokenizer), await encoded(tokenizer, "Hello."))
    assert (plain.finish_reason, parts(plain)) == ("stop", [Content("Hello.")])


async def test_broken_arguments_are_logged_with_the_requests_id(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    broken = CALL_F.replace('{"a": 1}', '{"a": secret')
    for text in (CALL_F, broken):
        run(CompletionOutput(0, generation(tokenizer), tokenizer), await encoded(tokenizer, text))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("r: the arguments of a tool call are no JSON object")
    assert "secret" not in record.getMessage()


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("include", [False, True])
async def test_stop_strings_see_the_whole_text(tokenizer: Tokenizer, step: int, include: bool) -> None:
    token_ids = await encoded(tokenizer, f"{THOUGHT}{CALL_F}")
    for stop in ("is 5.\n</thi", "\n<tool", "see.", "k>\nIt"):
        given = generation(tokenizer, stop=(stop,), include_stop=include)
        whole = run(CompletionOutput(0, given, tokenizer), token_ids, step)
        assert (whole.finish_reason, whole.stop_reason) == ("stop", stop)
        text = THOUGHT[: THOUGHT.index(stop)] if stop in THOUGHT else THOUGHT.rstrip("\n")
        shown = "".join(part.text for part in parts(whole) if isinstance(part, Content | Reasoning))
        for word in ("It", "is", "5", "Let", "me"):
            assert (word in shown) == (word in text or (include and word in stop)), (stop, word, shown)
        assert not any(isinstance(part, CallStart) for part in parts(whole))


@pytest.mark.parametrize("stop", [">>>", "ink>x", "ll>zzz"])
async def test_a_stop_string_that_begins_like_the_end_of_a_marker_changes_nothing(
    tokenizer: Tokenizer, stop: str
) -> None:
    token_ids = await encoded(tokenizer, f"{THOUGHT}{CALL_F}\n{CALL_G}")
    expected = run(CompletionOutput(0, generation(tokenizer), tokenizer), token_ids)
    whole = run(CompletionOutput(0, generation(tokenizer, stop=(stop,)), tokenizer), token_ids)
    assert parts(whole) == parts(expected)
    assert whole.finish_reason == "tool_calls"


async def test_a_second_call_ends_an_output_that_may_have_one(tokenizer: Tokenizer) -> None:
    token_ids = await encoded(tokenizer, f"{CALL_F}\n{CALL_G}")
    given = generation(tokenizer, ToolUse(offered=TOOLS, is_parallel=False))
    output = CompletionOutput(0, given, tokenizer)
    whole = run(output, token_ids)
    assert parts(whole) == [CallStart(0, "f"), CallArguments(0, '{"a": 1}')]
    assert whole.finish_reason == "tool_calls"
    assert output.finished


async def test_a_marker_ends_an_incomplete_character(tokenizer: Tokenizer) -> None:
    ids = {marker: token for token, marker in tokenizer.single_tokens(MARKERS).items()}
    if "<think>" not in ids:
        pytest.skip("markers are text")
    emoji = (await tokenizer.encode("🎉", add_special_tokens=False))[:-1]
    assert emoji
    token_ids = [ids["<think>"], *emoji, ids["</think>"], *await encoded(tokenizer, "a")]
    whole = run(CompletionOutput(0, generation(tokenizer), tokenizer), token_ids)
    assert parts(whole) == [Reasoning("\ufffd"), Content("a")]


async def test_reasoning_that_the_prompt_begins(tokenizer: Tokenizer) -> None:
    token_ids = await encoded(tokenizer, "It is 5.</think>Five.")
    given = generation(tokenizer, is_open=True)
    assert parts(run(CompletionOutput(0, given, tokenizer), token_ids)) == [Reasoning("It is 5."), Content("Five.")]
    cut = run(CompletionOutput(0, given, tokenizer), token_ids[:3], end=common_pb2.FINISH_REASON_LENGTH)
    assert cut.num_reasoning_tokens == 3


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_a_resumed_output_has_the_rest_of_the_parts(tokenizer: Tokenizer, step: int) -> None:
    token_ids = await encoded(tokenizer, f"{THOUGHT}{CALL_F}\n{CALL_G}")
    given = generation(tokenizer, stop=("never",))
    whole = run(CompletionOutput(0, given, tokenizer), token_ids)
    for num_seen in range(len(token_ids)):
        begun = run(CompletionOutput(0, given, tokenizer), token_ids[:num_seen], end=0)
        resumed = ResumedOutput(CompletionOutput(0, given, tokenizer), CompletionStart(num_seen), 1)
        rest = run(resumed, token_ids, step)
        assert list(merged([*(begun.parts or []), *(rest.parts or [])])) == parts(whole)
        assert (rest.finish_reason, rest.token_ids) == ("tool_calls", token_ids[num_seen:])
        assert rest.num_reasoning_tokens == whole.num_reasoning_tokens


async def test_special_tokens_of_calls_are_not_shown_without_tools(tmp_path: Path) -> None:
    tokenizer = Tokenizer(str(with_markers(tmp_path)))
    try:
        special = frozenset(MARKERS)
        form = OutputFormat("hermes", "qwen3", tokenizer.single_tokens(MARKERS), special)
        for tools, shown in ((NO_TOOLS, "ab"), (ToolUse(offered=TOOLS), "a<tool_call>b")):
            request = GenerationRequest(
                request_id="r", prompt=[300], sampling=SamplingParams(), output_rules=OutputRules(form, tools)
            )
            output = CompletionOutput(0, Generation(request, [300], SamplingParams()), tokenizer)
            token_ids = await tokenizer.encode("<think>hm</think>a<tool_call>b", add_special_tokens=False)
            delta = output.push(RequestDelta(token_ids=token_ids, finish_reason=common_pb2.FINISH_REASON_LENGTH))
            assert delta.parts is not None
            content = "".join(part.text for part in delta.parts if isinstance(part, Content))
            assert content == shown
            assert "".join(part.text for part in delta.parts if isinstance(part, Reasoning)) == "hm"
    finally:
        tokenizer.close()
