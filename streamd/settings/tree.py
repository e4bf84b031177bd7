"""The settings tree: a frozen branch for each component, each setting with its default, bounds and
description.

`streamd.settings.loading` reads it. `docs/settings.md` lists every key; a test compares the two.
"""

from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from streamd.events import Schema
from streamd.schema import DEFAULT_SET
from streamd.settings.branch import (
    Branch,
    Natural,
    Positive,
    Seconds,
    Start,
    check_not_blank,
    check_topic_name,
)
from streamd.settings.kafka_settings import KafkaSettings, SchemaRegistrySettings
from streamd.settings.log import HoldSettings, LeaderSettings, LogSettings, SqlSettings
from streamd.settings.mlflow import MlflowSettings
from streamd.settings.server import ServerSettings, TelemetrySettings
from streamd.settings.sets import (
    EdgeSetSettings,
    SetSettings,
    declarations_of,
    declared_schema,
)
from streamd.settings.sources import SourceSettings
from streamd.settings.trials import TrialSettings

PREFIX = "STREAMD_"
"""A variable with this prefix must be a setting or FILE_VARIABLE, so that a misspelt one is an
error."""
FILE_VARIABLE = f"{PREFIX}CONFIG"
"""The variable with the path of the settings file, which only the command line reads."""


class StreamSettings(Branch):
    """The form of events; the widths are fixed for the life of a log."""

    time_unit: Literal["s", "ms", "us"] = Field("ms", description="unit of `time` in events")
    edge_feature_dim: Natural = Field(
        0, description="width of edge features; fixed for the life of a log"
    )
    node_feature_dim: Natural = Field(
        0, description="width of node features; fixed for the life of a log"
    )
    label_dim: Natural = Field(
        0,
        description="width of label targets, 0 for none; fixed for the life of a log",
    )


class IngestSettings(Branch):
    """How ingest turns records into commits, and which events it rejects as dead letters."""

    # Start and share of the partitions, and how to handle losses and late events.
    start: Start = Field(
        "earliest",
        description="start of reading for a new log: earliest, latest, or an ISO 8601 time",
    )
    shard: str | None = Field(
        None,
        pattern=r"^[1-9]\d*/[1-9]\d*$",
        description='"2/4" reads only the second of four parts of the partitions',
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        "fail",
        description="records that Kafka lost: fail stops ingest, continue skips them",
    )
    late_policy: Literal["clamp", "dead_letter"] = Field(
        "clamp",
        description="late events: clamp sets their time to the watermark, or dead_letter",
    )
    tombstones: Literal["dead_letter", "delete"] = Field(
        "dead_letter",
        description="a null value: a dead letter, or delete the node of its key",
    )
    accept_first_times: bool = Field(
        False,
        description="accept the first commit of a log although all of its times look like "
        "another unit",
    )
    # Waiting times.
    max_ahead_seconds: Seconds = Field(
        60,
        description="an event is a dead letter if it is further ahead of the wall clock, its "
        "record's timestamp or all other events of its partition",
    )
    merge_wait_seconds: Seconds = Field(
        0.2, description="longest wait of a live event for events of other partitions"
    )
    idle_timeout_seconds: Seconds = Field(
        60, description="time without events after which the open window is closed; 0: never"
    )
    commit_interval_seconds: Seconds = Field(
        0.01, description="minimum time between two commits under load"
    )
    # Limits, so that a stream cannot fill memory or disk.
    max_key_bytes: Positive = Field(256, description="longest node key, in bytes of UTF-8")
    max_nodes: Positive = Field(10_000_000, description="maximum number of node keys in the log")
    max_feature: float = Field(
        1e15, gt=0, description="largest absolute value of a feature or label target"
    )
    max_record_bytes: Positive = Field(4_194_304, description="largest Kafka value that is decoded")
    max_batch_bytes: Positive = Field(
        67_108_864, description="largest Kafka batch after decompression"
    )
    max_record_events: Positive = Field(100_000, description="most events in one batched record")
    segment_edges: Positive = Field(1_000_000, description="edges allocated per segment file")
    dead_letter_topic: str | None = Field(
        None, description="topic for dead letters; if not set, local files"
    )
    dead_letter_max_bytes: Positive = Field(
        67_108_864, description="maximum bytes of local dead letters"
    )

    @field_validator("dead_letter_topic")
    @classmethod
    def _has_name(cls, topic: str | None) -> str | None:
        return None if topic is None else check_topic_name(topic)


class RetentionSettings(Branch):
    """Bounds of the log's size."""

    max_age_seconds: Positive | None = Field(
        None,
        description="age by the watermark above which segments are dropped; default: never",
    )
    max_bytes: Positive | None = Field(
        None, description="disk blocks of segments above which the oldest segments are dropped"
    )


