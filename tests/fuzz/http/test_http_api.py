"""The HTTP API with almost valid bodies."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, damaged_json, json_values
from tests.fuzz.http.http_answers import check_answer
from tests.fuzz.router_rig import MODEL_NAME, RouterRig

MESSAGES = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}, "there"], "name": "Ann"},
    {"role": "assistant", "content": None, "tool_calls": []},
]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS, "strict": True}},
    {"type": "function", "function": {"name": "clock"}},
]
NAMED = {"type": "function", "function": {"name": "clock"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
CALLS = [
    *MESSAGES[:1],
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"},
    {"role": "tool", "tool_call_id": "c1", "content": "cold"},
]
OPTIONS: dict[str, Any] = {
    "model": MODEL_NAME, "stream": False, "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
    "presence_penalty": 0.1, "frequency_penalty": -0.1, "repetition_penalty": 1.1, "logit_bias": {"5": -3.5},
    "seed": 7, "stop": ["zz", "y"], "stop_token_ids": [9], "include_stop_str_in_output": True, "ignore_eos": False,
    "min_tokens": 1, "max_tokens": 4, "skip_special_tokens": True, "return_token_ids": True, "cache_salt": "s",
    "user": "u", "priority": 1, "best_of": 2,
}  # fmt: skip
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "cold"},
]
RESPONSE = {
    "input": ITEMS, "model": MODEL_NAME, "instructions": "i", "max_output_tokens": 4, "metadata": {"a": "b"},
    "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"summary": "auto"},
    "truncation": "disabled", "tool_choice": "auto", "include": [],
    "tools": [{"type": "function", **TOOLS[1]["function"]}],
}  # fmt: skip
STREAM = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", OPTIONS | {"messages": MESSAGES, "max_completion_tokens": 3}),
    ("/v1/chat/completions", OPTIONS | STREAM | {"messages": MESSAGES[:2], "chat_template_kwargs": {"a": [1]}}),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES[:1], "continue_final_message": True, "add_generation_prompt": False},
    ),
    ("/v1/chat/completions", OPTIONS | {"messages": CALLS, "tools": TOOLS, "tool_choice": "none"}),
    ("/v1/chat/completions", {"messages": CALLS, "tools": TOOLS[1:], "parallel_tool_calls": False, "max_tokens": 4}),
    ("/v1/completions", OPTIONS | {"prompt": ["a", "b"], "echo": True}),
    ("/v1/completions", OPTIONS | STREAM | {"prompt": [5, 6, 7]}),
    ("/v1/completions", {"prompt": [[5], [6, 7]], "max_tokens": 0, "echo": True, "add_special_tokens": False}),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", {"input": "hi", "stream": True, "max_output_tokens": 3, "seed": 1, "store": False}),
    ("/tokenize", {"model": MODEL_NAME, "messages": MESSAGES[:1], "return_token_strs": True}),
    ("/tokenize", {"prompt": "hi", "add_special_tokens": True}),
    ("/tokenize", {"messages": CALLS, "tools": TOOLS}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
REFUSED: list[tuple[str, dict[str, Any]]] = [  # which simulated workers refuse, as they refuse grammars
    ("/v1/chat/completions", {"messages": MESSAGES[:1], "tools": TOOLS, "tool_choice": NAMED, "max_tokens": 4}),
    ("/v1/chat/completions", OPTIONS | {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3}),
    ("/v1/completions", OPTIONS | {"prompt": "a", "echo": True, "logprobs": 2, "prompt_logprobs": 1}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "truncate_prompt_tokens": 4, "user": "u"}),
    ("/v1/embeddings", {"input": [[5, 6], [7]], "dimensions": 8, "normalize": True, "add_special_tokens": False}),
]
ODD_BODIES = [
    b"", b"null", b"[]", b"1", b'"x"', b"\xff", b"\xef\xbb\xbf{}", b'{"prompt": NaN}', b'{"prompt": "\\ud800"}',
    b"{}{}", b'{"prompt": "a", "prompt": "b", "max_tokens": 1}', b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", b"[" * 200_000,
    b'{"prompt": ' + b'{"a":' * 1500 + b"1" + b"}" * 1500 + b"}", b'{"prompt": [' + b"1," * 100_000 + b"1]}",
    b'{"prompt": "' + "\U0001f389".encode() * 3000 + b'"}', b'{"messages": [' + b'{"role":"a"},' * 30_000 + b"{}]}",
    b'{"prompt": "a", "logit_bias": {' + b",".join(b'"%d": 1' % n for n in range(9000)) + b"}}", b'{"prompt": "\x00"}',
]  # fmt: skip
ODD_TYPES = [
    "application/json", "application/json; charset=utf-16", "text/plain", "", "application/x-www-form-urlencoded",
    "APPLICATION/JSON", "application/vnd.api+json", "application/json, text/html", "multipart/form-data", "a" * 3000,
]  # fmt: skip


def test_any_body_gets_a_valid_response(fuzzing: Fuzzing, served: RouterRig) -> None:
    def post(path: str, content: bytes, content_type: str = "application/json") -> None:
        response = served.http.post(path, content=content, headers={"content-type": content_type})
        check_answer(response.status_code, response.headers.get("content-type", ""), response.content)

    def check_values(given: tuple[str, Any]) -> None:
        post(given[0], json.dumps(given[1]).encode())

    def check_bytes(given: tuple[str, bytes, str]) -> None:
        post(*given)

    bodies = st.sampled_from([*BODIES, *REFUSED])
    damaged = bodies.flatmap(lambda each: damaged_json(each[1]).map(lambda body: (each[0], body)))
    single = bodies.flatmap(
        lambda each: st.builds(
            lambda name, value: (each[0], each[1] | {name: value}), st.sampled_from(sorted(each[1])), json_values
        )
    )
    garbled = bodies.flatmap(lambda each: damaged_bytes(json.dumps(each[1]).encode()).map(lambda body: (each[0], body)))
    types = st.sampled_from(ODD_TYPES[:1] * 6 + ODD_TYPES[1:])
    raw = st.tuples(garbled, types).map(lambda each: (*each[0], each[1]))
    for path, _ in BODIES[::3]:
        for odd in ODD_BODIES:
            post(path, odd)
    for path, body in BODIES:
        response = served.http.post(path, json=body)
        assert response.status_code == 200, (path, response.text)
    fuzzing.run_all([(damaged, check_values), (single, check_values), (raw, check_bytes)], 70)
    served.check_serves()
