"""The parts that several request bodies of the REST API share."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

INT64 = 2**63 - 1
"""Maximum absolute value of an integer key, and maximum time."""
NodeKey = (
    Annotated[StrictInt, Field(ge=-INT64, le=INT64)]
    | Annotated[StrictStr, Field(min_length=1, max_length=1024)]
)


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


EdgeSetName = Annotated[
    str | None,
    Field(
        max_length=256,
        description="edge set; required if several are declared",
    ),
]
NodeSetName = Annotated[
    str | None,
    Field(max_length=256, description="node set of the nodes; required if several are declared"),
]

MAX_CONTEXT = 64
"""Maximum number of events in a context. The facts of a node depend on its last 16 partners; older
events change little more than counts."""


class ContextEvent(RequestBody):
    """An event of a source that the log does not have."""

    dst: NodeKey = Field(description="its destination", examples=["page:1"])
    time: StrictInt | None = Field(
        None,
        ge=0,
        le=2**62,
        description="in stream.time_unit; one before the newest event of the log, or none, means "
        "that event's time",
    )
    features: list[float] | dict[str, Any] | None = Field(
        None, description="features of the edge, as in events"
    )
    edge_set: str | None = Field(
        None, max_length=256, description="edge set; that of the request if absent"
    )


SourceFeatures = Annotated[
    list[float] | dict[str, Any] | None,
    Field(
        description="features of a source without events in the log, as in events of nodes",
        examples=[None],
    ),
]
Context = Annotated[
    list[ContextEvent],
    Field(
        max_length=MAX_CONTEXT,
        description="the events of a source without events in the log, oldest first: the answer "
        "is as after these events, and nothing of them is stored",
        examples=[[]],
    ),
]


CONDITION: dict[str, Any] = {
    "anyOf": [
        {"type": ["string", "number", "boolean"]},
        {"type": "array", "items": {"type": ["string", "number", "boolean"]}},
        {
            "type": "object",
            "properties": {bound: {"type": "number"} for bound in ("gt", "gte", "lt", "lte")},
            "additionalProperties": False,
            "minProperties": 1,
        },
    ]
}
"""A condition on a feature as JSON Schema: a value, a list of values, or a range of numbers."""


# Filters of the nodes in an answer. Lists have at most server.max_candidates items.
KindFilter = Annotated[
    str | None,
    Field(
        max_length=256,
        description="only destinations with this text before the first colon of their key",
    ),
]
OnlyFilter = Annotated[
    list[NodeKey] | None,
    Field(description="only these nodes", examples=[["page:1", "page:2", "page:3"]]),
]
ExcludeFilter = Annotated[
    list[NodeKey], Field(description="none of these nodes", examples=[["page:4"]])
]
WhereFilter = Annotated[
    dict[Annotated[str, Field(max_length=256)], Any],
    Field(
        description="feature -> a value, a list of values, or a range of numbers by gt, gte, lt "
        "and lte; nodes without features are left out",
        json_schema_extra={"additionalProperties": CONDITION},
    ),
]


class Diversity(RequestBody):
    """Limits how many nodes of an answer have the same value of a feature."""

    feature: str = Field(max_length=256, description="feature of the nodes", examples=["category"])
    max_per_value: int = Field(
        ge=1, le=1000, description="maximum number of nodes with the same value"
    )
