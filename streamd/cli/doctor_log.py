"""The checks of `streamd doctor` that read the log or wait for its first commit."""

from streamd.errors import StreamdError
from streamd.number_texts import count_noun
from streamd.settings.loading import Settings, schema_of
from streamd.telemetry.heartbeat import held_times


class Doubts(str):
    """Findings of a check that passed, which the operator should read."""


def widths(settings: Settings) -> str:
    """Check that the log accepts the sets and the widths of features and labels in the settings."""
    from streamd.eventlog.recovery import last_state

    wanted = schema_of(settings)
    widths = ", ".join(
        f"{name} {getattr(wanted, name)}"
        for name in ("edge_feature_dim", "node_feature_dim", "label_dim")
    )
    if wanted.edge_sets:
        nodes, edges = wanted.node_set_names, wanted.edge_set_names
        widths += f"; node sets {', '.join(nodes)}; edge sets {', '.join(edges)}"
    if not (settings.data_dir / "journal").is_dir():
        return f"{widths}; there is no log yet"
    stored = last_state(settings.data_dir, wanted)
    stored.check_takes(wanted)
    if stored.is_blank:
        return f"{widths}; the log has no event yet"
    return f"{widths}, {'as' if stored.schema == wanted else 'more than'} in the log"


def keys(settings: Settings) -> str:
    """Report placeholders, heavy keys, copies and late edges among the newest edges.

    The check passes in any case. Returns: `Doubts` if it found some."""
    from streamd.eventlog.odd_keys import odd_keys_in_log
    from streamd.eventlog.reader import LogReader

    log = LogReader.open(settings.data_dir)
    if log is None or not log.num_edges:
        return "there is no edge yet"
    prefixes = {prefix for source in settings.sources for prefix in source.prefixes()}
    found = odd_keys_in_log(log, prefixes=prefixes)
    if found.sentences:
        return Doubts("; ".join(found.sentences))
    return f"nothing odd in the newest {count_noun(found.num_edges, 'edge')}"


def first_times(settings: Settings) -> str:
    """Check that ingest does not delay the log's first commit because its times look wrong."""
    if held := held_times(settings.data_dir):
        why, _, action = held.rpartition("; ")
        raise StreamdError(f"Ingest holds the first commit of the log: {why}.", f"{action}.")
    return "ingest holds no commit for its times"