class WindowSettings(Branch):
    """Event-time windows; the trainer scores each and then trains on it."""

    width_seconds: Positive = Field(3600, description="width of an event-time window")
    max_events: Positive = Field(
        20_000, description="maximum number of events of a window that are scored and trained on"
    )
    merge_after: Natural = Field(
        24,
        description="if more windows wait, a live trainer joins this many; 0: never",
    )


class GraphSettings(Branch):
    """Node sets and edge sets with their features, and the graph's layout in memory."""

    node_sets: dict[str, SetSettings] = Field(
        {},
        description="node sets by name, with their features; if not set, one called `default`",
    )
    edge_sets: dict[str, EdgeSetSettings] = Field(
        {},
        description="edge sets by name, with their features and the node sets of their "
        "endpoints; if not set, one called `default`",
    )

    max_block_entries: Positive = Field(
        64, description="tau: maximum number of entries in one block of a node, a power of two"
    )
    keep_in_memory_seconds: Natural = Field(
        0,
        description="event time for which events stay in the memory of trainer and server; "
        "queries read older ones from the log; 0: all stay",
    )


class GpuSettings(Branch):
    """Use of GPU memory."""

    placement: Literal["resident", "hybrid"] = Field(
        "resident",
        description="resident: the graph's entries are on the GPU, as long as they fit; "
        "hybrid: in page-locked host memory",
    )
    graph_bytes: Natural = Field(
        0,
        description="GPU memory of the graph above which its entries move to the host; 0: "
        "half of the free memory at the start",
    )
    cache_rows: Natural = Field(100_000, description="edge feature rows kept on the GPU; 0: none")
    cache_policy: Literal["lru", "lfu", "fifo"] = Field(
        "lru", description="eviction policy of the cache"
    )
    mixed_precision: bool = Field(False, description="train with matrix products in bfloat16")


ModelName = Literal["tgn", "tgat", "dysat", "sage", "gat", "gcn", "pair"]
"""Names in the table of `streamd.models.architectures`."""
MODEL_PLUGINS = "streamd.models"
"""Group of the entry points by which other packages register models."""


def _or_plugin(value: Any, check: ValidatorFunctionWrapHandler) -> ModelName:
    """A name of the table, or of an installed entry point."""
    try:
        found: ModelName = check(value)
    except ValidationError:
        # Searched only here, since it scans all installed packages.
        if isinstance(value, str) and entry_points(group=MODEL_PLUGINS, name=value):
            return cast(ModelName, value)
        raise
    return found


class ModelSettings(Branch):
    """The architecture of the model. Versions trained under other settings are not trained
    further."""

    # Layers, features and labels.
    name: Annotated[ModelName, WrapValidator(_or_plugin)] = Field(
        "tgn",
        description="graph layers on top of the pair facts: tgn, tgat, dysat, sage "
        "(GraphSAGE), gat, gcn; pair: none; or a plug-in's name",
    )
    pair_facts: bool = Field(True, description="false: graph layers alone, as in their papers")
    labels: Literal["none", "classification", "regression"] = Field(
        "none",
        description="kind of the targets of label events, which a head learns to predict; "
        "none: they are only stored",
    )
    # Widths of the layers.
    dim: Positive = Field(64, description="width of memory and embeddings")
    time_dim: Positive = Field(32, description="width of the time encoding")
    heads: Positive = Field(2, description="attention heads")
    # The neighborhoods and facts that they read.
    direction: Literal["both", "out", "in"] = Field(
        "both",
        description="direction of sampled edges: out, in or both",
    )
    neighbors: Positive = Field(10, description="sampled neighbors per node and hop")
    id_rows: Natural = Field(
        0,
        description="rows of a learned embedding of node ids, ids modulo this; 0: none (new "
        "nodes have none)",
    )
    snapshots: Positive = Field(3, description="number of time windows that dysat reads")
    snapshot_seconds: Positive = Field(86_400, description="width of each of these windows")
    memory_chunk: Positive = Field(200, description="edges per canonical chunk of memory")
    max_pairs: Positive = Field(
        2_000_000,
        description="pairs with facts; the least recently updated are dropped",
    )
    half_lives_seconds: tuple[float, float, float, float, float] = Field(
        (90, 1800, 8640, 43200, 691200),
        description="half-lives of a destination's popularity",
    )


