"""The checks of `streamd doctor`: each reports its findings, and a failed one does not stop the
others."""

import contextlib
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamd.cli import doctor_log, doctor_roles
from streamd.cli.options import error_text, printable
from streamd.errors import StreamdError
from streamd.number_texts import count_noun, span
from streamd.processes import num_cpus, torchrun_rank
from streamd.roles import RANK
from streamd.settings.loading import Settings, check_access, has_keys
from streamd.settings.ports import check_ports, listeners_here
from streamd.settings.sources import REGISTRY_FORMATS
from streamd.telemetry.heartbeat import read_beats

if TYPE_CHECKING:
    from streamd.ingest.kafka.topic_watch import Topics

MIN_FREE_BYTES = 1_000_000_000
"""Minimum free disk space: a few segments of a million edges, versions and checkpoints."""
STORE_SECONDS = 10.0
"""Time limit for all tries of one request to the store."""
OTHER_FILES = 128
"""Open files of a role besides connections and segments: libraries, logs, sockets to brokers."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    good: whether the check passed. seen: the findings, or the error if it failed, printable.
    has_doubts: whether it passed, but the operator should read the findings.
    """

    name: str
    good: bool
    seen: str
    has_doubts: bool = False

    @property
    def result(self) -> tuple[str, str]:
        """The result in a word, and the word's color."""
        if self.has_doubts:
            return "look", "yellow"
        return ("good", "green") if self.good else ("bad", "red")


def examine(settings: Settings) -> Iterator[Check]:
    """Run all checks, yielding the result of each as soon as it is known."""
    for name in CHECKS:
        yield run_check(name, settings)


def run_check(name: str, settings: Settings) -> Check:
    """Run the check of a name in `CHECKS`. An error becomes a result that is not good."""
    try:
        seen = CHECKS[name](settings)
        return Check(name, True, printable(seen), isinstance(seen, doctor_log.Doubts))
    except (StreamdError, OSError, ImportError) as error:
        return Check(name, False, error_text(error))


def _broker(settings: Settings) -> str:
    """Check that the broker answers and has the topics."""
    from collections import Counter

    from streamd.ingest.kafka.topic_watch import missing_topic

    topics, _ = ask_broker(settings)
    if topics.missing:
        # A topic that is created again needs another setting too.
        read = doctor_roles.topics_read(settings)
        servers = settings.kafka.bootstrap_servers
        raise StreamdError("; ".join(missing_topic(t, servers, t in read) for t in topics.missing))

    # The id of librdkafka's mock cluster begins so.
    stand_in = (
        " (a mock, for a first look only)" if topics.cluster_id.startswith("mockCluster") else ""
    )
    counts = Counter(tp.topic for tp in topics.partitions)
    partitions = ", ".join(
        f"{topic} with {count_noun(n, 'partition')}" for topic, n in counts.items()
    )
    return f"cluster {topics.cluster_id}{stand_in}, {partitions}"


def _changelog(settings: Settings) -> str:
    """Check the topics of a log that other machines follow. A missing one is an error only if this
    directory has read it: else the leader makes it."""
    if not settings.log.name:
        return "one machine holds the log"
    from streamd.eventlog.journal.changelog_position import read_position
    from streamd.ingest.kafka.client import asking_about_topics
    from streamd.replica.changelog.topics import look_at_topic
    from streamd.replica.start import check_changelog, lost_error
    from streamd.store.changelog import changelog_topic, models_topic

    names = changelog_topic(settings.log.name), models_topic(settings.log.name)
    with asking_about_topics(settings.kafka) as admin:
        found = [look_at_topic(admin, name) for name in names]
    stored = read_position(settings.data_dir)
    if found[0] is not None:
        check_changelog(settings.data_dir, found[0].changelog)
    elif stored is not None:
        raise lost_error(settings.data_dir, names[0], stored)
    return "; ".join(
        f"{name} does not exist yet: the leader creates it" if state is None else state.shown
        for name, state in zip(names, found, strict=True)
    )


