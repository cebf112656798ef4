"""Words that end or must not be in an output, as clients of TensorRT-LLM's backend for Triton send them."""

from typing import Any

import pytest

from baton.router.kserve.bodies import GenerateBody
from tests.unit.router.kserve.test_kserve_http import MODEL
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


@pytest.mark.parametrize(
    ("fields", "stop"),
    [
        ({"bad_words": "", "stop_words": ""}, []),
        ({"bad_words": [], "stop_words": []}, []),
        ({"bad_words": [""], "stop_words": [""]}, []),
        ({"bad_words": None, "stop_words": "zq"}, ["zq"]),
        ({"stop_words": ["zq", "", "zr"]}, ["zq", "zr"]),
    ],
)
async def test_words_of_tensorrt_llm(fields: dict[str, Any], stop: list[str]) -> None:
    sent = {"text_input": "x", "max_tokens": 8, **fields}
    inference = await GenerateBody.model_validate(sent).inference(may_stream=False).read()
    assert (inference.body.stop or []) == stop
    async with running_router(ScriptedWorker()) as router:
        response = await router.http.post(f"{MODEL}/generate", json=sent)
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bad_words": "no"}, "bad_words is not supported"),
        ({"bad_words": ["", "no"]}, "bad_words is not supported"),
        ({"bad_words": 5}, "bad_words must be a string"),
        ({"stop_words": [5]}, "stop_words must be a string"),
        ({"stop_words": "a", "stop": ["b"]}, "stop_words and stop must not both be given"),
    ],
)
async def test_words_that_are_refused(fields: dict[str, Any], message: str) -> None:
    async with running_router(ScriptedWorker()) as router:
        response = await router.http.post(f"{MODEL}/generate", json={"text_input": "x", "max_tokens": 8, **fields})
        assert response.status_code == 400
        assert response.json()["error"].startswith(message)
