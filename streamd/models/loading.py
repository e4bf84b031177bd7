"""A published version as what a server answers by, and its memory.

`streamd.models.restored` makes of it a model that learns.
"""

from typing import TYPE_CHECKING

from streamd.errors import NewerSchemaError, VersionError
from streamd.events import Schema
from streamd.graph.facts.columns import FACT_NAMES
from streamd.models.architectures import architecture_of
from streamd.models.arrays import HOST
from streamd.models.inference.inference import Inference
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.memory.files import MemoryReader
from streamd.models.memory.memory import Memory
from streamd.ranks import ALONE, Ranks
from streamd.registry.manifest import Manifest
from streamd.registry.registry import Version
from streamd.schema_change import extends

if TYPE_CHECKING:
    import torch


def answering(
    version: Version,
    schema: Schema,
    device: str = HOST,
    memories: MemoryReader | None = None,
) -> tuple[Inference, Memory]:
    """A version, ready to answer, and its memory. Arguments and errors: as of
    `streamd.models.restored`."""
    settings = version.manifest.model_settings()
    made_on = checked_schema(version.manifest, schema)
    if device == HOST and architecture_of(settings).in_numpy and made_on == schema:
        memory = memory_of(version, made_on, device, memories)
        return NumpyModel(settings, schema, version.weights), memory

    # torch is loaded only where a version needs it. So does one that is to be widened: its next
    # successor does not.
    from streamd.gpu import fix_torch
    from streamd.models.inference.torch_model import TorchModel
    from streamd.models.restored import restored

    # The matrices are small: more threads gain nothing.
    fix_torch(1)
    model, memory = restored(version, schema, device, memories)
    return TorchModel(model), memory


def checked_schema(manifest: Manifest, schema: Schema) -> Schema:
    """The schema that a version was made on, which is that of the log or one that it extends.

    Raises: VersionError where it is another or the version knows other facts; NewerSchemaError
    where it knows sets or features that `schema` does not.
    """
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
    return made_on


def memory_of(
    version: Version,
    made_on: Schema,
    device: "str | torch.device",
    memories: MemoryReader | None = None,
    ranks: Ranks = ALONE,
) -> Memory:
    """The memory of a version at `manifest.edge`, as it was stored under the schema `made_on`."""
    manifest = version.manifest
    settings = manifest.model_settings()
    widths = settings.dim if architecture_of(settings).has_memory else 0, made_on.edge_feature_dim
    return (memories or MemoryReader()).read(
        version.memory, manifest.edge, manifest.memory_us, widths, device, ranks
    )