def _score_topic(settings: Settings) -> str:
    """Check the topics that receive scores of events and alarms, if they are set."""
    topics = [t for t in (settings.server.score_topic, settings.server.alarm_topic) if t]
    if not topics:
        return "none is set"
    from streamd.scoring.role import check_topic
    from streamd.scoring.topic import look_at_score_topic

    check_topic(settings)
    return "; ".join(look_at_score_topic(settings.kafka, topic) for topic in topics)


def _trial_topic(settings: Settings) -> str:
    """Check the topic of the trial, if one is set."""
    if not settings.trials.name:
        return "no trial is set"
    from streamd.scoring.topic import look_at_score_topic

    return look_at_score_topic(settings.kafka, settings.trials.topic)


def _schema_registry(settings: Settings) -> str:
    """Check that the schema registry answers, if a source needs it."""
    from streamd.decode.sources.schema_registry import SchemaRegistry, UnknownSchema

    if not any(source.format in REGISTRY_FORMATS for source in settings.sources):
        return "no source needs one"
    # Hardly any registry has this id: the answer that it is unknown shows that the API works.
    with contextlib.suppress(UnknownSchema):
        SchemaRegistry(settings.schema_registry).schema(2**31 - 1)
    return f"{settings.schema_registry.url} answers"


def ask_broker(settings: Settings, times: bool = False) -> tuple["Topics", int]:
    """Describe the topics of `kafka.topics`; with `times` also get the newest timestamp of their
    records.

    Returns: the topics, and the timestamp in microseconds, 0 if there is none. Raises: KafkaError.
    """
    from kafka.admin import OffsetSpec

    from streamd.ingest.kafka.client import asking_about_topics
    from streamd.ingest.kafka.topic_watch import describe

    # Kafka keeps the largest timestamp of each partition, so no record is read.
    with asking_about_topics(settings.kafka) as admin:
        topics = describe(admin, settings.kafka.topics)
        wanted = dict.fromkeys(topics.partitions if times else (), OffsetSpec.MAX_TIMESTAMP)
        newest = (
            [offset.timestamp for offset in admin.list_partition_offsets(wanted).values()]
            if wanted
            else []
        )

    # Kafka's timestamps are milliseconds, and -1 for a partition without records.
    return topics, max([0, *newest]) * 1000


def _data_directory(settings: Settings) -> str:
    """Check that the data directory is writable and has free space, and measure a durable write."""
    # If it does not exist yet, check its nearest parent that does.
    folder = settings.data_dir.resolve()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StreamdError(
            f"{folder} is no directory that this user may write.", "set data_dir to one."
        )

    # Is there free space, and how long does a durable write of one page take?
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise StreamdError(
            f"Only {free / 1e9:.1f} GB are free in {folder}.", "free space or set data_dir."
        )
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        begun = time.perf_counter()
        for _ in range(10):
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
        wait = (time.perf_counter() - begun) / 10
    return (
        f"{settings.data_dir}: {free / 1e9:.0f} GB free, "
        f"{wait * 1e3:.1f} ms to make a write durable"
    )


def _store(settings: Settings) -> str:
    """Check that `log.store` can be read, and also written if this machine leads or may lead.
    Credentials are not shown."""
    from streamd.store import manifests
    from streamd.store.objects import Store

    log = settings.log
    if not log.store:
        return "none is set"
    store = Store(log.store, STORE_SECONDS)
    names = manifests.names(store)
    newest = "no manifest yet"
    if names:
        _, seq = manifests.commit_of(names[-1])
        newest = f"newest manifest at commit {seq:,}"
    if log.member == "replica":
        return f"{store.shown} can be read, {newest}"
    probe = f"probes/{os.getpid()}-{time.time_ns()}"
    # A unique name, because several machines may probe at once.
    store.put(probe, b"1")
    store.remove([probe])
    return f"{store.shown} can be read and written, {newest}"


