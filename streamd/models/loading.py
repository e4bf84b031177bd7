"""Loads a published version with its memory, to train it further or to answer with it."""

from typing import TYPE_CHECKING

from streamd.errors import NewerSchemaError, VersionError
from streamd.events import Schema
from streamd.graph.facts.columns import FACT_NAMES
from streamd.models.architectures import architecture_of
from streamd.models.device_arrays import HOST
from streamd.models.inference.inference import Inference
from streamd.models.inference.numpy_model import NumpyModel
from streamd.models.memory.files import MemoryReader
from streamd.models.memory.memory import Memory
from streamd.ranks import ALONE, Ranks
from streamd.registry.manifest import Manifest
from streamd.registry.stored_versions import Version
from streamd.schema_change import extends

if TYPE_CHECKING:
    import torch

    from streamd.models.link import LinkModel


def load_inference(
    version: Version,
    schema: Schema,
    device: str = HOST,
    memories: MemoryReader | None = None,
) -> tuple[Inference, Memory]:
    """Load a version for answering, and its memory. Arguments and errors: as in `load_model`."""
    settings = version.manifest.model_settings()
    made_on = _check_schema(version.manifest, schema)
    if device == HOST and architecture_of(settings).in_numpy and made_on == schema:
        memory = _read_memory(version, made_on, device, memories)
        return NumpyModel(settings, schema, version.weights), memory

    # torch is imported only for a version that needs it. A version that must be widened needs it
    # too; its successor is already wide.
    from streamd.gpu import make_torch_deterministic
    from streamd.models.inference.torch_model import TorchModel

    # More threads gain nothing with matrices this small.
    make_torch_deterministic(1)
    model, memory = load_model(version, schema, device, memories)
    return TorchModel(model), memory


def load_model(
    version: Version,
    schema: Schema,
    device: "str | torch.device" = HOST,
    memories: MemoryReader | None = None,
    ranks: Ranks = ALONE,
) -> tuple["LinkModel", Memory]:
    """Load a version's model, in evaluation mode, and its memory at `manifest.edge`.

    A version that was made before the log got further sets or features is widened.

    Args: schema: of the log; memories: reads only the memory files that the version before did not
    have; ranks: they share the memory's rows. Raises: VersionError if its settings, tensors, widths
    or facts do not fit; NewerSchemaError if it knows sets or features that `schema` does not.
    """
    from streamd.models.link import build_model
    from streamd.models.widening import widened_memory, widened_model

    # The weights drawn here are overwritten next, so the seed does not matter.
    made_on = _check_schema(version.manifest, schema)
    model = build_model(version.manifest.model_settings(), made_on, 0, device)
    model.restore(version.weights)
    memory = _read_memory(version, made_on, device, memories, ranks)
    if made_on != schema:
        model = widened_model(model, schema)
        memory = widened_memory(memory, made_on, schema)
    return model.eval(), memory


def _check_schema(manifest: Manifest, schema: Schema) -> Schema:
    """The schema that a version was made on: equal to the log's, or one that the log's extends.

    Raises: VersionError if it is neither, or if the version knows other facts; NewerSchemaError if
    it knows sets or features that `schema` does not.
    """
    made_on = manifest.log_schema()
    if made_on != schema and not extends(made_on, schema):
        kind = NewerSchemaError if extends(schema, made_on) else VersionError
        raise kind(
            f"Version {manifest.name} was trained on {made_on}, but the log has {schema}.",
            "promote a version that was trained on this log.",
        )
    # New facts are appended, so an older version knows the first ones.
    if manifest.facts != FACT_NAMES[: len(manifest.facts)]:
        raise VersionError(
            f"Version {manifest.name} was trained on other pair facts than this release computes.",
            "use the release of streamd that wrote it.",
        )
    return made_on


def _read_memory(
    version: Version,
    made_on: Schema,
    device: "str | torch.device",
    memories: MemoryReader | None = None,
    ranks: Ranks = ALONE,
) -> Memory:
    """The memory of a version at `manifest.edge`, stored under the schema `made_on`."""
    manifest = version.manifest
    settings = manifest.model_settings()
    widths = settings.dim if architecture_of(settings).has_memory else 0, made_on.edge_feature_dim
    return (memories or MemoryReader()).read(
        version.memory, manifest.edge, manifest.memory_us, widths, device, ranks
    )
