"""The windows of training, as the status page shows them."""

from collections.abc import Sequence
from typing import Any

from streamd.windows.history import SetScores, WindowRecord


def window_row(r: WindowRecord) -> dict[str, Any]:
    """A window, with its scores by each model that was scored."""

    def by_model(measure: str) -> dict[str, float]:
        return {name: scores[measure] for name, scores in r.scores.items() if measure in scores}

    return {
        "start_us": r.start_us,
        "end_us": r.end_us,
        "events": r.end_edge - r.first_edge,
        "version": r.version,
        "promoted": r.promoted,
        "seconds": sum(r.seconds.values()),
        "scored": r.num_scored,
        "known": r.num_known,
        "late": r.num_late,
        "surprise": r.surprise,
        "mrr": by_model("mrr"),
        "mrr_known": by_model("mrr_known"),
        "ap": by_model("ap"),
        "hits10": by_model("hits10"),
        "mrr_beside_nightly": r.scores.get("nightly", {}).get("mrr_live"),
        "scored_by": r.scored_by,
        "reason": r.reason,
        "loss": r.loss,
    }


def edge_sets(records: Sequence[WindowRecord]) -> list[dict[str, Any]]:
    """The scores of each edge set over all windows: its scored events, and MRR over them by the
    version that served and by EdgeBank. Empty if the log has one edge set."""
    names = dict.fromkeys(name for record in records for name in record.edge_sets)
    out = []
    for name in names:
        own = [r.edge_sets[name] for r in records if name in r.edge_sets]
        scored = sum(s.num_scored for s in own)

        def mean(model: str, own: list[SetScores] = own, scored: int = scored) -> float:
            return sum(s.scores[model]["mrr"] * s.num_scored for s in own) / scored

        newest = own[-1].scores["live"]["mrr"]
        row = {"name": name, "scored": scored, "mrr": mean("live"), "edgebank": mean("edgebank")}
        out.append(row | {"newest_mrr": newest})
    return out
