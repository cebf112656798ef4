"""KServe's protocol over HTTP: the same text as the completions API, tensors in JSON and behind it, errors as text."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

MODEL = "/v2/models/bundled_model"
OPTIONS = {"seed": 9, "max_tokens": 6}
TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hello world"]}
BINARY_TYPE = {"content-type": "application/octet-stream"}


def flag(name: str, value: bool = True) -> dict[str, Any]:
    return {"name": name, "datatype": "BOOL", "shape": [1], "data": [value]}


def sampling(**options: object) -> dict[str, Any]:
    return {"name": "sampling_parameters", "datatype": "BYTES", "shape": [1], "data": [json.dumps(options)]}


async def completion(router: RunningRouter, **options: object) -> dict[str, Any]:
    """Return the same request's response of the completions API."""
    body = {"prompt": "hello world", "return_token_ids": True, **OPTIONS, **options}
    response: dict[str, Any] = (await router.http.post("/v1/completions", json=body)).json()
    return response


async def infer(router: RunningRouter, *inputs: dict[str, Any], **fields: Any) -> httpx.Response:
    return await router.http.post(f"{MODEL}/infer", json={"inputs": inputs, **fields})


def outputs(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return {each["name"]: each for each in response.json()["outputs"]}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    lines = [line for line in response.text.splitlines() if line]
    assert all(line.startswith("data: {") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_an_inference_has_the_text_of_the_completions_api() -> None:
    async with running_router(ScriptedWorker()) as router:
        same = await completion(router)
        text, token_ids = same["choices"][0]["text"], same["choices"][0]["token_ids"]
        flags = [flag(f"return_{name}") for name in ("finish_reason", "num_input_tokens", "num_output_tokens")]
        response = await infer(router, TEXT, sampling(**OPTIONS), flag("exclude_input_in_output"), *flags, id="mine")
        body, found = response.json(), outputs(response)
        assert (body["model_name"], body["model_version"], body["id"]) == ("bundled_model", "1", "mine")
        assert found["text_output"] == {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [text]}
        assert found["finish_reason"]["data"] == ["length"]
        assert found["num_input_tokens"]["data"] == [same["usage"]["prompt_tokens"]]
        assert found["num_output_tokens"] == {
            "name": "num_output_tokens", "datatype": "UINT32", "shape": [1], "data": [6]
        }  # fmt: skip
        assert "token_ids" not in found
        asked = await infer(router, TEXT, sampling(**OPTIONS), outputs=[{"name": "token_ids"}])
        assert [(each["name"], each["data"]) for each in asked.json()["outputs"]] == [("token_ids", token_ids)]


async def test_the_prompt_is_in_front_of_the_text_unless_it_is_excluded() -> None:
    async with running_router(ScriptedWorker()) as router:
        text = (await completion(router))["choices"][0]["text"]
        for inputs in ((), (flag("exclude_input_in_output", False),)):
            assert outputs(await infer(router, TEXT, sampling(**OPTIONS), *inputs))["text_output"]["data"] == [
                "hello world" + text
            ]


async def test_numbers_as_text_and_parameters_are_options_too() -> None:
    async with running_router(ScriptedWorker()) as router:
        text = "hello world" + (await completion(router, temperature=0.5, ignore_eos=True))["choices"][0]["text"]
        as_text = {"seed": "9", "max_tokens": "6", "temperature": "0.5", "ignore_eos": "True"}
        by_tensor = await infer(router, TEXT, sampling(**as_text))
        by_parameter = await infer(router, TEXT, parameters=as_text)
        both = await infer(router, TEXT, sampling(max_tokens=6), parameters={**as_text, "max_tokens": 1})
        for response in (by_tensor, by_parameter, both):
            assert outputs(response)["text_output"]["data"] == [text]


async def test_several_completions_are_the_elements_of_the_text() -> None:
    async with running_router(ScriptedWorker()) as router:
        choices = (await completion(router, n=2))["choices"]
        response = await infer(router, TEXT, sampling(n=2, **OPTIONS), flag("exclude_input_in_output"))
        assert outputs(response)["text_output"]["data"] == [choice["text"] for choice in choices]


async def test_binary_contents_follow_the_json() -> None:
    async with running_router(ScriptedWorker()) as router:
        text = (await completion(router))["choices"][0]["text"].encode()
        prompt, options = b"hello world", json.dumps(OPTIONS).encode()
        raw = [len(each).to_bytes(4, "little") + each for each in (prompt, options)] + [b"\1", b"\1"]
        kinds = {
            "text_input": "BYTES", "sampling_parameters": "BYTES", "exclude_input_in_output": "BOOL",
            "return_num_output_tokens": "BOOL",
        }  # fmt: skip
        inputs = [
            {"name": name, "datatype": kind, "shape": [1], "parameters": {"binary_data_size": len(content)}}
            for (name, kind), content in zip(kinds.items(), raw, strict=True)
        ]
        head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        headers = {"inference-header-content-length": str(len(head)), **BINARY_TYPE}
        response = await router.http.post(f"{MODEL}/infer", content=head + b"".join(raw), headers=headers)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/octet-stream"
        size = int(response.headers["inference-header-content-length"])
        sizes = [each["parameters"]["binary_data_size"] for each in json.loads(response.content[:size])["outputs"]]
        assert sizes == [4 + len(text), 4]
        assert response.content[size:] == len(text).to_bytes(4, "little") + text + b"\6\0\0\0"


BINARY_INPUT = {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}


@pytest.mark.parametrize(
    ("inputs", "rest", "message"),
    [
        ([BINARY_INPUT], b"\2\0\0\0", "text_input: binary_data_size is 6, but 4 bytes are left in the body"),
        ([BINARY_INPUT], b"\3\0\0\0ab", "text_input: the contents of a BYTES must be 4 bytes with its length"),
        ([BINARY_INPUT], b"\2\0\0\0\xff\xff", "text_input: the contents are not valid UTF-8"),
        ([BINARY_INPUT], b"\2\0\0\0abc", "inputs: the body has 7 bytes behind its JSON, but the inputs have 6"),
        ([{**BINARY_INPUT, "data": ["a"]}], b"\2\0\0\0ab", "text_input: the contents must be given either in data"),
        (
            [{**BINARY_INPUT, "parameters": {"binary_data_size": -1}}], b"",
            "text_input: binary_data_size must be a number of bytes",
        ),
    ],
)  # fmt: skip
async def test_wrong_binary_contents_name_the_tensor(inputs: list[Any], rest: bytes, message: str) -> None:
    async with running_router(ScriptedWorker()) as router:
        head = json.dumps({"inputs": inputs}).encode()
        headers = {"inference-header-content-length": str(len(head)), **BINARY_TYPE}
        response = await router.http.post(f"{MODEL}/infer", content=head + rest, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"].startswith(message)


async def test_the_size_of_the_json_is_checked() -> None:
    async with running_router(ScriptedWorker()) as router:
        for size in ("-1", "3", "x", "9" * 30, "0" * 30 + "9" * 5000, "\u00b2"):
            headers = {"inference-header-content-length": size.encode("latin-1").decode("latin-1"), **BINARY_TYPE}
            response = await router.http.post(f"{MODEL}/infer", content=b"{}", headers=list(encoded(headers)))
            assert response.status_code == 400
            assert response.json()["error"].startswith("inference-header-content-length is")


def encoded(headers: dict[str, str]) -> Any:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": []}, "inputs: "),
        ({"inputs": [flag("stream", False)]}, "text_input is required"),
        ({"inputs": [TEXT, TEXT]}, "text_input is given twice"),
        ({"inputs": [{**TEXT, "name": "prompt"}]}, "inputs has an unknown tensor 'prompt'"),
        ({"inputs": [{**TEXT, "datatype": "FP32"}]}, "text_input: datatype is 'FP32', but must be BYTES"),
        ({"inputs": [{**TEXT, "shape": [2]}]}, "text_input: shape is [2], but must be [1]"),
        ({"inputs": [{**TEXT, "data": ["a", "b"]}]}, "text_input: the data has 2 elements, but must have 1"),
        ({"inputs": [{**TEXT, "data": [1]}]}, "text_input must be a string"),
        ({"inputs": [{**TEXT, "data": [""]}]}, "text_input: the prompt is empty"),
        ({"inputs": [{**TEXT, "data": ["a " * 600]}]}, "text_input: This model's maximum context length is 256"),
        ({"inputs": [TEXT, {**flag("stream"), "data": ["yes"]}]}, "stream must be true or false"),
        ({"inputs": [TEXT, flag("stream")]}, "stream must be false: this call returns one response"),
        ({"inputs": [TEXT, {**sampling(), "data": ["[]"]}]}, "sampling_parameters must be a JSON object"),
        ({"inputs": [TEXT, sampling(temperature="hot")]}, "temperature: Input should be a valid number"),
        ({"inputs": [TEXT, sampling(logprobs=1)]}, "logprobs is not available in this protocol"),
        ({"inputs": [TEXT, sampling(stream=True)]}, "sampling_parameters has stream, which is an input of its own"),
        ({"inputs": [TEXT, sampling(max_token=1)]}, "max_token: Unrecognized request argument supplied: max_token"),
        ({"inputs": [TEXT], "parameters": {"timeout": -1}}, "timeout must be a number of microseconds"),
        ({"inputs": [TEXT], "outputs": [{"name": "logits"}]}, "outputs has an unknown tensor 'logits'"),
        ({"inputs": [TEXT, sampling(n=2), flag("return_token_ids")]}, "n is 2, but must be 1 if token_ids"),
        (
            {"inputs": [{**TEXT, "parameters": {"shared_memory_region": "a"}}]},
            "text_input: the parameter 'shared_memory_region' is not supported",
        ),
    ],
)
async def test_errors_name_the_tensor_or_parameter(fields: dict[str, Any], message: str) -> None:
    async with running_router(ScriptedWorker()) as router:
        response = await router.http.post(f"{MODEL}/infer", json=fields)
        assert response.status_code == 400
        assert list(response.json()) == ["error"]
        assert response.json()["error"].startswith(message), response.text


async def test_the_time_limit_is_a_parameter_in_microseconds() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        response = await infer(router, TEXT, parameters={"timeout": 50_000})
        assert response.status_code == 504
        assert "error" in response.json()


async def test_generate_returns_fields() -> None:
    async with running_router(ScriptedWorker()) as router:
        text = (await completion(router))["choices"][0]["text"]
        body = {"text_input": "hello world", "parameters": {**OPTIONS, "exclude_input_in_output": True}}
        response = await router.http.post(f"{MODEL}/versions/1/generate", json=body)
        assert response.json() == {"model_name": "bundled_model", "model_version": "1", "text_output": text}
        asked = {
            "text_input": "hello world", "sampling_parameters": json.dumps(OPTIONS), "return_num_output_tokens": True,
            "exclude_input_in_output": True, "id": "mine",
        }  # fmt: skip
        response = await router.http.post(f"{MODEL}/generate", json=asked)
        assert (response.json()["text_output"], response.json()["num_output_tokens"]) == (text, 6)
        assert response.json()["id"] == "mine"
        refused = await router.http.post(f"{MODEL}/generate", json={**body, "stream": True})
        assert (refused.status_code, list(refused.json())) == (400, ["error"])


async def test_generate_stream_returns_events() -> None:
    async with running_router(ScriptedWorker()) as router:
        text = (await completion(router))["choices"][0]["text"]
        body = {"text_input": "hello world", **OPTIONS, "return_finish_reason": True, "return_num_output_tokens": True}
        streamed = events(await router.http.post(f"{MODEL}/generate_stream", json={**body, "stream": True}))
        assert len(streamed) > 2
        assert "".join(event["text_output"] for event in streamed) == text
        assert sum(event["num_output_tokens"] for event in streamed) == 6
        assert [event["finish_reason"] for event in streamed] == ["None"] * (len(streamed) - 1) + ["length"]
        [whole] = events(await router.http.post(f"{MODEL}/generate_stream", json=body))
        assert (whole["text_output"], whole["num_output_tokens"]) == ("hello world" + text, 6)


async def test_an_error_in_a_stream_is_an_event() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_attempts=0) as router:
        body = {"text_input": "a", "stream": True}
        async with router.http.stream("POST", f"{MODEL}/generate_stream", json=body) as response:
            lines = response.aiter_lines()
            assert "text_output" in await anext(lines)
            await worker.stop()
            rest = [line async for line in lines if line]
        assert list(json.loads(rest[-1].removeprefix("data: "))) == ["error"]


