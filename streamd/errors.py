"""All errors that streamd raises on purpose.

    StreamdError
    |-- SettingsError          a setting is unknown, of the wrong type, or contradicts another
    |-- DataDirectoryError     the data directory cannot be used as it is
    |   |-- LockedError        another process owns the directory
    |   |-- JournalError       the journal is damaged before its last line, or has other settings
    |   |   `-- SchemaError    the settings declare other sets or features than the log has
    |   |-- CorruptionError    bytes that were committed differ from their checksum
    |   `-- DiskError          a write or sync failed: the disk is full or broken
    |-- LeaseError             a snapshot of the log was closed, or not used for too long
    |-- FactsError             facts of past events cannot be computed exactly
    |-- QueryError             a statement in SQL is refused or fails
    |-- TGUFError              a file is not a TGUF version 1 file this reader can trust
    |-- TFGNNError             a schema, spec, record or table of TF-GNN is invalid
    |   `-- TFRecordError      a TFRecord file is truncated or damaged
    |-- CapacityError          rows do not fit into a segment, or nodes or events into the graph
    |-- OffloadedError         a query of the graph needs events that are no longer in memory
    |-- KafkaError             the broker cannot be used as configured
    |   |-- DataLossError      Kafka no longer has the records that the log needs next
    |   `-- SilentBrokerError  no broker answers
    |-- ChangelogError         the changelog, or a record in it, cannot be used as it is
    |   |-- FencedError        another process leads: this one may not publish commits
    |   `-- DivergedError      a published commit of this directory differs from the changelog
    |-- ModelsTopicError       a record of the models topic is invalid
    |-- SchemaRegistryError    records cannot be decoded while the schema registry does not answer
    |-- BadEvent               one event is invalid and becomes a dead letter
    |-- StoreError             a store does not answer, or an object in it is wrong
    |   `-- ManifestError      the bytes of a manifest are damaged
    |-- VersionError           a model version is unknown, incomplete, or does not fit the log
    |   `-- NewerSchemaError   it has sets or features that the log got after it was opened
    |-- UntakenError           a move waits for ingest, which does not commit
    |-- DeviceError            the requested device cannot be used
    |   `-- DeviceMemoryError  it has too little free memory
    |-- RanksError             a rank of the trainer has ended, or the ranks differ
    |-- TrackingError          MLflow's client is missing, or its server or folder fails
    `-- DemoError              the demo cannot start, or fails before its end

A message names the problem and its file or setting, then the remedy after "Operator action:".
`docs/errors.md` lists the errors.
"""


class StreamdError(Exception):
    """The root of all errors raised on purpose; the command line prints one line and exits with
    status 2."""

    def __init__(self, message: str, action: str = "") -> None:
        # A hint such as "did you mean 'views'?" may be the end of a sentence.
        if message.endswith("?."):
            message = message[:-1]
        super().__init__(f"{message} Operator action: {action}" if action else message)
        self.problem = message
        """The message without the action."""


def reason_of(error: BaseException) -> str:
    """The text of an error as the reason in another one's message, which has its own full stop and
    its own action."""
    text = error.problem if isinstance(error, StreamdError) else str(error)
    return text.rstrip(".")


class SettingsError(StreamdError):
    """When a setting is unknown, of the wrong type, or contradicts another. The operator corrects
    the file or variable."""


class DataDirectoryError(StreamdError):
    """When the data directory cannot be used as it is. The operator follows the message."""


class LockedError(DataDirectoryError):
    """When another process owns the directory. The operator stops it, names another directory, or
    gives a further server another `--name`."""


class JournalError(DataDirectoryError):
    """When the journal is damaged before its last line, or belongs to other settings. The operator
    restores the journal, or renames the directory."""


class SchemaError(JournalError):
    """When the settings declare other sets or features than the log has, and do not extend them.
    The operator sets them back or takes a new directory."""


class CorruptionError(DataDirectoryError):
    """When committed bytes differ from their checksum. The operator restores the named file from a
    backup."""


class DiskError(DataDirectoryError):
    """When a write or sync of the log, or of a role's own files, failed. The operator frees space;
    the role restarts by itself."""


class LeaseError(StreamdError):
    """When a snapshot of the log is read after it was closed, or after its lease ran out because it
    was not used. The program opens the log again."""


