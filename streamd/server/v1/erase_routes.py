"""The `/v1/erase` routes. They store requests to erase nodes, which another process executes."""

import re
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Path
from pydantic import BaseModel, Field

from streamd.errors import SettingsError
from streamd.server.http.query_names import refuse_unknown_parameters
from streamd.server.state import State, require_admin_key, require_key
from streamd.server.v1.bodies import nodes_of
from streamd.server.v1.schemas import NodesRequest
from streamd.store.erasure_requests import (
    MAX_OPEN,
    ErasureRequest,
    ErasureRequests,
    ErasureState,
)

MAX_NODES = 1000
"""Maximum number of nodes in one request."""
MAX_FOUND = 100
"""Maximum number of findings in an answer."""
router = APIRouter(
    prefix="/v1", dependencies=[Depends(require_key), Depends(refuse_unknown_parameters)]
)


class EraseRequest(NodesRequest):
    """Nodes to erase, at most 1,000."""

    topic: str = Field(
        "",
        max_length=249,
        description="topic for the deletes; by default the first of kafka.topics without a source",
    )


class FoundKey(BaseModel):
    """A location that still contains a key."""

    node: int = Field(description="number of the node in the request, from 1")
    where: str = Field(description="file, object or record", examples=["nodes.keys"])


class ErasureResponse(BaseModel):
    """The progress of a request to erase nodes. It does not repeat their keys."""

    request: str = Field(
        description="id for GET /v1/erase/{request}, which returns the current state"
    )
    state: ErasureState = Field(
        description="done: proven; found: a key remains; failed: waits_for has the reason"
    )
    waits_for: str = Field(description="the reason why it waits or failed")
    nodes: int = Field(description="number of nodes in the request")
    unknown: int | None = Field(
        description="nodes that are not in the log; null until they were looked up"
    )
    asked_at: float = Field(description="wall time in seconds")
    ended_at: float | None = Field(description="wall time in seconds; null until it has ended")
    found: list[FoundKey] = Field(description="at most 100")
    proof: str = Field(
        description="the files, objects and topics that were searched, and those that were not"
    )


@router.post(
    "/erase", tags=["operating"], status_code=202, dependencies=[Depends(require_admin_key)]
)
def erase(body: EraseRequest, state: State) -> ErasureResponse:
    """Erase nodes: delete them, remove their bytes, and prove that they are gone. The request
    survives restarts."""
    settings = state.settings
    # Drop repeated nodes, so that the counts in the answer are of nodes.
    keys = list(dict.fromkeys(nodes_of(state, body)))
    if len(keys) > MAX_NODES:
        raise HTTPException(422, f"{len(keys):,} nodes in one request, at most {MAX_NODES:,}")
    if body.topic and body.topic not in settings.kafka.topics:
        names = ", ".join(settings.kafka.topics)
        raise HTTPException(422, f"ingest does not read topic {body.topic!r}; it reads {names}")
    # Imported here: only this route needs the Kafka client.
    from streamd.ingest.delete_events import topic_for_deletes

    try:
        topic_for_deletes(settings.kafka, settings.sources, body.topic)
    except SettingsError as error:
        raise HTTPException(422, str(error)) from None
    requests = ErasureRequests(settings.data_dir)
    # Each open request is a file that is checked once a second.
    if requests.num_open >= MAX_OPEN:
        raise HTTPException(429, f"{MAX_OPEN:,} requests to erase are open", {"Retry-After": "60"})
    return _answer(requests.add(keys, body.topic))


@router.get("/erase/{request}", tags=["operating"])
def erasure(
    request: Annotated[str, Path(min_length=1, max_length=64)], state: State
) -> ErasureResponse:
    """The progress of a request to erase nodes: the reason why it waits, and finally its proof."""
    # An id is hexadecimal; any other text could name a path.
    is_id = re.fullmatch("[0-9a-f]+", request) is not None
    found = ErasureRequests(state.settings.data_dir).read(request) if is_id else None
    if found is None:
        raise HTTPException(404, "this machine has no such request, or it is too old")
    return _answer(found)


def _answer(one: ErasureRequest) -> ErasureResponse:
    return ErasureResponse(
        request=one.id,
        state=one.state,
        waits_for=one.waits_for,
        nodes=one.num_keys,
        unknown=one.num_unknown,
        asked_at=one.asked_at,
        ended_at=one.ended_at or None,
        found=[FoundKey(node=number, where=where) for number, where in one.found[:MAX_FOUND]],
        proof=one.proof,
    )
