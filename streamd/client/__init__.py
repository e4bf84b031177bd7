"""A typed client of a server, blocking and for asyncio; the extra `client` has what it needs.

It imports httpx2 and msgspec, and nothing else of streamd.
"""

from streamd.client.answers import (
    AsOf,
    CompletionResponse,
    EmbeddingResponse,
    Event,
    EventsResponse,
    ExplainResponse,
    LabelsResponse,
    ModelsResponse,
    Moved,
    MoveRequested,
    RecommendRequest,
    RequestOutcome,
    SchemaResponse,
    Scored,
    ScoreRequest,
    ScoreResponse,
)
from streamd.client.clients import AsyncClient, Client
from streamd.client.errors import (
    BadAnswer,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    NotAllowed,
    NotFound,
    NotPossible,
    NotReached,
    Problem,
    Refused,
    TooOld,
    TryAgain,
)
from streamd.client.exchange import Retries

__all__ = [
    "AsOf",
    "AsyncClient",
    "BadAnswer",
    "Client",
    "ClientError",
    "CompletionResponse",
    "ConnectionFailed",
    "DeadlineExceeded",
    "EmbeddingResponse",
    "Event",
    "EventsResponse",
    "ExplainResponse",
    "LabelsResponse",
    "ModelsResponse",
    "MoveRequested",
    "Moved",
    "NotAllowed",
    "NotFound",
    "NotPossible",
    "NotReached",
    "Problem",
    "RecommendRequest",
    "Refused",
    "RequestOutcome",
    "Retries",
    "SchemaResponse",
    "ScoreRequest",
    "ScoreResponse",
    "Scored",
    "TooOld",
    "TryAgain",
]
