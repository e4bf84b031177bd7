"""Every error streamd raises on purpose.

    StreamdError
    |-- SettingsError          a setting is unknown, of the wrong type, or contradicts another
    |-- DataDirectoryError     the data directory cannot be used as it is
    |   |-- LockedError        another process owns the directory
    |   |-- JournalError       the journal is damaged before its last line, or of other settings
    |   |   `-- SchemaError    the settings declare other sets or features than the log has
    |   |-- CorruptionError    bytes that were committed differ from their checksum
    |   `-- DiskError          a write or sync failed: the disk is full or broken
    |-- TGUFError              a file is not a TGUF version 1 file this reader can trust
    |-- TFGNNError             a schema, spec, record or table of TF-GNN is not what it must be
    |   `-- TFRecordError      a TFRecord file is truncated or damaged
    |-- CapacityError          a segment has no room for the rows (the caller rolls to a new one)
    |-- OffloadedError         a query of the graph needs events that were taken out of memory
    |-- KafkaError             the broker cannot be used as configured
    |   |-- DataLossError      Kafka no longer has what the log expects to read next
    |   `-- SilentBrokerError  no broker answers
    |-- ChangelogError         the changelog, or what it holds, cannot be used as it is
    |   |-- FencedError        another process leads: this one publishes nothing more
    |   `-- DivergedError      this directory shows another commit than the changelog has
    |-- ModelsTopicError       a record of the models topic is not what it must be
    |-- SchemaRegistryError    records cannot be decoded while the schema registry does not answer
    |-- BadEvent               one event does not fit and becomes a dead letter; others go on
    |-- StoreError             a store does not answer, or holds something else than it should
    |   `-- ManifestError      the bytes of a manifest are not those that were written
    |-- VersionError           a model version is unknown, half written, or does not fit the log
    |   `-- NewerSchemaError   it knows sets or features that the log got since it was opened
    |-- DeviceError            the device asked for cannot be used
    |   `-- DeviceMemoryError  it has no memory left
    |-- RanksError             the ranks that learn together lost one of them, or differ
    |-- TrackingError          MLflow's client is missing, or its server or folder fails
    `-- DemoError              the demo did not reach its end as promised

Each message says what, where, and after "Operator action:" what to do. `docs/errors.md` lists them.
"""


class StreamdError(Exception):
    """The root of all errors raised on purpose; the command line prints one line and exits with
    status 2."""

    def __init__(self, message: str, action: str = "") -> None:
        # A hint such as "did you mean 'views'?" may be the end of a sentence.
        if message.endswith("?."):
            message = message[:-1]
        super().__init__(f"{message} Operator action: {action}" if action else message)


class SettingsError(StreamdError):
    """When a setting is unknown, of the wrong type, or contradicts another. The operator corrects
    the file or variable."""


class DataDirectoryError(StreamdError):
    """When the data directory cannot be used as it is. The operator follows the message."""


class LockedError(DataDirectoryError):
    """When another process owns the directory. The operator stops it, names another directory, or
    gives a further server another `--name`."""


class JournalError(DataDirectoryError):
    """When the journal is damaged before its last line or belongs to other settings. The operator
    restores or renames."""


class SchemaError(JournalError):
    """When the settings declare other sets or features than the log has, and do not extend them.
    The operator sets them back or takes a new directory."""


class CorruptionError(DataDirectoryError):
    """When committed bytes differ from their checksum. The operator restores the named file from a
    backup."""


class DiskError(DataDirectoryError):
    """When a write or sync of the log, or of what a role keeps, failed. The operator frees space;
    the role starts again by itself."""


class TGUFError(StreamdError):
    """When a file is not a TGUF version 1 file. The operator rewrites or restores it."""


class TFGNNError(StreamdError):
    """When a schema, sampling spec, record or table of TF-GNN is not what it must be. The operator
    corrects what the message names."""


class TFRecordError(TFGNNError):
    """When a TFRecord file is truncated or damaged. What comes before the byte it names was
    delivered. The operator writes or copies the file again."""


class CapacityError(StreamdError):
    """When rows do not fit into what is left of a file. The writer rolls over to a new segment."""


class OffloadedError(StreamdError):
    """When a query of the graph needs events that were offloaded and nothing reads them back. The
    caller gives the graph a log to read from, or asks for less of the past."""


class KafkaError(StreamdError):
    """When the broker cannot be used as configured. The operator checks address, credentials and
    topics."""


class DataLossError(KafkaError):
    """When Kafka lost what the log needs next. The operator decides whether to start a new log or
    restore the topic."""


class SilentBrokerError(KafkaError):
    """When no broker answers, in time or at all. Ingest goes on trying; the operator brings the
    broker back, or mends its address."""


class ModelsTopicError(StreamdError):
    """When a record of the models topic is too large, damaged, or says what cannot be. It is passed
    over; the operator looks at who writes to that topic."""


class ChangelogError(StreamdError):
    """When the changelog, by which other machines follow, cannot be used as it is, or a record in
    it is damaged. The operator follows the message."""


class FencedError(ChangelogError):
    """When another process leads, in a higher term or by an earlier claim. Nothing is wrong where
    it was to lead; else the operator makes one of the two a replica."""


class DivergedError(ChangelogError):
    """When this directory has shown readers another commit than the changelog has under its number,
    or the changelog lost records that were read here. The operator keeps the directory aside and
    starts with an empty one."""


class SchemaRegistryError(StreamdError):
    """When the schema registry does not answer, so that records cannot be decoded now. Ingest waits
    and reads them again; the operator checks the registry's address and credentials."""


class BadEvent(StreamdError):
    """When one event does not fit the stream; it becomes a dead letter with this reason. The
    producer is corrected.

    reason: one of `streamd.ingest.dead_letters.sinks.REASONS`, a bounded set that metrics may use
    as a label.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StoreError(StreamdError):
    """When a store does not answer in time, or an object in it is not what its manifest says. The
    operator checks URL, credentials and network, or takes another manifest."""


class ManifestError(StoreError):
    """When the bytes of a manifest are not those that were written. An older one may be whole: what
    takes the newest takes that; the operator backs up again."""


class VersionError(StreamdError):
    """When a model version is unknown, half written or does not fit. The operator picks one of
    `streamd models list`."""


class NewerSchemaError(VersionError):
    """When a version knows sets or features that the log got since it was opened. Whoever reads the
    log opens it again."""


class DeviceError(StreamdError):
    """When the device asked for is absent or unsupported. The operator sets `device: cpu` or
    installs what is missing."""


class DeviceMemoryError(DeviceError):
    """When the GPU lacks memory for what must be on it. The operator moves something off it; the
    role starts again."""


class RanksError(StreamdError):
    """When a rank that learns with others is gone, does not answer in time, or holds something else
    than they do. All ranks end, and are started again."""


class TrackingError(StreamdError):
    """When MLflow's client is not installed, or its server or folder fails. The operator installs
    it, or checks `mlflow.tracking_uri`; learning does not wait for it."""


class DemoError(StreamdError):
    """When the demo cannot start or did not reach its end as promised. The operator reads the log
    it names."""