async def test_a_client_that_leaves_cancels_its_request() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        body = {"text_input": "a", "stream": True}
        async with router.http.stream("POST", f"{MODEL}/generate_stream", json=body) as response:
            await anext(response.aiter_lines())
        await until(lambda: bool(worker.aborted))


async def test_health_and_metadata() -> None:
    async with running_router(ScriptedWorker()) as router:
        assert (await router.http.get("/v2/health/live")).json() == {"live": True}
        assert (await router.http.get("/v2/health/ready")).json() == {"ready": True}
        assert "binary_tensor_data" in (await router.http.get("/v2")).json()["extensions"]
        for path in (MODEL, f"{MODEL}/versions/1"):
            assert (await router.http.get(f"{path}/ready")).json() == {"name": "bundled_model", "ready": True}
            model = (await router.http.get(path)).json()
            assert (model["name"], model["versions"]) == ("bundled_model", ["1"])
            assert {"name": "text_input", "datatype": "BYTES", "shape": [1]} in model["inputs"]
            assert {"name": "num_output_tokens", "datatype": "UINT32", "shape": [-1]} in model["outputs"]
            config = (await router.http.get(f"{path}/config")).json()
            assert config["model_transaction_policy"] == {"decoupled": True}
            assert {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True} in config["input"]
        index = (await router.http.post("/v2/repository/index")).json()
        assert index == [{"name": "bundled_model", "version": "1", "state": "READY", "reason": ""}]


