"""Fields of requests: unknown ones are rejected by name, null is the default, values have OpenAI's limits."""

import asyncio
import tracemalloc
from typing import Any, get_type_hints

import grpc
import orjson
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.openai.chat import ChatRequest
from baton.router.openai.completions import CompletionRequest
from baton.router.openai.invalid_body import advice
from baton.router.openai.tokenize import TokenizeRequest
from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]
PART = "messages[0].content[0].b"
CACHED_PART = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


async def test_unknown_fields_are_refused_with_what_to_do_instead() -> None:
    cases: list[tuple[str, str, Any, str]] = [
        (CHAT, "format", "json", "Use response_format."),
        (CHAT, "structural_tag", {}, "Use response_format."),
        (COMPLETIONS, "grammar", "root ::= a", "Use ebnf."),
        (CHAT, "repeat_penalty", 1.1, "Use repetition_penalty."),
        (COMPLETIONS, "max_new_tokens", 5, "Use max_tokens."),
        (COMPLETIONS, "stop_sequences", ["a"], "Use stop."),
        (CHAT, "typical_p", 0.5, "This sampler is not supported"),
        (CHAT, "adapter_id", "a", "Name the LoRA adapter as the `model`"),
        (CHAT, "enable_thinking", False, "chat_template_kwargs"),
        (CHAT, "temprature", 1, "Did you mean temperature?"),
        (CHAT, "prompt", "a", "supplied: prompt"),
        (CHAT, "made_up", None, "supplied: made_up"),
        ("/tokenize", "text", "a", "Use prompt."),
        ("/detokenize", "token_ids", [5], "Use tokens."),
    ]
    needed = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "a"}, "/tokenize": {"prompt": "a"}}
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for path, name, value, advice in cases:
            answer = await router.http.post(path, json={**needed.get(path, {"tokens": [5]}), name: value})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (400, "invalid_request_error"), name
            assert (error["param"], error["code"]) == (name, "unknown_parameter")
            assert error["message"].startswith(f"Unrecognized request argument supplied: {name}")
            assert advice in error["message"]
        nested: list[tuple[dict[str, Any], str]] = [
            ({"stream": True, "stream_options": {"include_all": True}}, "stream_options.include_all"),
            ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]}, PART),
            ({"response_format": {"type": "text", "strict": True}}, "response_format.strict"),
            ({"response_format": {"type": "json"}}, "response_format"),
            ({"reasoning_effort": "low"}, "reasoning_effort"),
        ]
        for fields, param in nested:
            answer = await router.http.post(CHAT, json={"messages": HELLO, **fields})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert "chat template has no such option" in answer.json()["error"]["message"]
        many = {"messages": HELLO, **{f"x{number}": 1 for number in range(1000)}}
        assert "at most 256" in (await router.http.post(CHAT, json=many)).json()["error"]["message"]
    assert not worker.commands


def test_a_very_long_name_is_not_compared_with_others() -> None:
    """The comparison would block the event loop for seconds and take memory for each character."""
    name = "temperature" * 100_000
    tracemalloc.start()
    try:
        assert not advice(name, ChatRequest.model_fields)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


async def test_fields_that_change_nothing_are_accepted() -> None:
    chat: list[dict[str, Any]] = [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s"},
        {"prompt_cache_key": "k", "parallel_tool_calls": False, "prediction": {"type": "content", "content": "a"}},
        {"best_of": 1, "n": 1, "use_beam_search": False, "echo": False, "logit_bias": {}, "bad_words": []},
        {"response_format": {"type": "text"}, "modalities": ["text"], "verbosity": "medium", "functions": []},
        {"tools": [], "tool_choice": "auto"},
        {"prompt_cache_options": {"mode": "explicit"}, "messages": [{"role": "user", "content": [CACHED_PART]}]},
        {"tools": [TOOL], "tool_choice": "none"},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"temperature": 2, "presence_penalty": -2, "frequency_penalty": 2, "top_p": 1, "seed": 7.0, "max_tokens": 2.0},
        {"temperature": 0, "top_p": 1e-320, "repetition_penalty": 1e-320, "min_p": 1, "top_k": -1},
    ]
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for fields in chat:
            answer = await router.http.post(CHAT, json={"messages": HELLO, "max_tokens": 2, **fields})
            assert answer.status_code == 200, (fields, answer.text)
        smallest = worker.commands[-1].sampling
        assert smallest.top_p > 0
        assert smallest.repetition_penalty > 0


