"""The registries of metrics: one for each role, and what a role exports of them."""

from prometheus_client import REGISTRY, CollectorRegistry

# One registry for each role, so that a role exports only what it measures.
INGEST = CollectorRegistry()
TRAIN = CollectorRegistry()
SERVE = CollectorRegistry()
ARCHIVE = CollectorRegistry()
FOLLOW = CollectorRegistry()
SCORE = CollectorRegistry()
MODEL = CollectorRegistry()
"""Metrics of both roles that run a model: train and serve."""
MEMBER = CollectorRegistry()
"""Metrics of both roles that write a log which several machines hold: ingest and follow."""
OWNED = {
    "ingest": (INGEST, MEMBER),
    "train": (TRAIN, MODEL),
    "serve": (SERVE, MODEL),
    "archive": (ARCHIVE,),
    "follow": (FOLLOW, MEMBER),
    "score": (SCORE,),
}
"""Registries of each role. A metric made without one is in `REGISTRY`, which every role exports."""


def exported_by(role: str, *also: CollectorRegistry) -> CollectorRegistry:
    """Collect what a role exports: the metrics that it owns, and those of every role.

    Others are left out: the zero of a role that measures nothing would look like a measurement.
    also: registries of a role whose work this process does too.
    """
    together = CollectorRegistry()
    for registry in (REGISTRY, *OWNED[role], *also):
        together.register(registry)
    return together
