"""The settings tree: a frozen branch for each component, each setting with its default, bounds and
description.

`streamd.settings.loading` reads it. `docs/settings.md` lists every key; a test compares the two.
"""

from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from streamd.events import Schema
from streamd.schema import DEFAULT_SET
from streamd.settings.branch import Branch, Natural, Positive, Seconds
from streamd.settings.log import LeaderSettings, LogSettings
from streamd.settings.mlflow import MlflowSettings
from streamd.settings.server import ServerSettings, TelemetrySettings
from streamd.settings.sets import (
    EdgeSetSettings,
    SetSettings,
    declarations_of,
    declared_schema,
)
from streamd.settings.sources import SourceSettings

PREFIX = "STREAMD_"
"""A variable with this prefix must be a setting, so that a misspelt one is an error."""


class KafkaSettings(Branch):
    """The connection to Kafka, and the topics to read."""

    bootstrap_servers: str = Field(
        "127.0.0.1:9092", description="host:port of one or more brokers, comma separated"
    )
    topics: tuple[str, ...] = Field(
        ("events",),
        min_length=1,
        description="topics to read, all their partitions; where not set, those of `sources`",
    )
    group_id: str = Field(
        "streamd", description="consumer group under which lag is published; never used to resume"
    )
    client: dict[str, Any] = Field(
        {}, description="further kafka-python client settings (SASL, TLS), passed through"
    )
    client_file: Path | None = Field(
        None,
        description="YAML or JSON file with more of them, those that are secret: its "
        "values are never shown",
    )


class SchemaRegistrySettings(Branch):
    """The connection to the schema registry, for topics in Avro and Protobuf."""

    url: str | None = Field(None, description="address of the registry: http or https")
    user: str | None = Field(
        None,
        pattern="^[^:]+$",
        description="user of basic authentication, whose password is the secret; without a user "
        "the secret is a bearer token",
    )
    secret: SecretStr | None = Field(None, description="password or token")
    secret_file: Path | None = Field(
        None, description="file of one line with it instead; read again for each request"
    )
    ca_file: Path | None = Field(
        None, description="certificates in PEM that may sign the registry's; the system's if absent"
    )
    cert_file: Path | None = Field(None, description="certificate in PEM that ingest shows")
    key_file: Path | None = Field(None, description="its private key, without a password")
    timeout_seconds: float = Field(5, gt=0, le=20, description="longest wait for one answer")

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError("an address begins with http:// or https:// and a host")
        if "@" in parts.netloc:
            raise ValueError("the address holds a user: set schema_registry.user and secret")
        if parts.query or parts.fragment or not url.isascii() or " " in url:
            raise ValueError("an address has no ?, no # and no spaces")
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ValueError("an address has a host's name of 1 to 63 letters a part") from None
        return url


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
        0, description="width of label targets, 0 for a stream without labels; fixed likewise"
    )


