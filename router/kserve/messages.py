"""Conversion of gRPC messages to inferences and from output tensors."""

from collections.abc import Mapping, Sequence

from baton.protos.open_inference_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from baton.router.errors import FieldError
from baton.router.kserve import tensors
from baton.router.kserve.inference import MAX_PARAMETERS, VERSION, InferenceInputs
from baton.router.kserve.tensors import INPUTS, OutputTensor, Value
from baton.router.limits import check_text

WANTS_FINAL = "triton_enable_empty_final_response"  # parameter of a request
IS_FINAL = "triton_final_response"  # parameter of a response


def read_request(request: ModelInferRequest, may_stream: bool) -> InferenceInputs:
    """Return a request's decoded inference. `may_stream`: the call can return several responses.

    Raises FieldError that names the tensor.
    """
    check_text("id", request.id)
    for output in request.outputs:
        _refuse_parameters(output.name, output.parameters)
    return InferenceInputs(
        inputs=_inputs(request),
        parameters=_parameters(request.parameters),
        outputs=[output.name for output in request.outputs],
        request_id=request.id,
        may_stream=may_stream,
    )


def _inputs(request: ModelInferRequest) -> dict[str, Value]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        text = f"raw_input_contents has {len(raw)} tensors, but inputs has {len(request.inputs)}"
        raise FieldError("raw_input_contents", text)
    decoded: dict[str, Value] = {}
    for place, tensor in enumerate(request.inputs):
        name = tensor.name
        tensors.check_input(name, tensor.datatype, tensor.shape)
        _refuse_parameters(name, tensor.parameters)
        if name in decoded:
            raise FieldError(name, f"{name} is given twice")
        if raw:
            if tensor.HasField("contents"):
                raise FieldError(name, f"{name}: contents and raw_input_contents must not both be given")
            decoded[name] = tensors.from_raw(name, raw[place])
        else:
            contents = tensor.contents
            values: Sequence[object] = contents.bool_contents if INPUTS[name] == "BOOL" else contents.bytes_contents
            decoded[name] = tensors.from_values(name, values)
    return decoded


def _parameters(given: Mapping[str, InferParameter]) -> dict[str, object]:
    if len(given) > MAX_PARAMETERS:
        raise FieldError("parameters", f"parameters has {len(given)} entries, over the limit of {MAX_PARAMETERS}")
    parameters: dict[str, object] = {}
    for name, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise FieldError(name, f"{name[:50]}: the parameter has no value")
        parameters[name] = getattr(parameter, kind)
    return parameters


def _refuse_parameters(tensor: str, parameters: Mapping[str, InferParameter]) -> None:
    for name in parameters:
        raise FieldError(tensor, f"{tensor[:50]}: the parameter {name[:50]!r} is not supported")


def response_message(model: str, request_id: str, outputs: Sequence[OutputTensor]) -> ModelInferResponse:
    """Return the response with these outputs as raw contents, which every client reads."""
    response = ModelInferResponse(model_name=model, model_version=VERSION, id=request_id)
    for tensor in outputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=[len(tensor.values)])
        response.raw_output_contents.append(tensor.raw())
    return response
