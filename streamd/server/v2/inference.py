"""The routes of the Open Inference Protocol, version 2, for clients of inference servers such as
Triton. The version that serves is the model `streamd`."""

import time
from collections.abc import Callable, Coroutine
from math import prod
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from streamd import __version__
from streamd.events import MICROSECONDS
from streamd.server.engine.conditions import Conditions, headers_of
from streamd.server.engine.set_names import PlainKey, in_set
from streamd.server.http.compression import compress_response, expand_body
from streamd.server.http.fast_routes import (
    DirectRoute,
    Model,
    is_json,
    media_type,
    parse_body,
    whole,
)
from streamd.server.state import AnswerConditions, ServerState, State, require_key
from streamd.server.v1.request_parts import INT64
from streamd.server.v2 import binary
from streamd.serving.requests import Answer, Score

MODEL = "streamd"
TAG = "open inference protocol"
EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
"""The extensions that are implemented in full; of `model_repository` there is only the index."""
UNSERVED = ("shared_memory_region", "classification")
"""Parameters that are refused because they would change the answer. Other unknown parameters are
ignored."""
OCTETS = "application/octet-stream"
"""Media type of bodies with tensors after the JSON."""
Name = Annotated[str, Path(max_length=64, examples=[MODEL])]
Version = Annotated[str, Path(max_length=64, examples=["rule"])]


class TensorParameters(BaseModel):
    datatypes: list[str] = Field(
        description="all datatypes of the log's keys, if there are several"
    )


class TensorInfo(BaseModel):
    name: str
    datatype: str
    shape: list[int] = Field(description="-1 for any size")
    parameters: TensorParameters | None = None


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