async def test_optional_fields_may_be_null() -> None:
    cases: list[tuple[str, type[Any], dict[str, Any]]] = [
        (CHAT, ChatRequest, {"messages": HELLO, "seed": 1, "max_tokens": 5}),
        (COMPLETIONS, CompletionRequest, {"prompt": "a", "seed": 1}),
        ("/tokenize", TokenizeRequest, {"messages": HELLO}),
    ]
    async with running_router(ScriptedWorker()) as router:
        for path, model, needed in cases:
            nulls = dict.fromkeys(model.model_fields)
            answer = await router.http.post(path, json={**nulls, **needed})
            assert answer.status_code == 200, answer.text
            plain = await router.http.post(path, json=needed)
            for key in ("choices", "tokens"):
                assert answer.json().get(key) == plain.json().get(key)
        options = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": None}}
        assert (await router.http.post(CHAT, json=options)).status_code == 200


@pytest.mark.parametrize(
    ("path", "parameters", "needed"),
    [
        (CHAT, chat_params.CompletionCreateParamsNonStreaming, {"messages": HELLO, "max_tokens": 2}),
        (COMPLETIONS, completion_params.CompletionCreateParamsNonStreaming, {"prompt": "a"}),
    ],
)
async def test_every_field_of_openais_client_may_be_null(
    path: str, parameters: type[Any], needed: dict[str, Any]
) -> None:
    nulls = dict.fromkeys(get_type_hints(parameters))
    assert "temperature" in nulls
    async with running_router(ScriptedWorker()) as router:
        answer = await router.http.post(path, json={**nulls, **needed})
        assert answer.status_code == 200, answer.text


async def test_a_request_with_all_of_vllms_defaults_is_served() -> None:
    """Clients that build requests with vLLM's models send every field."""
    nulls = (
        "reasoning_effort", "response_format", "structured_outputs", "truncate_prompt_tokens", "allowed_token_ids",
        "prompt_logprobs", "documents", "chat_template", "chat_template_kwargs", "mm_processor_kwargs", "request_id",
        "logits_processors", "return_tokens_as_token_ids", "return_token_ids", "cache_salt", "kv_transfer_params",
        "vllm_xargs", "top_k", "min_p", "top_p", "tools", "user", "seed", "stream_options", "max_completion_tokens",
    )  # fmt: skip
    values = {
        "logprobs": False, "top_logprobs": 0, "n": 1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": [],
        "stream": False, "tool_choice": "none", "include_reasoning": True, "parallel_tool_calls": True,
        "use_beam_search": False, "length_penalty": 1.0, "stop_token_ids": [], "include_stop_str_in_output": False,
        "ignore_eos": False, "min_tokens": 0, "skip_special_tokens": True, "spaces_between_special_tokens": True,
        "bad_words": [], "echo": False, "add_generation_prompt": True, "continue_final_message": False,
        "add_special_tokens": False, "priority": 0, "max_tokens": 2,
    }  # fmt: skip
    async with running_router(ScriptedWorker()) as router:
        answer = await router.http.post(CHAT, json={"messages": HELLO, **dict.fromkeys(nulls), **values})
        assert answer.status_code == 200, answer.text


async def test_values_have_openais_bounds_over_http_and_grpc() -> None:
    cases: list[tuple[str, float]] = [
        ("temperature", 2.01), ("temperature", -0.1), ("presence_penalty", 2.1), ("presence_penalty", -2.1),
        ("frequency_penalty", 2.1), ("frequency_penalty", -2.1), ("top_p", 0), ("top_p", 1.1), ("min_p", 1.1),
        ("repetition_penalty", 0), ("repetition_penalty", 100.1),
    ]  # fmt: skip
    worker = ScriptedWorker()
    async with running_router(worker) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        for name, value in cases:
            answer = await router.http.post(CHAT, json={"messages": HELLO, name: value})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
            request = GenerateRequest(text="a", sampling={name: value})  # type: ignore[arg-type]  # one of these names
            with pytest.raises(grpc.aio.AioRpcError, match=name) as caught:
                await anext(aiter(InferenceStub(channel).Generate(request)))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "above 0 and at most 100" in str(caught.value.details())
        for name, value in (("stream", "true"), ("seed", "7"), ("n", True), ("temperature", "1"), ("max_tokens", 1.5)):
            answer = await router.http.post(CHAT, json={"messages": HELLO, name: value})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert not worker.commands