# Errors of the log as tables.
class FactsError(StreamdError):
    """When facts of past events cannot be computed exactly, because events before them were dropped
    or overwritten and no stored facts have them. The user asks for later events."""


class QueryError(StreamdError):
    """When a statement in SQL is not allowed, is wrong, or needs too much memory. The user corrects
    it, or raises `sql.max_memory_bytes`."""


class TGUFError(StreamdError):
    """When a file is not a TGUF version 1 file. The operator rewrites or restores it."""


class TFGNNError(StreamdError):
    """When a schema, sampling spec, record or table of TF-GNN is invalid. The operator corrects the
    field or file in the message."""


class TFRecordError(TFGNNError):
    """When a TFRecord file is truncated or damaged. Records before the byte in the message were
    read. The operator writes or copies the file again."""


class CapacityError(StreamdError):
    """When rows do not fit into the rest of a segment: the writer rolls over to a new one. Also
    when nodes or events exceed the capacity of the graph: the operator follows the message."""


class OffloadedError(StreamdError):
    """When a query of the graph needs offloaded events and the graph has no `read_back`. The caller
    creates it with one, or samples newer events only."""


class KafkaError(StreamdError):
    """When the broker cannot be used as configured. The operator checks address, credentials and
    topics."""


class DataLossError(KafkaError):
    """When Kafka has lost the records that the log needs next. The operator starts a new log or
    restores the topic."""


class SilentBrokerError(KafkaError):
    """When no broker answers in time. Ingest keeps trying; the operator starts the broker or
    corrects its address."""


class ModelsTopicError(StreamdError):
    """When a record of the models topic is too large, damaged or impossible. It is skipped; the
    operator finds out which process wrote it."""


class ChangelogError(StreamdError):
    """When the changelog cannot be used as it is, or a record in it is damaged. The operator
    follows the message."""


class FencedError(ChangelogError):
    """When another process leads, in a higher term or by an earlier claim. This is expected after a
    failover; else the operator makes one of the two a replica."""


class DivergedError(ChangelogError):
    """When a commit that this directory has published differs from the changelog's commit of the
    same number, or the changelog has lost records that were read here. The operator moves the
    directory away and starts with an empty one."""


class SchemaRegistryError(StreamdError):
    """When records cannot be decoded because the schema registry does not answer. Ingest waits and
    reads them again; the operator checks the registry's address and credentials."""


class BadEvent(StreamdError):
    """When an event is invalid; it becomes a dead letter with this reason. The operator has the
    producer corrected.

    reason: one of `streamd.ingest.dead_letters.sinks.REASONS`, a bounded set, which metrics use as
    a label.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class StoreError(StreamdError):
    """When a store does not answer in time, or an object in it differs from its manifest. The
    operator checks URL, credentials and network, or takes another manifest."""


class ManifestError(StoreError):
    """When the bytes of a manifest are damaged. Readers of the newest manifest use an older one
    that is intact; the operator makes a new backup."""


class VersionError(StreamdError):
    """When a model version is unknown, incomplete, or does not fit the log. The operator picks one
    of `streamd models list`."""


class NewerSchemaError(VersionError):
    """When a version has sets or features that were added to the log after it was opened. The
    reader of the log opens it again."""


class UntakenError(StreamdError):
    """A move of the champion waits for ingest, which does not commit. request: id of the move, ""
    if it was not made because an earlier one waits."""

    def __init__(self, message: str, action: str, request: str = "") -> None:
        super().__init__(message, action)
        self.request = request


class DeviceError(StreamdError):
    """When the requested device is absent or unsupported. The operator sets `device: cpu`, or
    installs the missing package or driver."""


class DeviceMemoryError(DeviceError):
    """When the GPU has too little free memory. The operator frees memory on it; the role
    restarts."""


class RanksError(StreamdError):
    """When a rank of the trainer has ended, does not answer in time, or has other data than the
    other ranks. All ranks end and are restarted."""


class TrackingError(StreamdError):
    """When MLflow's client is not installed, or its server or folder fails. The operator installs
    it, or checks `mlflow.tracking_uri`; training continues meanwhile."""


class DemoError(StreamdError):
    """When the demo cannot start, or fails before its end. The operator reads the log file in the
    message."""