async def test_a_router_without_workers_is_alive_and_not_ready() -> None:
    async with running_router() as router:
        assert (await router.http.get("/v2/health/live")).status_code == 200
        for path in ("/v2/health/ready", f"{MODEL}/ready"):
            response = await router.http.get(path)
            assert (response.status_code, list(response.json())) == (503, ["error"])
        response = await infer(router, TEXT)
        assert (response.status_code, response.json()) == (503, {"error": "no decode worker is ready"})


async def test_other_models_and_versions_do_not_exist() -> None:
    async with running_router(ScriptedWorker()) as router:
        for base in ("/v2/models/other", f"{MODEL}/versions/2", "/v2/models/org/other"):
            for path in ("", "/ready", "/config"):
                assert (await router.http.get(base + path)).status_code == 404
            for path in ("/infer", "/generate", "/generate_stream"):
                response = await router.http.post(base + path, json={"text_input": "a"})
                assert response.status_code == 404
                assert "bundled_model" in response.json()["error"]
        mismatch = await infer(router, TEXT, model_name="other")
        assert mismatch.status_code == 404


async def test_the_name_of_a_model_may_have_slashes() -> None:
    worker = ScriptedWorker()
    worker.model = "org/model 1"
    async with running_router(worker, served_model_name="org/model 1") as router:
        for name in ("org/model%201", "org%2Fmodel%201"):
            response = await router.http.post(f"/v2/models/{name}/generate", json={"text_input": "a"})
            assert response.json()["model_name"] == "org/model 1"
            assert (await router.http.get(f"/v2/models/{name}/ready")).status_code == 200


