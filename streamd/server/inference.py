"""The Open Inference Protocol, version 2: the champion as the model `streamd`, for clients of inference servers."""

from math import prod
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Path
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from streamd import __version__
from streamd.events import MICROSECONDS, Key
from streamd.server.answers import Answer, Asked
from streamd.server.schemas import INT64
from streamd.server.state import ServerState, State, require_key

MODEL = "streamd"
INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
Name = Annotated[str, Path(max_length=64, examples=[MODEL])]


class TensorInfo(BaseModel):
    name: str
    datatype: str
    shape: list[int] = Field(description="-1 for any size")


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
    """A tensor in row-major order, flat or nested."""

    name: str = Field(max_length=64, examples=["src"])
    shape: list[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(max_length=8, examples=[[1]])
    datatype: str = Field(max_length=16, examples=["BYTES"])
    parameters: dict[str, Any] | None = None
    data: list[Any] = Field(examples=[["user:74"]])


class OutputWish(BaseModel):
    name: str = Field(max_length=64, examples=["score"])
    parameters: dict[str, Any] | None = None


class InferRequest(BaseModel):
    """`src`: N node keys, BYTES or integers; `dst`: N x C of them; `time`, optional: N integers in stream.time_unit."""

    id: str | None = Field(None, max_length=256)
    parameters: dict[str, Any] | None = None
    inputs: list[InputTensor] = Field(min_length=1, max_length=16, examples=[[
        {"name": "src", "shape": [1], "datatype": "BYTES", "data": ["user:74"]},
        {"name": "dst", "shape": [1, 2], "datatype": "BYTES", "data": ["page:1", "page:2"]}]])
    outputs: list[OutputWish] | None = Field(None, max_length=16)


class OutputTensor(BaseModel):
    name: str
    shape: list[int]
    datatype: Literal["FP32", "BOOL"]
    data: list[Any]


class InferResponse(BaseModel):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


INPUTS = [TensorInfo(name="src", datatype="BYTES", shape=[-1]), TensorInfo(name="dst", datatype="BYTES", shape=[-1, -1]),
          TensorInfo(name="time", datatype="INT64", shape=[-1])]
OUTPUTS = [TensorInfo(name="score", datatype="FP32", shape=[-1, -1]),
           TensorInfo(name="known", datatype="BOOL", shape=[-1, -1])]
router = APIRouter(prefix="/v2", tags=["open inference protocol"])
model = APIRouter(dependencies=[Depends(require_key)])


@router.get("")
async def server_metadata() -> ServerMetadata:
    """What this server is."""
    return ServerMetadata(name="streamd", version=__version__, extensions=[])


@router.get("/health/live", responses={503: {}})
async def live(state: State) -> JSONResponse:
    """Whether the engine's loop turns."""
    well, _ = state.alive()
    return JSONResponse({"live": well}, 200 if well else 503)


@router.get("/health/ready", responses={503: {}})
async def ready(state: State) -> JSONResponse:
    """Whether requests can be answered now."""
    well, _ = state.ready()
    return JSONResponse({"ready": well}, 200 if well else 503)


@model.get("/models/{name}")
@model.get("/models/{name}/versions/{version}")
async def model_metadata(state: State, name: Name, version: Name | None = None) -> ModelMetadata:
    """Inputs and outputs of the model, and the version that is loaded."""
    _check(state, name, version)
    served = state.engine.status.version
    return ModelMetadata(name=MODEL, versions=[served], platform="streamd", inputs=INPUTS, outputs=OUTPUTS)


@model.get("/models/{name}/ready", responses={503: {}})
@model.get("/models/{name}/versions/{version}/ready", responses={503: {}})
async def model_ready(state: State, name: Name, version: Name | None = None) -> JSONResponse:
    """Whether that model, in that version, can be asked now."""
    _check(state, name, version)
    well, _ = state.ready()
    return JSONResponse({"name": MODEL, "ready": well}, 200 if well else 503)


@model.post("/models/{name}/infer", response_model_exclude_none=True)
@model.post("/models/{name}/versions/{version}/infer", response_model_exclude_none=True)
async def infer(body: InferRequest, state: State, name: Name, version: Name | None = None) -> InferResponse:
    """Scores of N x C pairs. An answer of another version than the one asked for is an error, not an answer."""
    _check(state, name, version)
    tensors = {t.name: t for t in body.inputs}
    src, dst = (_keys(tensors.get(n), n, dims) for n, dims in (("src", 1), ("dst", 2)))
    rows, columns = tensors["dst"].shape
    limit = state.settings.server
    if len(src) != rows or not 1 <= rows <= limit.max_batch or not 1 <= columns <= limit.max_candidates:
        raise HTTPException(400, f"src has shape [{len(src)}], dst [{rows}, {columns}]: N must agree, at most "
                                 f"{limit.max_batch} (server.max_batch), and C at most {limit.max_candidates}")
    scale = MICROSECONDS[state.settings.stream.time_unit]
    times = [min(t * scale, 2**62) for t in _times(tensors.get("time"), rows)]
    wanted = [o.name for o in body.outputs] if body.outputs else [o.name for o in OUTPUTS]
    if unknown := set(wanted) - {o.name for o in OUTPUTS}:
        raise HTTPException(400, f"there is no output {sorted(unknown)[0]!r}; there are score and known")
    answers = await state.engine.ask_all([
        Asked(s, tuple(dst[i * columns: (i + 1) * columns]), times[i] if times else None) for i, s in enumerate(src)])
    if version is not None and any(a.version != version for a in answers):
        raise HTTPException(404, f"version {version} is no longer served")
    return InferResponse(model_name=MODEL, model_version=answers[0].version, id=body.id,
                         outputs=[_output(name, answers, columns) for name in wanted])


router.include_router(model)


def _output(name: str, answers: list[Answer], columns: int) -> OutputTensor:
    data: list[Any] = [x for a in answers for x in (a.scores if name == "score" else a.known)]
    return OutputTensor(name=name, shape=[len(answers), columns], datatype="FP32" if name == "score" else "BOOL", data=data)


def _check(state: ServerState, name: str, version: str | None) -> None:
    if name != MODEL:
        raise HTTPException(404, f"there is no model {name!r}, only {MODEL!r}")
    served = state.engine.status.version
    if version is not None and version != served:
        raise HTTPException(404, f"version {version} is not served, {served} is")


def _flat(tensor: InputTensor) -> list[Any]:
    """Its values in row-major order. Raises: HTTPException where their number is not that of the shape."""
    values: list[Any] = tensor.data
    for _ in range(len(tensor.shape) - 1):
        if values and all(isinstance(v, list) for v in values):
            values = [x for v in values for x in v]
    if len(values) != prod(tensor.shape):
        raise HTTPException(400, f"{tensor.name} has {len(values)} values, its shape {tensor.shape} another number")
    return values


def _keys(tensor: InputTensor | None, name: str, dims: int) -> list[Key]:
    if tensor is None or len(tensor.shape) != dims:
        raise HTTPException(400, f"input {name!r} is needed, with {dims} dimension{'s' * (dims > 1)}")
    values = _flat(tensor)
    if tensor.datatype == "BYTES" and all(isinstance(v, str) and 0 < len(v) <= 1024 for v in values):
        return values
    if tensor.datatype in INTEGERS and all(type(v) is int and abs(v) <= INT64 for v in values):
        return values
    raise HTTPException(400, f"{name} is {tensor.datatype} but not all of its values are; keys are BYTES (text of 1 to 1024 "
                             "characters) or integers of 64 bits")


def _times(tensor: InputTensor | None, rows: int) -> list[int]:
    if tensor is None:
        return []
    values = _flat(tensor)
    if tensor.datatype != "INT64" or tensor.shape != [rows] or not all(type(v) is int and 0 <= v <= INT64 for v in values):
        raise HTTPException(400, f"time must be INT64 of shape [{rows}], from 0 on")
    return values