class TrainingSettings(Branch):
    """Training on a window, with replay of past events."""

    epochs: Positive = Field(2, description="epochs on each window")
    min_steps: Natural = Field(
        8,
        description="minimum optimizer steps per window: a small window gets up to 2 times "
        "the epochs",
    )
    learning_rate: float = Field(
        1e-3,
        gt=0,
        description="of pair network and label heads; the rest learns at 0.3 times this",
    )
    replay: Literal["uniform", "recent", "none"] = Field(
        "uniform",
        description="past events kept for replay: a uniform sample of all, the most recent, "
        "or none",
    )
    replay_share: float = Field(
        0.25, ge=0, description="past events replayed per event of a window, in each epoch"
    )
    replay_events: Natural = Field(2000, description="maximum events replayed per window and epoch")
    replay_capacity_events: Natural = Field(20_000, description="past events kept for replay")
    recent_negatives: float = Field(
        0.0,
        ge=0,
        le=0.9,
        description="share of the ten negatives per training event that are destinations of "
        "recent events, with a correction for their frequency",
    )
    tail_share: float = Field(
        0.1, ge=0, lt=1, description="share of a window held out to check the new version"
    )
    seed: Natural = Field(0, description="seed of weights, dropout, sampling and replay")
    threads: Positive = Field(1, description="CPU threads of the trainer, per rank")
    ranks: Positive = Field(1, description="number of training processes (ranks) on this machine")
    rank_timeout_seconds: float = Field(
        60, gt=0, description="time without an answer from a rank after which all ranks stop"
    )
    mesh: tuple[Positive, Positive] | None = Field(
        None,
        description="`[R, S]`: R replicas of S ranks that share the nodes; else one replica",
    )
    checkpoint_dir: Path | None = Field(
        None,
        description="folder that ranks of several machines share; if not set, data_dir",
    )
    nice: Natural = Field(10, description="scheduling niceness of the trainer")
    nightly_twin: bool = Field(
        True,
        description="also score up to 2,000 events of each window with the model as of the "
        "last midnight UTC",
    )


class BootstrapSettings(Branch):
    """First training on a log that has events already."""

    max_events: Natural = Field(
        100_000,
        description="newest events of an existing log that the first start trains on at once; "
        "0: window by window",
    )
    epochs: Positive = Field(5, description="epochs on these events")


class RegistrySettings(Branch):
    """Number of versions to keep, and events for comparing them."""

    keep: Positive = Field(20, description="newest versions kept; champion and shadow always are")
    gate_events: Positive = Field(
        2000,
        description="events with a known destination on which champions are compared with the "
        "last proven version",
    )


class Settings(BaseSettings):
    """All of streamd's settings, frozen. Build it with `load_settings`."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__"
    )

    data_dir: Path = Field(
        Path("streamd-data"), description="directory of log, models and checkpoints"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the trainer's graph and model; auto: a GPU if there is one"
    )
    sources: tuple[SourceSettings, ...] = Field(
        (),
        description="how records of topics with a schema of their own become events",
    )
    kafka: KafkaSettings = KafkaSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    stream: StreamSettings = StreamSettings()
    ingest: IngestSettings = IngestSettings()
    log: LogSettings = LogSettings()
    leader: LeaderSettings = LeaderSettings()
    retention: RetentionSettings = RetentionSettings()
    holds: HoldSettings = HoldSettings()
    windows: WindowSettings = WindowSettings()
    gpu: GpuSettings = GpuSettings()
    graph: GraphSettings = GraphSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    bootstrap: BootstrapSettings = BootstrapSettings()
    registry: RegistrySettings = RegistrySettings()
    server: ServerSettings = ServerSettings()
    trials: TrialSettings = TrialSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    mlflow: MlflowSettings = MlflowSettings()
    sql: SqlSettings = SqlSettings()

    @field_validator("data_dir", mode="before")
    @classmethod
    def _is_not_blank(cls, path: Any) -> Any:
        return check_not_blank(path, cls.model_fields["data_dir"])

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the values that `load_settings` has read, since it records each value's
        source."""
        return (init_settings,)


def node_sets(settings: Settings) -> dict[str, SetSettings]:
    """The node sets by name, in the order of their numbers; `default` if none is declared."""
    return settings.graph.node_sets or {DEFAULT_SET: SetSettings()}


def edge_sets(settings: Settings) -> dict[str, EdgeSetSettings]:
    """The edge sets by name, in the order of their numbers; `default` if none is declared."""
    return settings.graph.edge_sets or {DEFAULT_SET: EdgeSetSettings()}


def schema_of(settings: Settings) -> Schema:
    """The schema of a log under these settings."""
    s = settings.stream
    widths = s.edge_feature_dim, s.node_feature_dim, s.label_dim
    return declared_schema(settings.graph.node_sets, settings.graph.edge_sets, widths)


def with_schema(settings: Settings, schema: Schema) -> Settings:
    """The settings with the declared sets and features of a log; unchanged if it has no
    declarations."""
    if not schema.is_declared:
        return settings
    nodes, edges = declarations_of(schema)
    graph = settings.graph.model_copy(update={"node_sets": nodes, "edge_sets": edges})
    widths = {
        "edge_feature_dim": schema.edge_feature_dim,
        "node_feature_dim": schema.node_feature_dim,
    }
    stream = settings.stream.model_copy(update=widths)
    return settings.model_copy(update={"graph": graph, "stream": stream})


def leaves(
    model: type[BaseModel] = Settings, at: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all settings, for example ("training", "replay_events")."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Branch):
            yield from leaves(kind, (*at, name))
        else:
            yield (*at, name)
