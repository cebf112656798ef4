"""Inferences with Triton's client over HTTP and gRPC: `python tritonclient_llm.py URL GRPC_ADDRESS MODEL PROMPT TEXT`.

TEXT is the output of the completions API. With a sixth argument, `stream`, it streams one request and prints its text,
one line of JSON for each response.
"""

import json
import queue
import sys
import threading
from functools import partial

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

OPTIONS = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
TIMEOUT_S = 120


def tensors(module, prompt, binary=None, **flags):
    """Return the inputs of a request. `binary`: for the HTTP client, whether they follow the JSON."""
    options = flags.pop("options", OPTIONS)
    contents = {"text_input": prompt, "sampling_parameters": json.dumps(options)} | flags
    inputs = []
    for name, value in contents.items():
        inputs.append(module.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES"))
        array = np.array([value]) if isinstance(value, bool) else np.array([value.encode()], dtype=np.object_)
        inputs[-1].set_data_from_numpy(array, **({} if binary is None else {"binary_data": binary}))
    return inputs


def text_of(result):
    """Return the text of a response."""
    return result.as_numpy("text_output")[0].decode()


def refused(call, text):
    """Check that a call fails with this text."""
    try:
        call()
    except InferenceServerException as error:
        message = error.message()
    else:
        message = "no error"
    assert text in message, message


def check(client, module, model, prompt, text):
    """Check what both clients have."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(model)
    assert client.is_model_ready(model, "1")
    client.get_model_config(model)
    client.get_model_repository_index()
    result = client.infer(model, tensors(module, prompt, exclude_input_in_output=True, return_num_output_tokens=True))
    assert text_of(result) == text
    assert result.as_numpy("num_output_tokens").tolist() == [24]
    asked = [module.InferRequestedOutput("finish_reason"), module.InferRequestedOutput("text_output")]
    result = client.infer(model, tensors(module, prompt), outputs=asked, request_id="7", parameters={"seed": 1})
    assert text_of(result) == prompt + text
    assert result.as_numpy("finish_reason").tolist() == [b"length"]
    refused(lambda: client.infer(model, tensors(module, "")), "text_input: the prompt is empty")
    refused(lambda: client.infer("other", tensors(module, prompt)), "does not exist")
    wrong = tensors(module, prompt, options={"temperature": "hot"})
    refused(lambda: client.infer(model, wrong), "temperature: Input should be a valid number")
    refused(lambda: client.infer(model, tensors(module, prompt), timeout=1), "exceeded its deadline")


def check_http(url, model, prompt, text):
    """Check the HTTP client, with tensors in JSON too."""
    client = httpclient.InferenceServerClient(url.removeprefix("http://"), network_timeout=TIMEOUT_S)
    check(client, httpclient, model, prompt, text)
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata(model)["name"] == model
    outputs = [httpclient.InferRequestedOutput("text_output", binary_data=False)]
    inputs = tensors(httpclient, prompt, binary=False)
    assert client.infer(model, inputs, outputs=outputs).as_numpy("text_output").tolist() == [prompt + text]
    result = client.infer(model, tensors(httpclient, prompt), request_compression_algorithm="gzip")
    assert text_of(result) == prompt + text
    client.close()


class Responses:
    """Responses of a stream, in the order of their arrival."""

    def __init__(self):
        self._queue = queue.Queue()

    def add(self, result, error):
        """Add a response; the client calls it in its thread."""
        self._queue.put((result, error))

    def next(self):
        """Return the next response or error."""
        return self._queue.get(timeout=TIMEOUT_S)


def check_stream(client, model, prompt, text):
    """Check two requests in flight, an error between them, and a stream that is cancelled."""
    responses = Responses()
    client.start_stream(responses.add)
    send = partial(client.async_stream_infer, model, enable_empty_final_response=True)
    send(tensors(grpcclient, prompt, stream=True), request_id="a")
    send(tensors(grpcclient, prompt, stream=True), request_id="b")
    texts, num_open = {"a": "", "b": ""}, 2
    while num_open:
        result, error = responses.next()
        assert error is None, error
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            assert not response.outputs
            num_open -= 1
        else:
            texts[response.id] += text_of(result)
    assert texts == {"a": text, "b": text}
    send(tensors(grpcclient, prompt, stream=True, exclude_input_in_output=False))
    _, error = responses.next()
    assert "exclude_input_in_output must be true" in error.message(), error
    send(tensors(grpcclient, prompt, stream=True, options={**OPTIONS, "max_tokens": 4000}), request_id="long")
    result, error = responses.next()
    assert error is None, error
    send(tensors(grpcclient, prompt, stream=True), request_id="short")
    is_over = False
    while not is_over:
        result, error = responses.next()
        assert error is None, error
        response = result.get_response()
        is_over = response.parameters["triton_final_response"].bool_param
        assert not is_over or response.id == "short", "one after the other"
    client.stop_stream(cancel_requests=True)


def check_cancel(client, model, prompt):
    """Check that a cancelled request ends."""
    ended = threading.Event()
    errors = []

    def done(result, error):
        errors.append(error)
        ended.set()

    inputs = tensors(grpcclient, prompt, options={**OPTIONS, "max_tokens": 4000})
    client.async_infer(model, inputs, done).cancel()
    assert ended.wait(TIMEOUT_S)
    assert "CANCELLED" in str(errors[0].status())


def stream(client, model, prompt, options):
    """Stream one request and print the text of each response."""
    responses = Responses()
    client.start_stream(responses.add)
    inputs = tensors(grpcclient, prompt, stream=True, options=json.loads(options))
    client.async_stream_infer(model, inputs, enable_empty_final_response=True)
    while True:
        result, error = responses.next()
        assert error is None, error
        if result.get_response().parameters["triton_final_response"].bool_param:
            break
        print(json.dumps(text_of(result)), flush=True)
    client.stop_stream()


def main(url, address, model, prompt, text, mode=""):
    """Run the checks, or stream one request with the options in `text`."""
    client = grpcclient.InferenceServerClient(address)
    if mode == "stream":
        stream(client, model, prompt, text)
        return
    check(client, grpcclient, model, prompt, text)
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    assert client.get_model_metadata(model).name == model
    check_stream(client, model, prompt, text)
    check_cancel(client, model, prompt)
    refused(lambda: client.get_inference_statistics(), "Method not found")
    client.close()
    check_http(url, model, prompt, text)


main(*sys.argv[1:])
