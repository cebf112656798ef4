"""Encoding of the HTTP responses."""

from collections.abc import Mapping, Sequence

import orjson

from baton.router.generation import CompletionDelta
from baton.router.kserve.errors import error_body, error_text
from baton.router.kserve.inference import VERSION
from baton.router.kserve.outputs import Outputs
from baton.router.kserve.tensors import OutputTensor
from baton.router.openai.response import EncodedBody, WholeCompletion

HEADER_LENGTH = "inference-header-content-length"  # size of the JSON in front of binary contents


class InferShape:
    """Encoder of the response with tensors."""

    def __init__(self, model: str, request_id: str, outputs: Outputs, binary: Mapping[str, bool]) -> None:
        """`binary`: by name whether an output follows the JSON; "": the default."""
        self._head: dict[str, object] = {"model_name": model, "model_version": VERSION}
        if request_id:
            self._head["id"] = request_id
        self._outputs = outputs
        self._binary = binary

    def chunk(self, delta: CompletionDelta, usage: dict[str, object] | None) -> bytes:
        """Unused: the response is never streamed."""
        raise AssertionError("an inference over HTTP has one response")

    def resume(self, index: int) -> None:
        """Unused: the response cannot be resumed."""

    def end(self, usage: dict[str, object] | None) -> bytes:
        """Unused: the response is never streamed."""
        return b""

    def failure(self, error: Exception) -> bytes:
        """Unused: the response is never streamed."""
        return b""

    def whole(
        self, completions: Sequence[WholeCompletion], usage: dict[str, object]
    ) -> dict[str, object] | EncodedBody:
        """Return the response object, and behind it the binary contents, if any output has them."""
        contents: list[bytes] = []
        bodies = [self._tensor(each, contents) for each in self._outputs.of_whole(completions)]
        body = {**self._head, "outputs": bodies}
        if not contents:
            return body
        encoded = orjson.dumps(body)
        headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(encoded))}
        return EncodedBody(b"".join((encoded, *contents)), headers)

    def _tensor(self, tensor: OutputTensor, contents: list[bytes]) -> dict[str, object]:
        body: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype, "shape": [len(tensor.values)]}
        if not self._binary.get(tensor.name, self._binary[""]):
            return {**body, "data": tensor.values}
        contents.append(tensor.raw())
        return {**body, "parameters": {"binary_data_size": len(contents[-1])}}


class GenerateShape:
    """Encoder of the responses of the generate extension. A request that does not stream has one event at its end."""

    def __init__(self, model: str, request_id: str, outputs: Outputs, is_stream: bool) -> None:
        self._head: dict[str, object] = {"model_name": model, "model_version": VERSION}
        if request_id:
            self._head["id"] = request_id
        self._outputs = outputs
        self._is_stream = is_stream
        self._completions: dict[int, WholeCompletion] = {}  # of a request that does not stream

    def chunk(self, delta: CompletionDelta, usage: dict[str, object] | None) -> bytes:
        """Return the event of a delta; empty if there is nothing to send."""
        if self._is_stream:
            tensors = self._outputs.of_delta(delta)
            return self._event(tensors) if tensors else b""
        self._completions.setdefault(delta.index, WholeCompletion(delta.index)).extend(delta)
        return b""

    def resume(self, index: int) -> None:
        """Unused: the response cannot be resumed."""

    def end(self, usage: dict[str, object] | None) -> bytes:
        """Return the event of a request that does not stream."""
        if self._is_stream:
            return b""
        return self._event(self._outputs.of_whole([self._completions[index] for index in sorted(self._completions)]))

    def failure(self, error: Exception) -> bytes:
        """Return the event of an error."""
        return b"data: " + error_body(error_text(error)) + b"\n\n"

    def whole(self, completions: Sequence[WholeCompletion], usage: dict[str, object]) -> dict[str, object]:
        """Return the response object."""
        return self._body(self._outputs.of_whole(completions))

    def _event(self, tensors: Sequence[OutputTensor]) -> bytes:
        return b"data: " + orjson.dumps(self._body(tensors)) + b"\n\n"

    def _body(self, tensors: Sequence[OutputTensor]) -> dict[str, object]:
        """Return the tensors as fields; one element stands for itself."""
        values = {each.name: each.values[0] if len(each.values) == 1 else each.values for each in tensors}
        return {**self._head, **values}