def _clock(settings: Settings) -> str:
    """Check that this machine's clock is not slow, compared with the newest time in Kafka or the
    log.

    A clock that is fast cannot be detected: the newest event may well be old.
    """
    newest_us, whose = _newest(settings)
    if not newest_us:
        return "nothing to compare it with: there is no record in Kafka and no event in the log"
    behind = newest_us / 1e6 - time.time()
    if behind > settings.ingest.max_ahead_seconds:
        raise StreamdError(
            f"This machine's clock is {span(behind)} behind {whose}.",
            "correct it, or the producer's clock; ingest refuses events so far ahead.",
        )
    return f"not behind {whose}, {span(max(0.0, -behind))} ago"


def _newest(settings: Settings) -> tuple[int, str]:
    """Find the newest time in Kafka, or else in the log.

    Returns: microseconds since 1970, and the source of this time in words; (0, "") if there is
    none.
    """
    from streamd.eventlog.reader import LogReader

    try:
        if newest_us := ask_broker(settings, times=True)[1]:
            return newest_us, "Kafka's newest record"
    except StreamdError:
        pass  # the check of the broker says why
    reader = LogReader.open(settings.data_dir)

    # Without Kafka, or without records in it, compare with the log.
    if reader is None or not reader.num_edges:
        return 0, ""
    return int(reader.time_of(np.array([reader.num_edges - 1]))[0]), "the log's newest event"


def _access(settings: Settings) -> str:
    """Check that the API requires keys if other machines can reach it, and that each key file has
    some."""
    from streamd.telemetry.api_keys import ApiKeys

    check_access(settings.server)
    ApiKeys(settings.server)
    return "keys are required" if has_keys(settings.server) else "open to this machine alone"


def _ports(settings: Settings) -> str:
    """Check that the roles have different ports, and that each can listen on its own or already
    does."""
    host, results = settings.server.host, []
    listeners = listeners_here(settings)
    check_ports(listeners)
    for name, setting, port in ((one.name, one.setting, one.port) for one in listeners):
        # A port is free if it can be bound with the same socket options as the role sets.
        beats = [beat for beat in read_beats(settings.data_dir) if beat.alive]
        running = [
            b.name for b in beats if name in (b.name, b.role) and not b.name.startswith(RANK)
        ]
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                results.append(f"{port} free for {name}")
            except OSError as error:
                # The port is in use; that is fine if the role itself runs.
                if not running:
                    raise StreamdError(
                        f"{name} cannot listen on {host}:{port}: {error.strerror}.",
                        f"free the port or set {setting}.",
                    ) from None
                results.append(f"{port} used by {' or '.join(running)}, which runs")
    return ", ".join(results)


def _file_limit(settings: Settings) -> str:
    """Check that the limit of open files allows waiting connections, the log's segments and
    libraries."""
    from streamd.eventlog.layout import EDGES

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    segments = len(list((settings.data_dir / EDGES).glob("*.tguf")))
    wanted = settings.server.max_queue + segments + OTHER_FILES
    counts = f"{soft} open files (hard limit {hard}), {wanted} may be needed"
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raise StreamdError(
            f"{counts}.", f"ulimit -n {wanted}, or LimitNOFILE={wanted} in the service's unit."
        )
    return counts


def _crc32c(_: Settings) -> str:
    """Check that checksums are computed in C: in Python they would take longer than reading."""
    import crc32c
    from kafka.record import util

    if util.crc32c_c is None:
        raise StreamdError("kafka-python uses its slow crc32c in Python.", "pip install crc32c.")
    # 16 MiB take long enough to measure, but only a few milliseconds.
    data = bytes(1 << 24)
    begun = time.perf_counter()
    crc32c.crc32c(data)
    return f"in C, {len(data) / (time.perf_counter() - begun) / 1e9:.1f} GB/s"


def _model(settings: Settings) -> str:
    """Name the model and the settings that it ignores. The check passes in any case."""
    from streamd.models.architectures import unused_settings

    unused = unused_settings(settings.model)
    return settings.model.name + (f", which does not use {', '.join(unused)}" if unused else "")