async def test_roles_are_those_that_openai_has() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for role in ("developer", "system", "user", "assistant", "tool", "function"):
            messages = [*HELLO, {"role": role, "content": "a"}]
            assert (await router.http.post(CHAT, json={"messages": messages, "max_tokens": 1})).status_code == 200
        for role in ("robot", "", 5):
            for content in ("a", [{"type": "text", "text": "a"}]):
                messages = [*HELLO, {"role": role, "content": content}]
                error = (await router.http.post(CHAT, json={"messages": messages})).json()["error"]
                assert error["param"] == "messages[1].role"
                assert "'developer', 'system', 'user', 'assistant', 'tool' or 'function'" in error["message"]


async def test_a_developers_message_is_a_system_message_for_a_template_without_that_role() -> None:
    async with running_router(ScriptedWorker()) as router:
        tokens = [
            (await router.http.post("/tokenize", json={"messages": [{"role": role, "content": "Be short."}]})).json()
            for role in ("developer", "system", "user")
        ]
        assert tokens[0] == tokens[1] != tokens[2]


async def test_a_context_overflow_has_openais_code() -> None:
    async with running_router(ScriptedWorker()) as router:
        cases: list[tuple[str, dict[str, Any], str]] = [
            (COMPLETIONS, {"prompt": [5] * 256}, "your request has 256 input tokens"),
            (COMPLETIONS, {"prompt": "a", "max_tokens": 256}, "257 tokens (1 input tokens and 256 in the output)"),
            (COMPLETIONS, {"prompt": "a", "min_tokens": 300}, "the context leaves 255 tokens"),
            (CHAT, {"messages": [{"role": "user", "content": "a b" * 300}]}, "Please reduce the length of the input."),
            (CHAT, {"messages": [{"role": "user", "content": "a" * 5633}]}, "5632 characters"),
        ]
        for path, body, message in cases:
            answer = await router.http.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert message in error["message"]


async def test_the_description_has_errors_streams_and_security() -> None:
    async with running_router(ScriptedWorker(), api_key=("key",)) as router:
        described = (await router.http.get("/openapi.json")).json()
        for path in (CHAT, COMPLETIONS, "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"):
            post = described["paths"][path]["post"]
            assert {"400", "401", "404", "413", "415", "429", "503"} < set(post["responses"])
            assert post["security"] == [{"bearer": []}, {"x-api-key": []}]
        chat = described["paths"][CHAT]["post"]
        assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
        assert described["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
        assert described["components"]["securitySchemes"]["x-api-key"]["in"] == "header"
        error = described["paths"]["/v1/messages"]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
        assert error["$ref"].endswith("/MessageError")
        schemas = described["components"]["schemas"]
        stop = schemas["ChatRequest"]["properties"]["stop"]["anyOf"]
        assert [each["type"] for each in stop] == ["string", "array", "null"]
        assert stop[1]["maxItems"] == 16
        metrics = described["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
        assert set(metrics) == {"text/plain", "application/openmetrics-text"}
        content = schemas["ChatMessage"]["properties"]["content"]["anyOf"]
        assert [each["type"] for each in content] == ["string", "array", "null"]
        assert schemas["ChatRequest"]["additionalProperties"] is False


async def post(router: RunningRouter, version: bytes, query: bytes, body: dict[str, Any]) -> tuple[bytes, Any]:
    """Status and body of a response; HTTP/1.1 requests with a query pass ASGI, others do not."""
    host, _, port = router.url.removeprefix("http://").rpartition(":")
    content = orjson.dumps(body)
    head = b"POST /v1/chat/completions%b HTTP/%b\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(head % (query, version) + b"content-length: %d\r\n\r\n" % len(content) + content)
        response = await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()
    head, _, content = response.partition(b"\r\n\r\n")
    return head.split()[1], orjson.loads(content)


async def test_both_paths_to_a_route_reject_the_same() -> None:
    bodies: list[dict[str, Any]] = [
        {"messages": HELLO, "regexp": "a"},
        {"messages": HELLO, "temperature": 3},
        {"messages": [{"role": "robot", "content": "a"}]},
        {"messages": [{"role": "user", "content": "a" * 5633}]},
    ]
    async with running_router(ScriptedWorker()) as router:
        for body in bodies:
            first = await post(router, b"1.1", b"", body)
            assert first[0] == b"400"
            assert await post(router, b"1.1", b"?over=asgi", body) == first
            assert await post(router, b"1.0", b"", body) == first
