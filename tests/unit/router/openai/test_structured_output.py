"""Fields of structured output: what workers get, and which requests are refused before any worker sees them."""

import json
import threading
from typing import Any

import grpc
import pytest

from baton.engine.grammar.grammar import Grammar
from baton.protos import common_pb2, worker_pb2
from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.openai.structured_output import GRAMMAR_FIELDS
from baton.router.pipeline import INLINE_GRAMMAR_CHARS
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "a", "max_tokens": 2},
}
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
SCHEMA_TEXT = json.dumps(SCHEMA, separators=(",", ":"))
EBNF = 'root ::= "a"'
SCHEMA_FIELD = "response_format.json_schema.schema"
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": {"type": "null"}, "end": "</a>"}],
    "triggers": ["<a"],
}


def schema_format(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **fields}}}


SERVED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"response_format": {"type": "json_object"}}, {"json_object": True, "field": "response_format"}),
    (schema_format(), {"json_schema": SCHEMA_TEXT, "field": SCHEMA_FIELD}),
    (schema_format(strict=True, description="d"), {"json_schema": SCHEMA_TEXT, "field": SCHEMA_FIELD}),
    (schema_format(strict=False), {"json_schema": SCHEMA_TEXT, "is_open": True, "field": SCHEMA_FIELD}),
    ({"response_format": TAG}, {"structural_tag": json.dumps(TAG, separators=(",", ":")), "field": "response_format"}),
    ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA_TEXT, "field": "structured_outputs.json"}),
    ({"structured_outputs": {"json": "{}"}}, {"json_schema": "{}", "field": "structured_outputs.json"}),
    ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+", "field": "structured_outputs.regex"}),
    (
        {"structured_outputs": {"choice": ["a", 'b"']}},
        {"choice": {"options": ["a", 'b"']}, "field": "structured_outputs.choice"},
    ),
    ({"structured_outputs": {"grammar": EBNF}}, {"ebnf": EBNF, "field": "structured_outputs.grammar"}),
    ({"structured_outputs": {"json_object": True}}, {"json_object": True, "field": "structured_outputs.json_object"}),
    (
        {"structured_outputs": {"structural_tag": "{}"}},
        {"structural_tag": "{}", "field": "structured_outputs.structural_tag"},
    ),
    ({"guided_json": SCHEMA}, {"json_schema": SCHEMA_TEXT, "field": "guided_json"}),
    ({"guided_regex": "a+"}, {"regex": "a+", "field": "guided_regex"}),
    ({"guided_choice": ["a"]}, {"choice": {"options": ["a"]}, "field": "guided_choice"}),
    ({"guided_grammar": EBNF}, {"ebnf": EBNF, "field": "guided_grammar"}),
    ({"regex": "a+"}, {"regex": "a+", "field": "regex"}),
    ({"ebnf": EBNF}, {"ebnf": EBNF, "field": "ebnf"}),
    ({"json_schema": SCHEMA_TEXT}, {"json_schema": SCHEMA_TEXT, "field": "json_schema"}),
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "Field required", "response_format.json_schema"),
    ({"response_format": {"type": "xml"}}, "'json_object', 'json_schema', 'structural_tag'", "response_format"),
    (schema_format(schema={"not": {}}), "the schema: not is not supported", SCHEMA_FIELD),
    (schema_format(schema={"type": "strin"}), "type must be one of", SCHEMA_FIELD),
    (schema_format(schema=5), "valid dictionary", SCHEMA_FIELD),
    ({"guided_json": "{"}, "Expecting property name", "guided_json"),
    ({"guided_json": 5}, "must be an object, or a string with JSON", "guided_json"),
    ({"guided_regex": "a(?=b)"}, "a lookaround at character 2", "guided_regex"),
    ({"guided_choice": []}, "at least 1 item", "guided_choice"),
    ({"guided_choice": ["a", ""]}, "at least 1 character", "guided_choice[1]"),
    ({"guided_choice": ["a"] * 5000}, "has 5000 entries", "guided_choice"),
    ({"ebnf": "a" * (1 << 18)}, "at most 131072 characters", "ebnf"),
    ({"json_schema": {"const": "a" * (1 << 18)}}, "over the limit of 131072", "json_schema"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "regex and ebnf must not both be given", "ebnf"),
    ({"structured_outputs": {}}, "structured_outputs needs one of json, regex", "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "must not both be given", "structured_outputs.choice"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "structured_outputs.regexp"),
    ({"regex": "a", "ignore_eos": True}, "cannot be combined with ignore_eos", "regex"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_workers_get_the_grammar_of_every_field(path: str) -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for fields, expected in SERVED:
            answer = await router.http.post(path, json={**NEEDED[path], **fields})
            assert answer.status_code == 200, answer.text
            assert worker.commands[-1].sampling.grammar == common_pb2.Grammar(**expected), fields
            assert expected["field"] in GRAMMAR_FIELDS
        answer = await router.http.post(path, json={**NEEDED[path], "response_format": {"type": "text"}})
        assert answer.status_code == 200
        assert not worker.commands[-1].sampling.HasField("grammar")


async def test_an_older_structural_tag_is_accepted_in_every_field() -> None:
    worker = ScriptedWorker()
    untyped = json.dumps({name: value for name, value in OLD_TAG.items() if name != "type"})
    wrong = json.dumps({"structures": [{"begin": "<a>", "schema": {"not": {}}, "end": "</a>"}]})
    async with running_router(worker) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        for fields in ({"response_format": OLD_TAG}, {"structured_outputs": {"structural_tag": untyped}}):
            answer = await router.http.post(CHAT, json={**NEEDED[CHAT], **fields})
            assert answer.status_code == 200, answer.text
            tag = json.loads(worker.commands[-1].sampling.grammar.structural_tag)
            assert (tag["structures"], tag["triggers"]) == (OLD_TAG["structures"], OLD_TAG["triggers"])
        answer = await router.http.post(CHAT, json={**NEEDED[CHAT], "structured_outputs": {"structural_tag": wrong}})
        assert answer.status_code == 400
        assert "not is not supported" in answer.json()["error"]["message"]
        sampling = common_pb2.SamplingParams(max_tokens=2, grammar=common_pb2.Grammar(structural_tag=untyped))
        assert [each async for each in InferenceStub(channel).Generate(GenerateRequest(text="a", sampling=sampling))]


@pytest.mark.parametrize("stream", [False, True])
async def test_invalid_grammars_are_refused_by_name_before_a_worker_sees_them(stream: bool) -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for fields, message, param in REFUSED:
            answer = await router.http.post(CHAT, json={**NEEDED[CHAT], **fields, "stream": stream})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
            assert message in error["message"]
    assert not worker.commands


async def test_large_grammars_are_validated_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    validate = Grammar.validate
    on_loop: list[bool] = []

    def noted_validate(grammar: Grammar) -> None:
        on_loop.append(threading.current_thread() is threading.main_thread())
        validate(grammar)

    monkeypatch.setattr(Grammar, "validate", noted_validate)
    async with running_router(ScriptedWorker()) as router:
        for size in (1, INLINE_GRAMMAR_CHARS):
            schema = {"title": "a" * size, "not": {}}
            answer = await router.http.post(CHAT, json={**NEEDED[CHAT], "guided_json": schema})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_json")
    assert on_loop == [True, False]


async def test_deeply_nested_schemas_are_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(150):
        nested = {"items": nested}
    async with running_router(ScriptedWorker()) as router:
        answer = await router.http.post(CHAT, json={**NEEDED[CHAT], "guided_json": nested})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_json")
        assert "nested over 64 levels deep" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_workers_refusal_names_the_field(stream: bool) -> None:
    worker, text = ScriptedWorker(), 'guided_grammar: EBNF parser error at line 1, column 10: Rule "foo" is not defined'
    error = common_pb2.RequestError(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message=text)
    worker.refusal = worker_pb2.RequestDelta(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)
    async with running_router(worker) as router:
        body = {**NEEDED[CHAT], "guided_grammar": "root ::= foo", "stream": stream}
        answer = await router.http.post(CHAT, json=body)
        refusal = answer.json()["error"]
        assert (answer.status_code, refusal["param"], refusal["code"]) == (400, "guided_grammar", 400)
        assert "line 1, column 10" in refusal["message"]


async def test_grammars_over_grpc() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        generate = InferenceStub(channel).Generate
        grammar = common_pb2.Grammar(choice=common_pb2.Choices(options=["a", "b"]))
        sampling = common_pb2.SamplingParams(max_tokens=2, grammar=grammar)
        assert [each async for each in generate(GenerateRequest(text="a", sampling=sampling))]
        assert worker.commands[-1].sampling.grammar.choice.options == ["a", "b"]
        for wrong, message in (
            (common_pb2.Grammar(), "grammar: the grammar is empty"),
            (common_pb2.Grammar(json_schema='{"not": {}}'), "grammar: the schema: not is not supported"),
            (common_pb2.Grammar(regex="a^b", field="mine"), "mine: the regular expression has"),
        ):
            request = GenerateRequest(text="a", sampling=common_pb2.SamplingParams(grammar=wrong))
            with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
                await anext(aiter(generate(request)))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