def _device(settings: Settings) -> str:
    """Check that the devices of trainer and server can be used. Raises: DeviceError."""
    import torch

    from streamd.gpu import choose_device

    trainer = choose_device(settings.device, _num_ranks(settings))
    server = choose_device(settings.server.device)
    used = f"trainer on {trainer}, server on {server}; "
    used += f"torch {torch.__version__}, {torch.get_num_threads()} threads; "
    if not torch.cuda.is_available():
        return used + "no GPU"
    free, whole = torch.cuda.mem_get_info()
    return (
        f"{used}GPU {torch.cuda.get_device_name()}, {free / 1e9:.1f} of {whole / 1e9:.1f} GB free, "
        f"graph {settings.gpu.placement}, {settings.gpu.cache_rows} feature rows cached"
    )


def _num_ranks(settings: Settings) -> int:
    """Number of ranks that train together, on all machines."""
    replicas, shards = settings.training.mesh or (1, settings.training.ranks)
    return replicas * shards


def _ranks(settings: Settings) -> str:
    """Check that each rank of this machine has a core or a GPU, and that torchrun gives the ranks a
    new rendezvous store at each start."""
    from streamd.daemon.torchrun import UNSHARED_STORE
    from streamd.gpu import choose_device

    training = settings.training
    if torchrun_rank(os.environ) is not None and os.environ.get(UNSHARED_STORE) != "1":
        raise StreamdError(
            "torchrun's ranks share their agent's store, in which keys of a killed rank stop the "
            "next start.",
            f"set {UNSHARED_STORE}=1 in torchrun's environment.",
        )
    mesh, num_ranks = training.mesh or (1, training.ranks), _num_ranks(settings)
    # Each machine starts `training.ranks` ranks of the mesh.
    if num_ranks % training.ranks:
        raise StreamdError(
            f"training.mesh has {mesh[0]} x {mesh[1]} ranks, no multiple of training.ranks "
            f"({training.ranks}).",
            "correct training.mesh or training.ranks.",
        )
    if choose_device(settings.device, num_ranks) == "cuda":
        import torch

        unit, have = "GPUs", torch.cuda.device_count()
    else:
        unit, have = "threads on cores", num_cpus() // training.threads
    seen = f"{training.ranks} on this machine, {have} {unit} for them"
    # One rank runs even with fewer cores than threads.
    if training.ranks > max(have, 1):
        raise StreamdError(
            f"{seen}: ranks that share one wait for one another.", "lower training.ranks."
        )
    return seen


def _kernels(_: Settings) -> str:
    """Compile or load the kernels."""
    from streamd.graph.jit import cache_problem
    from streamd.graph.warm_up import warm_up

    seconds = warm_up()
    problem = cache_problem()
    return f"compiled or loaded in {seconds:.1f} s" + (f"; {problem}" if problem else "")


def _mlflow(settings: Settings) -> str:
    """Check that MLflow answers, if it is used. A missing experiment is created."""
    from streamd.evaluation.mlflow.experiment import Runs

    uri = settings.mlflow.tracking_uri
    if not uri:
        return "not used"
    number = Runs(settings.mlflow).experiment()
    return f"{uri}: experiment {settings.mlflow.experiment} ({number})"


CHECKS: dict[str, Callable[[Settings], str]] = {
    "broker": _broker,
    "positions": doctor_roles.positions,
    "changelog": _changelog,
    "score topic": _score_topic,
    "trial topic": _trial_topic,
    "schema registry": _schema_registry,
    "data directory": _data_directory,
    "store": _store,
    "feature widths": doctor_log.widths,
    "keys": doctor_log.keys,
    "first times": doctor_log.first_times,
    "clock": _clock,
    "access": _access,
    "ports": _ports,
    "file limit": _file_limit,
    "crc32c": _crc32c,
    "model": _model,
    "device": _device,
    "ranks": _ranks,
    "kernels": _kernels,
    "mlflow": _mlflow,
    "roles": doctor_roles.roles,
    "troubles": doctor_roles.troubles,
}
"""The checks by name, in the order in which they run. Each returns its findings as text, or raises
an error."""
