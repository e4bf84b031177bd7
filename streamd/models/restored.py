"""A published version as a model and its memory: the one way that trainer and server load it."""

import torch

from streamd.errors import NewerSchemaError, VersionError
from streamd.events import Schema
from streamd.graph.fact_columns import FACT_NAMES
from streamd.models.link import LinkModel, build_model
from streamd.models.memory import Memory
from streamd.models.memory_files import MemoryReader
from streamd.models.widening import widened_memory, widened_model
from streamd.ranks import ALONE, Ranks
from streamd.registry.registry import Version
from streamd.schema_change import extends


def restored(
    version: Version,
    schema: Schema,
    device: str | torch.device = "cpu",
    memories: MemoryReader | None = None,
    ranks: Ranks = ALONE,
) -> tuple[LinkModel, Memory]:
    """A version's model, ready to answer, and its memory at `manifest.edge`. schema: of the log.
    memories: reads the memory from what it has more than the one read before. ranks: that share
    its rows.

    A version from before the log got further sets or features is widened.
    Raises: VersionError where its settings, tensors, widths or facts do not fit; NewerSchemaError
    where it knows sets or features that `schema` does not.
    """
    manifest = version.manifest
    made_on = manifest.log_schema()
    if made_on != schema and not extends(made_on, schema):
        kind = NewerSchemaError if extends(schema, made_on) else VersionError
        raise kind(
            f"Version {manifest.name} was made on {made_on}, the log has {schema}.",
            "promote a version that was made on this log.",
        )
    # New facts go to the end, so an older version knows the first ones.
    if manifest.facts != FACT_NAMES[: len(manifest.facts)]:
        raise VersionError(
            f"Version {manifest.name} knows other facts than this streamd makes.",
            "use the streamd that made it.",
        )
    # The weights drawn here are replaced at once, so the seed does not matter.
    model = build_model(manifest.model_settings(), made_on, 0, device)
    model.restore(version.weights)
    widths = model.settings.dim if model.has_memory else 0, made_on.edge_feature_dim
    memory = (memories or MemoryReader()).read(
        version.memory, manifest.edge, manifest.memory_us, widths, device, ranks
    )
    if made_on != schema:
        model = widened_model(model, schema)
        memory = widened_memory(memory, made_on, schema)
    return model.eval(), memory