async def test_only_health_needs_no_key(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("mine")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert (await router.http.get(path)).status_code == 200
        refused = [await router.http.get(path) for path in ("/v2", MODEL, f"{MODEL}/ready")]
        refused.append(await infer(router, TEXT))
        for response in refused:
            assert response.status_code == 401
            assert isinstance(response.json()["error"], str)
        allowed = await router.http.post(f"{MODEL}/generate", json={"text_input": "a"}, headers=bearer(key))
        assert allowed.status_code == 200


async def test_bodies_that_any_web_page_could_send_are_refused() -> None:
    async with running_router(ScriptedWorker()) as router:
        content = json.dumps({"inputs": [TEXT]}).encode()
        for headers in ({"content-type": "text/plain"}, {"origin": "https://example.com"}):
            response = await router.http.post(f"{MODEL}/infer", content=content, headers=headers)
            assert response.status_code == 415
        assert (await router.http.post(f"{MODEL}/infer", content=content)).status_code == 200


async def test_responses_cannot_be_resumed() -> None:
    async with running_router(ScriptedWorker()) as router:
        headers = {"x-baton-resumable": "true", "x-request-id": "mine"}
        response = await router.http.post(f"{MODEL}/generate_stream", json={"text_input": "a"}, headers=headers)
        assert (response.status_code, list(response.json())) == (400, ["error"])


async def test_the_paths_are_described() -> None:
    async with running_router(ScriptedWorker()) as router:
        schema = (await router.http.get("/openapi.json")).json()
        paths = schema["paths"]
        for version in ("", "/versions/{version}"):
            for path in ("infer", "generate", "generate_stream"):
                operation = paths[f"/v2/models/{{name}}{version}/{path}"]["post"]
                assert [each["name"] for each in operation["parameters"]] == (
                    ["name", "version"] if version else ["name"]
                )
                error = operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]
                assert error.endswith("/KServeError")
        assert list(paths["/v2/models/{name}/generate_stream"]["post"]["responses"]["200"]["content"]) == [
            "text/event-stream"
        ]
        for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/{name}", "/v2/models/{name}/ready"):
            assert "get" in paths[path]
        index = paths["/v2/repository/index"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        assert index["type"] == "array"
        identities = [operation["operationId"] for each in paths.values() for operation in each.values()]
        assert len(identities) == len(set(identities))
