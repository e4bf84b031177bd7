"""The registries of metrics, one for each role, and the registries that a role exports."""

from prometheus_client import REGISTRY, CollectorRegistry

# One registry for each role, so that a role exports only metrics that it measures.
INGEST = CollectorRegistry()
TRAIN = CollectorRegistry()
SERVE = CollectorRegistry()
ARCHIVE = CollectorRegistry()
FOLLOW = CollectorRegistry()
SCORE = CollectorRegistry()
TRIAL = CollectorRegistry()
MODEL = CollectorRegistry()
"""Metrics of both roles that run a model: train and serve."""
MEMBER = CollectorRegistry()
"""Metrics of both roles that write a replicated log: ingest and follow."""
OWNED = {
    "ingest": (INGEST, MEMBER),
    "train": (TRAIN, MODEL),
    "serve": (SERVE, MODEL),
    "archive": (ARCHIVE,),
    "follow": (FOLLOW, MEMBER),
    "score": (SCORE,),
    "trial": (TRIAL,),
}
"""Registries of each role. A metric without a registry of its own is in `REGISTRY`, which every
role exports."""


def exported_by(role: str, *also: CollectorRegistry) -> CollectorRegistry:
    """The metrics that a role exports: its own, and those of every role.

    Others are left out: a zero from a role that does not measure a metric would look like a
    measurement. also: registries of another role whose work this process does.
    """
    together = CollectorRegistry()
    for registry in (REGISTRY, *OWNED[role], *also):
        together.register(registry)
    return together