class InputTensor(BaseModel):
    """A tensor in row-major order: its values in `data`, flat or nested, or as bytes after the
    JSON. The parameter `binary_data_size` is the number of these bytes."""

    name: str = Field(max_length=64, examples=["src"])
    shape: list[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(max_length=8, examples=[[1]])
    datatype: str = Field(max_length=16, examples=["BYTES"])
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = Field(None, examples=[["user:74"]])


class OutputWish(BaseModel):
    name: str = Field(max_length=64, examples=["score"])
    parameters: dict[str, Any] | None = None


class InferRequest(BaseModel):
    """`src`: N node keys, BYTES or integers; `dst`: N x C of them; `time`, optional: N integers in
    stream.time_unit; `edge_set`: N names, BYTES, required if several are declared."""

    id: str | None = Field(None, max_length=256)
    parameters: dict[str, Any] | None = None
    inputs: list[InputTensor] = Field(
        min_length=1,
        max_length=16,
        examples=[
            [
                {"name": "src", "shape": [1], "datatype": "BYTES", "data": ["user:74"]},
                {"name": "dst", "shape": [1, 2], "datatype": "BYTES", "data": ["page:1", "page:2"]},
            ]
        ],
    )
    outputs: list[OutputWish] | None = Field(None, max_length=16)


class OutputTensor(BaseModel):
    """Values in `data`, or if binary output was requested, bytes after the JSON. The parameter
    `binary_data_size` is the number of these bytes."""

    name: str
    shape: list[int]
    datatype: Literal["FP32", "BOOL"]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class InferParameters(BaseModel):
    hint: str = Field(
        description="a key is no node but the key of the other type is: the text "
        '"5" for the integer 5, or the reverse'
    )


class InferResponse(BaseModel):
    model_name: str
    model_version: str
    id: str | None = None
    parameters: InferParameters | None = None
    outputs: list[OutputTensor]


TIME = TensorInfo(name="time", datatype="INT64", shape=[-1])
KEY_DATATYPES = {str: "BYTES", int: "INT64"}
EDGE_SET = TensorInfo(name="edge_set", datatype="BYTES", shape=[-1])
"""A further input if several edge sets are declared."""
OUTPUTS = [
    TensorInfo(name="score", datatype="FP32", shape=[-1, -1]),
    TensorInfo(name="known", datatype="BOOL", shape=[-1, -1]),
]


class InferRoute(DirectRoute):
    """A direct route with bodies that may be compressed and may have tensors after the JSON.

    A body may have no content-type. A web page of another site could send such a body through a
    browser, but infer changes nothing and the page cannot read the response.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_and_compress(request: Request) -> Response:
            return compress_response(
                await handle(request), request.headers.get("accept-encoding", "")
            )

        return handle_and_compress

    async def read(self, request: Request, model: type[Model]) -> Model:
        """Read the body, and give each input its values from the JSON or from the bytes after
        it."""
        kind = media_type(request)
        if kind not in ("", OCTETS) and not is_json(kind):
            raise HTTPException(
                422,
                f"body: sent as {kind[:64]}; set content-type: application/json,"
                f" or {OCTETS} with tensors after the JSON",
            )
        body = expand_body(await whole(request), request.headers.get("content-encoding", ""))
        text, rest = binary.split(body, request.headers.get(binary.JSON_LENGTH))
        parsed = parse_body(model, text)
        assert isinstance(parsed, InferRequest)
        _fill(parsed.inputs, rest)
        return parsed


router = APIRouter(prefix="/v2", tags=[TAG])
model = APIRouter(prefix="/v2/models/{name}", tags=[TAG], dependencies=[Depends(require_key)])
asking = APIRouter(
    prefix="/v2/models/{name}",
    tags=[TAG],
    dependencies=[Depends(require_key)],
    route_class=InferRoute,
)
INFER: dict[str, Any] = {
    "response_model": InferResponse,
    "responses": {200: {"content": {OCTETS: {}}}},
}


async def inputs_of(state: ServerState) -> list[TensorInfo]:
    """The inputs of the model. Keys have the datatype of the log's keys: BYTES if there are texts,
    both types, or no keys yet; otherwise INT64."""
    pairs = [state.sets.endpoint_sets(number) for number in range(state.sets.num_edge_sets)]
    inputs = []
    for name, shape, node_sets in zip(
        ("src", "dst"), ([-1], [-1, -1]), zip(*pairs, strict=True), strict=True
    ):
        types = await state.key_types.of(state.engine.keys, set(node_sets))
        datatypes = [datatype for kind, datatype in KEY_DATATYPES.items() if kind in types]
        tensor = TensorInfo(name=name, datatype=(datatypes or ["BYTES"])[0], shape=shape)
        if len(datatypes) > 1:
            tensor.parameters = TensorParameters(datatypes=datatypes)
        inputs.append(tensor)
    return [*inputs, TIME, *([EDGE_SET] if state.sets.num_edge_sets > 1 else [])]


@router.get("")
async def server_metadata() -> ServerMetadata:
    """Name, version and extensions of this server."""
    return ServerMetadata(name="streamd", version=__version__, extensions=EXTENSIONS)


@router.get("/health/live", responses={503: {}})
async def server_live(state: State) -> JSONResponse:
    """Whether the engine's loop is alive."""
    well, _ = state.alive()
    return JSONResponse({"live": well}, 200 if well else 503)


@router.get("/health/ready", responses={503: {}})
async def server_ready(state: State) -> JSONResponse:
    """Whether the server can answer requests now."""
    well, _ = state.ready()
    return JSONResponse({"ready": well}, 200 if well else 503)


@model.get("", response_model_exclude_unset=True)
async def model_metadata(state: State, name: Name) -> ModelMetadata:
    """Inputs and outputs of the model, and the version that serves."""
    served = check(state, name)
    inputs = await inputs_of(state)
    return ModelMetadata(
        name=MODEL, versions=[served], platform=MODEL, inputs=inputs, outputs=OUTPUTS
    )


@model.get("/versions/{version}", response_model_exclude_unset=True)
async def version_metadata(state: State, name: Name, version: Version) -> ModelMetadata:
    """The same, if that version serves."""
    check(state, name, version)
    return await model_metadata(state, name)


@model.get("/ready", responses={503: {}})
async def model_ready(state: State, name: Name) -> JSONResponse:
    """Whether the model can answer requests now."""
    check(state, name)
    well, _ = state.ready()
    return JSONResponse({"name": MODEL, "ready": well}, 200 if well else 503)


@model.get("/versions/{version}/ready", responses={503: {}})
async def version_ready(state: State, name: Name, version: Version) -> JSONResponse:
    """Whether that version can answer requests now."""
    check(state, name, version)
    return await model_ready(state, name)


@asking.post("/infer", **INFER)
async def infer(
    body: InferRequest, state: State, conditions: AnswerConditions, name: Name
) -> Response:
    """Scores of N x C pairs."""
    return await _infer(body, state, conditions, name, None)


@asking.post("/versions/{version}/infer", **INFER)
async def infer_version(
    body: InferRequest, state: State, conditions: AnswerConditions, name: Name, version: Version
) -> Response:
    """Scores by that version; an error if another one serves."""
    return await _infer(body, state, conditions, name, version)


async def _infer(
    body: InferRequest, state: ServerState, conditions: Conditions, name: str, version: str | None
) -> Response:
    """Answer an infer request, and count it for the version that answered."""
    served = check(state, name, version)
    begun = time.perf_counter_ns()
    num_answers = 0
    try:
        answers, columns, hint = await _answers(body, state, conditions)
        # The version may have been swapped since the check.
        if version is not None and any(a.version != version for a in answers):
            raise HTTPException(404, f"version {version} is no longer served")
        response = _response(body, answers, columns, hint)
        served = answers[0].version
        num_answers = len(answers)
        return response
    finally:
        # This also runs if the client disconnects, which cancels the task.
        took = time.perf_counter_ns() - begun
        if num_answers:
            state.inferences.of(served).add_answer(num_answers, took)
        else:
            state.inferences.of(served).add_failure(took)


async def _answers(
    body: InferRequest, state: ServerState, conditions: Conditions
) -> tuple[list[Answer], int, str]:
    """Answer the N rows of a request. Returns: the answers, the number C of columns of dst, and the
    first hint about a key, or ""."""
    # Read the keys, and check that their shapes agree.
    tensors = {t.name: t for t in body.inputs}
    src, dst = (_keys(tensors.get(n), n, dims) for n, dims in (("src", 1), ("dst", 2)))
    rows, columns = tensors["dst"].shape
    limit = state.settings.server
    if (
        len(src) != rows
        or not 1 <= rows <= limit.max_batch
        or not 1 <= columns <= limit.max_candidates
    ):
        raise HTTPException(
            400,
            f"src has shape [{len(src)}], dst [{rows}, {columns}]: N must agree, at most "
            f"{limit.max_batch} (server.max_batch), and C at most {limit.max_candidates}",
        )

    # The times, in the stream's unit.
    scale = MICROSECONDS[state.settings.stream.time_unit]
    times = [min(t * scale, 2**62) for t in _times(tensors.get("time"), rows)]

    # Refuse unknown outputs before the computation.
    for output_request in body.outputs or ():
        if output_request.name not in {o.name for o in OUTPUTS}:
            raise HTTPException(
                400, f"there is no output {output_request.name!r}; there are score and known"
            )
        _refuse_parameters(output_request.name, output_request.parameters)
    requests = []
    for i, edge_set in enumerate(_edge_sets(tensors.get("edge_set"), rows, state)):
        source, target = state.sets.endpoint_sets(edge_set)
        candidates = tuple(in_set(target, d) for d in dst[i * columns : (i + 1) * columns])
        when = times[i] if times else None
        requests.append(Score(in_set(source, src[i]), candidates, when, edge_set))
    answers = await state.engine.ask_all(requests, conditions)
    hints = (state.key_hint(r.src, a) for r, a in zip(requests, answers, strict=True))
    return answers, columns, next(filter(None, hints), "")


def _response(body: InferRequest, answers: list[Answer], columns: int, hint: str) -> Response:
    """Write the requested outputs in their order, each in the JSON or as bytes after it."""
    # Without a list of outputs, write both.
    all_binary = (body.parameters or {}).get("binary_data_output") is True
    requested = body.outputs or [OutputWish(name=o.name) for o in OUTPUTS]
    outputs = []
    tensor_bytes = b""
    for output_request in requested:
        values = [
            x for a in answers for x in (a.scores if output_request.name == "score" else a.known)
        ]
        datatype = next(o.datatype for o in OUTPUTS if o.name == output_request.name)
        output: dict[str, Any] = {
            "name": output_request.name,
            "shape": [len(answers), columns],
            "datatype": datatype,
        }
        if (output_request.parameters or {}).get("binary_data", all_binary) is True:
            raw = binary.encode(datatype, values)
            output["parameters"] = {binary.SIZE: len(raw)}
            tensor_bytes += raw
        else:
            output["data"] = values
        outputs.append(output)

    # Write the JSON, then the bytes.
    header: dict[str, Any] = {
        "model_name": MODEL,
        "model_version": answers[0].version,
        "outputs": outputs,
    }
    if hint:
        header["parameters"] = {"hint": hint}
    if body.id is not None:
        header["id"] = body.id
    text = msgspec.json.encode(header)
    headers = headers_of(answers[0].seen)
    if not tensor_bytes:
        return Response(text, media_type="application/json", headers=headers)
    headers[binary.JSON_LENGTH] = str(len(text))
    return Response(text + tensor_bytes, media_type=OCTETS, headers=headers)


def check(state: ServerState, name: str, version: str | None = None) -> str:
    """Check the model and version of a request. Returns: name of the version that serves. Raises:
    HTTPException if the request is for another model or version."""
    if name != MODEL:
        raise HTTPException(404, f"there is no model {name!r}, only {MODEL!r}")
    served = state.engine.status.version
    # Only one version is loaded, so no other can answer.
    if version is not None and version != served:
        raise HTTPException(404, f"version {version} is not served, {served} is")
    return served


def _fill(inputs: list[InputTensor], rest: bytes) -> None:
    """Set the values of inputs that are bytes after the JSON. rest: those bytes.

    Raises: HTTPException if the bytes do not fit the inputs.
    """
    for tensor in inputs:
        parameters = tensor.parameters or {}
        _refuse_parameters(tensor.name, parameters)
        # An input has either data in the JSON, or bytes, which follow in the order of the inputs.
        if binary.SIZE in parameters:
            if tensor.data is not None:
                raise HTTPException(400, f"{tensor.name} has both data and {binary.SIZE}; send one")
            raw, rest = binary.take(tensor.name, parameters[binary.SIZE], rest)
            tensor.data = binary.decode(tensor.name, tensor.datatype, prod(tensor.shape), raw)
        elif tensor.data is None:
            raise HTTPException(400, f"{tensor.name} has neither data nor {binary.SIZE}; send one")
    if rest:
        raise HTTPException(400, f"{len(rest)} bytes after the JSON belong to no input")


def _refuse_parameters(name: str, parameters: dict[str, Any] | None) -> None:
    for parameter in UNSERVED:
        if parameter in (parameters or {}):
            raise HTTPException(400, f"{name}: {parameter} is not supported; leave it out")


def _flat(tensor: InputTensor) -> list[Any]:
    """An input's values in row-major order, from flat or nested data.

    Raises: HTTPException if their number does not match the shape.
    """
    # Flatten nested data one dimension at a time.
    values: list[Any] = tensor.data or []
    for _ in range(len(tensor.shape) - 1):
        if values and all(isinstance(v, list) for v in values):
            values = [x for v in values for x in v]
    if len(values) != prod(tensor.shape):
        raise HTTPException(
            400, f"{tensor.name} has {len(values)} values, but its shape is {tensor.shape}"
        )
    return values


def _keys(tensor: InputTensor | None, name: str, dims: int) -> list[PlainKey]:
    if tensor is None or len(tensor.shape) != dims:
        raise HTTPException(
            400, f"input {name!r} is required, with {dims} dimension{'s' * (dims > 1)}"
        )

    # Accept texts and integers within the log's bounds for keys. Python's bool is an int, but no
    # key.
    values = _flat(tensor)
    if tensor.datatype == "BYTES" and all(
        isinstance(v, str) and 0 < len(v) <= 1024 for v in values
    ):
        return values
    is_integer = tensor.datatype in binary.INTEGERS
    if is_integer and all(type(v) is int and abs(v) <= INT64 for v in values):
        return values
    raise HTTPException(
        400,
        f"{name} is {tensor.datatype} but not all of its values are; keys are BYTES "
        "(text of 1 to 1024 characters) or integers of 64 bits",
    )


def _edge_sets(tensor: InputTensor | None, rows: int, state: ServerState) -> list[int]:
    """Numbers of the rows' edge sets."""
    if tensor is None:
        names: list[Any] = [None] * rows
    else:
        names = _flat(tensor)
        is_text = tensor.datatype == "BYTES" and all(isinstance(n, str) for n in names)
        if not is_text or tensor.shape != [rows]:
            raise HTTPException(
                400, f"edge_set must be BYTES of shape [{rows}], names of edge sets"
            )
    try:
        return [state.sets.edge_set(name) for name in names]
    except HTTPException as error:
        raise HTTPException(400, error.detail) from None


def _times(tensor: InputTensor | None, rows: int) -> list[int]:
    if tensor is None:
        return []
    values = _flat(tensor)
    if (
        tensor.datatype != "INT64"
        or tensor.shape != [rows]
        or not all(type(v) is int and 0 <= v <= INT64 for v in values)
    ):
        raise HTTPException(400, f"time must be INT64 of shape [{rows}], from 0 on")
    return values