class IngestSettings(Branch):
    """How ingest turns records into commits, and which events it rejects as dead letters."""

    # Start and share of the partitions, and how to handle losses and late events.
    start: str = Field(
        "earliest",
        description="where a first start reads from: earliest, latest, or an ISO 8601 time",
    )
    shard: str | None = Field(
        None,
        pattern=r"^[1-9]\d*/[1-9]\d*$",
        description='"2/4" reads only the second of four parts of the partitions',
    )
    on_data_loss: Literal["fail", "continue"] = Field(
        "fail", description="what to do where Kafka lost what comes next"
    )
    late_policy: Literal["clamp", "dead_letter"] = Field(
        "clamp", description="what becomes of events behind the log"
    )
    tombstones: Literal["dead_letter", "delete"] = Field(
        "dead_letter", description="what a null value with a key does"
    )
    accept_first_times: bool = Field(
        False,
        description="whether the first commit of a log is made although all of its times look "
        "like another unit",
    )
    # Waiting times.
    max_ahead_seconds: Seconds = Field(
        60,
        description="an event further ahead of the wall clock, its record's timestamp "
        "or all others of its partition is a dead letter",
    )
    merge_wait_seconds: Seconds = Field(
        0.2, description="how long a live event waits for other partitions"
    )
    idle_timeout_seconds: Seconds = Field(
        60, description="quiet time after which an open window is closed"
    )
    commit_interval_seconds: Seconds = Field(
        0.01, description="least time between two commits under load"
    )
    # Limits, so that a stream cannot fill memory or disk.
    max_key_bytes: Positive = Field(256, description="longest node key in bytes of UTF-8")
    max_nodes: Positive = Field(10_000_000, description="most node keys the log will hold")
    max_feature: float = Field(
        1e15, gt=0, description="largest absolute value of a feature or label target"
    )
    max_record_bytes: Positive = Field(4_194_304, description="largest Kafka value that is decoded")
    max_batch_bytes: Positive = Field(
        67_108_864, description="largest Kafka batch once decompressed"
    )
    max_record_events: Positive = Field(100_000, description="most events in one batched record")
    segment_edges: Positive = Field(1_000_000, description="edges a segment file is allocated for")
    dead_letter_topic: str | None = Field(
        None, description="topic for dead letters; local files where absent"
    )
    dead_letter_max_bytes: Positive = Field(
        67_108_864, description="most bytes of local dead letters kept"
    )


class RetentionSettings(Branch):
    """Bounds of the log's size."""

    max_age_seconds: Positive | None = Field(
        None, description="event time after which segments are dropped; kept if absent"
    )
    max_bytes: Positive | None = Field(
        None, description="disk blocks of segments above which the oldest are dropped"
    )


class HoldSettings(Branch):
    """The lease of a stopped server on the segments that its restart reads."""

    lease_seconds: float = Field(
        86_400,
        ge=60,
        description="a server that has not run for so long no longer keeps the log from "
        "retention and compaction",
    )


class WindowSettings(Branch):
    """Event-time windows; the trainer scores each and then trains on it."""

    width_seconds: Positive = Field(3600, description="width of an event-time window")
    max_events: Positive = Field(
        20_000, description="most events of a window that are scored and learned"
    )
    merge_after: Natural = Field(
        24, description="a live trainer more closed windows behind learns so many as one; 0: never"
    )


class GraphSettings(Branch):
    """Node sets and edge sets with their features, and the graph's layout in memory."""

    node_sets: dict[str, SetSettings] = Field(
        {}, description="kinds of nodes by name, each with its features; one, `default`, if absent"
    )
    edge_sets: dict[str, EdgeSetSettings] = Field(
        {}, description="kinds of edges likewise, each with the node sets of its ends"
    )

    max_block_entries: Positive = Field(
        64, description="tau: most entries of one block of a node, a power of two"
    )
    keep_in_memory_seconds: Natural = Field(
        0,
        description="event time whose events stay in the memory of trainer and server; what a "
        "query needs of older ones is read back from the log; 0: all stay",
    )


class GpuSettings(Branch):
    """Use of GPU memory."""

    placement: Literal["resident", "hybrid"] = Field(
        "resident",
        description="the graph's entries: on the GPU, as long as they fit, or in page-locked host "
        "memory",
    )
    graph_bytes: Natural = Field(
        0,
        description="most GPU memory the graph takes before its entries move to the host; "
        "0: half of what is free at start",
    )
    cache_rows: Natural = Field(100_000, description="edge feature rows kept on the GPU; 0: none")
    cache_policy: Literal["lru", "lfu", "fifo"] = Field(
        "lru", description="which rows make room for others"
    )
    mixed_precision: bool = Field(False, description="learn with matrix products in bfloat16")


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
        description="graph layers over the pair facts: tgn, tgat, dysat, sage (GraphSAGE), gat, "
        "gcn; pair: none; or a plug-in's name",
    )
    pair_facts: bool = Field(
        True, description="false: the graph layers alone, as their papers have them"
    )
    labels: Literal["none", "classification", "regression"] = Field(
        "none",
        description="what the targets of label events are, for a head that learns them; none: "
        "they are stored only",
    )
    # Widths of the layers.
    dim: Positive = Field(64, description="width of memory and embeddings")
    time_dim: Positive = Field(32, description="width of the time encoding")
    heads: Positive = Field(2, description="attention heads")
    # The neighbourhoods and facts that they read.
    direction: Literal["both", "out", "in"] = Field(
        "both",
        description="whom a node's neighbours are: both ends' others, out: its events' "
        "destinations where it is the source, in: the sources of events it is the destination of",
    )
    neighbors: Positive = Field(10, description="sampled neighbours per node and hop")
    id_rows: Natural = Field(
        0,
        description="learned vectors per node id, ids modulo this; 0 for none (new nodes have "
        "none)",
    )
    snapshots: Positive = Field(3, description="windows of time that dysat looks at")
    snapshot_seconds: Positive = Field(86_400, description="width of each of them")
    memory_chunk: Positive = Field(200, description="edges per canonical chunk of memory")
    max_pairs: Positive = Field(
        2_000_000, description="most recently touched pairs whose facts are kept"
    )
    half_lives_seconds: tuple[float, float, float, float, float] = Field(
        (90, 1800, 8640, 43200, 691200), description="half-lives of a destination's popularity"
    )


