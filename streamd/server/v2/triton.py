"""Triton's extensions of the protocol: configuration, statistics and index of versions."""

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends
from pydantic import BaseModel, Field

from streamd.registry.registry import read_manifests
from streamd.server.state import State, require_key
from streamd.server.v2.inference import (
    MODEL,
    OUTPUTS,
    TAG,
    Name,
    TensorInfo,
    Version,
    check,
    inputs_of,
)

# Datatypes of the protocol -> their names in Triton's ModelConfig.
TYPES = {"BYTES": "TYPE_STRING", "INT64": "TYPE_INT64", "FP32": "TYPE_FP32", "BOOL": "TYPE_BOOL"}


class TensorConfig(BaseModel):
    name: str
    data_type: str
    dims: list[int] = Field(description="without the batch dimension; -1 for any size")
    optional: bool = False


class ParameterConfig(BaseModel):
    string_value: str


class ModelConfig(BaseModel):
    """The fields of Triton's message ModelConfig that apply to this server."""

    name: str
    platform: str
    backend: str
    max_batch_size: int = Field(description="maximum number of rows of src: server.max_batch")
    input: list[TensorConfig]
    output: list[TensorConfig]
    parameters: dict[str, ParameterConfig] = Field(
        description="max_candidates: maximum number of columns of dst"
    )


class Duration(BaseModel):
    """Number of measurements, and their sum; both are 0 if it is not measured."""

    count: int = 0
    ns: int = 0


class InferenceDurations(BaseModel):
    """Only `success` and `fail` are measured, from a request's tensors to its answer."""

    success: Duration
    fail: Duration
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    cache_hit: Duration = Duration()


class ModelStatistics(BaseModel):
    """Statistics of infer requests on `/v2` since the version started to serve."""

    name: str
    version: str
    last_inference: int = Field(description="milliseconds since 1970; 0 before the first")
    inference_count: int = Field(description="rows of src that were answered")
    execution_count: int = Field(
        description="requests that were answered; several may have shared a pass"
    )
    inference_stats: InferenceDurations
    batch_stats: list[Any] = Field(description="empty: not measured")


class StatisticsResponse(BaseModel):
    model_stats: list[ModelStatistics]


class IndexRequest(BaseModel):
    ready: bool = Field(False, description="only the version that can answer now")


class IndexEntry(BaseModel):
    """A version. state: READY for the one that serves, UNAVAILABLE for others; reason: why it is
    not ready."""

    name: str
    version: str
    state: str
    reason: str


# Triton's clients request each of these with and without a version.
router = APIRouter(prefix="/v2", tags=[TAG], dependencies=[Depends(require_key)])


@router.get("/models/stats")
async def statistics(state: State) -> StatisticsResponse:
    """Statistics of the version that serves, since it started to serve."""
    return await model_statistics(state, MODEL)


@router.get("/models/{name}/stats")
async def model_statistics(state: State, name: Name) -> StatisticsResponse:
    """The same, with the model's name."""
    counts = state.inferences.of(check(state, name))
    return StatisticsResponse(
        model_stats=[
            ModelStatistics(
                name=MODEL,
                version=counts.version,
                last_inference=counts.last_ms,
                inference_count=counts.rows,
                execution_count=counts.answered,
                batch_stats=[],
                inference_stats=InferenceDurations(
                    success=Duration(count=counts.answered, ns=counts.answered_ns),
                    fail=Duration(count=counts.failed, ns=counts.failed_ns),
                ),
            )
        ]
    )


@router.get("/models/{name}/versions/{version}/stats")
async def version_statistics(state: State, name: Name, version: Version) -> StatisticsResponse:
    """The same, if that version serves."""
    check(state, name, version)
    return await model_statistics(state, name)


@router.get("/models/{name}/config")
async def model_config(state: State, name: Name) -> ModelConfig:
    """Inputs, outputs and limits of the model."""
    check(state, name)
    limits = state.settings.server
    return ModelConfig(
        name=MODEL,
        platform=MODEL,
        backend=MODEL,
        max_batch_size=limits.max_batch,
        input=[_tensor(i) for i in await inputs_of(state)],
        output=[_tensor(o) for o in OUTPUTS],
        parameters={"max_candidates": ParameterConfig(string_value=str(limits.max_candidates))},
    )


@router.get("/models/{name}/versions/{version}/config")
async def version_config(state: State, name: Name, version: Version) -> ModelConfig:
    """The same, if that version serves."""
    check(state, name, version)
    return await model_config(state, name)


@router.post("/repository/index")
def repository_index(
    state: State, body: Annotated[IndexRequest | None, Body()] = None
) -> list[IndexEntry]:
    """The stored versions, oldest first, and the one that serves. Moving the champion loads
    another."""
    served = state.engine.status.version
    (ready, why) = state.ready()
    # The version that serves may not be in the registry: it was removed since, or is the rule.
    names = state.registry.names()
    made = read_manifests(state.registry)
    servable = {m.name for m in made if state.registry.is_servable(m)}
    return [
        _entry(version, served, servable, ready, why)
        for version in (names if served in names else [*names, served])
        if not (body and body.ready) or (ready and version == served)
    ]


def _entry(
    version: str, served: str, servable: Collection[str], ready: bool, why: str
) -> IndexEntry:
    if version != served:
        why = f"{served} serves; POST /v1/models/{version}/promote makes this one champion"
        if version not in servable:
            why = f"{served} serves; this one is kept without its memory and cannot serve"
    return IndexEntry(
        name=MODEL,
        version=version,
        state="READY" if ready and version == served else "UNAVAILABLE",
        reason="" if ready and version == served else why,
    )


def _tensor(info: TensorInfo) -> TensorConfig:
    return TensorConfig(
        name=info.name,
        data_type=TYPES[info.datatype],
        dims=info.shape[1:],
        optional=info.name == "time",
    )
