"""A published version as a model that learns and its memory; `streamd.models.loading` makes what a
server answers by."""

import torch

from streamd.events import Schema
from streamd.models.link import LinkModel, build_model
from streamd.models.loading import checked_schema, memory_of
from streamd.models.memory.files import MemoryReader
from streamd.models.memory.memory import Memory
from streamd.models.widening import widened_memory, widened_model
from streamd.ranks import ALONE, Ranks
from streamd.registry.registry import Version


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
    made_on = checked_schema(version.manifest, schema)
    # The weights drawn here are replaced at once, so the seed does not matter.
    model = build_model(version.manifest.model_settings(), made_on, 0, device)
    model.restore(version.weights)
    memory = memory_of(version, made_on, device, memories, ranks)
    if made_on != schema:
        model = widened_model(model, schema)
        memory = widened_memory(memory, made_on, schema)
    return model.eval(), memory