class TrainingSettings(Branch):
    """Training on a window, with replay of past events."""

    epochs: Positive = Field(2, description="passes over each window")
    min_steps: Natural = Field(
        8,
        description="least learning steps per window: a small one is passed over up to 2x as often",
    )
    learning_rate: float = Field(
        1e-3, gt=0, description="of the pair network; everything else learns at 0.3 times this"
    )
    replay: Literal["uniform", "recent", "none"] = Field(
        "uniform",
        description="what of the past is kept for replay: a uniform sample of all of it, the "
        "newest, nothing",
    )
    replay_share: float = Field(
        0.25, ge=0, description="past events replayed per event of a window, in each epoch"
    )
    replay_events: Natural = Field(2000, description="most events replayed per window and epoch")
    replay_capacity_events: Natural = Field(20_000, description="past events kept for replay")
    recent_negatives: float = Field(
        0.0,
        ge=0,
        le=0.9,
        description="share of the ten negatives an event is learned with that are destinations of "
        "recent events, corrected for how often these come",
    )
    tail_share: float = Field(
        0.1, ge=0, lt=1, description="share of a window held out to check the new version"
    )
    seed: Natural = Field(0, description="seed of weights, dropout, sampling and replay")
    threads: Positive = Field(1, description="CPU threads of the trainer, of each rank")
    ranks: Positive = Field(1, description="processes of this machine that learn together")
    rank_timeout_seconds: float = Field(60, gt=0, description="a rank silent so long ends them all")
    mesh: tuple[Positive, Positive] | None = Field(
        None, description="`[R, S]`: R replicas of S ranks that share the nodes; unset: one replica"
    )
    checkpoint_dir: Path | None = Field(
        None, description="where ranks of several machines keep what they learn; unset: data_dir"
    )
    nice: Natural = Field(10, description="scheduling niceness of the trainer")
    nightly_twin: bool = Field(
        True,
        description="also score up to 2,000 events of each window by the model as of the last "
        "midnight UTC",
    )


class BootstrapSettings(Branch):
    """First training on a log that has events already."""

    max_events: Natural = Field(
        100_000,
        description="newest events of a log with a past that a first start learns at once; 0: "
        "window by window",
    )
    epochs: Positive = Field(5, description="passes over them")


class RegistrySettings(Branch):
    """Number of versions to keep, and events for comparing them."""

    keep: Positive = Field(20, description="newest versions kept; champion and shadow always are")
    gate_events: Positive = Field(
        2000,
        description="events with a known destination over which champions are compared with the "
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
        "auto", description="where the trainer runs graph and model; auto: on a GPU, if any"
    )
    sources: tuple[SourceSettings, ...] = Field(
        (), description="how topics in a shape of their own become events, one entry a topic"
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
    telemetry: TelemetrySettings = TelemetrySettings()
    mlflow: MlflowSettings = MlflowSettings()

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
