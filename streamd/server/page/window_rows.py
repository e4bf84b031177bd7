"""The trained windows and edge sets as the status page shows them."""

from collections.abc import Sequence
from typing import Any

from streamd.windows.history import WindowRecord
from streamd.windows.means import (
    ALL,
    KNOWN,
    best_rule,
    comparable,
    compared_mrr,
    mean_mrr,
    mean_negatives,
    weight_of,
)
from streamd.windows.novelty import NOVELTIES, recurrence
from streamd.windows.over_rule import are_newest_worse, over_rule


def window_row(r: WindowRecord) -> dict[str, Any]:
    """A window as JSON, with the scores of each model and rule. Its field `compared_by` names the
    measure that all of them have."""

    # Label heads have other measures, and are left out.
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
        "negatives": r.mean_negatives,
        "late": r.num_late,
        "surprise": r.surprise,
        "mrr": by_model(ALL),
        "mrr_known": by_model(KNOWN),
        "compared_by": KNOWN if by_model(ALL).keys() == by_model(KNOWN).keys() else ALL,
        "mrr_by_novelty": {name: by_model(f"mrr_{name}") for name in NOVELTIES},
        "recurrence": recurrence([r.novelty]),
        "ap": by_model("ap"),
        "hits10": by_model("hits10"),
        "mrr_beside_nightly": r.scores.get("nightly", {}).get("mrr_live"),
        "scored_by": r.scored_by,
        "reason": r.reason,
        "loss": r.loss,
    }


def edge_sets(records: Sequence[WindowRecord]) -> list[dict[str, Any]]:
    """The scores of each edge set as JSON, over all windows with the same rules as its newest one.

    For each set: its scored events, their mean number of negatives, and the MRR of the versions
    that served and of the best rule over events with a known destination, in all these windows and
    in the newest one; and whether the model is below the rule by more than chance explains. Empty
    if the log has one edge set.
    """
    names = dict.fromkeys(name for record in records for name in record.edge_sets)
    out = []
    for name in names:
        own = comparable([r.edge_sets[name] for r in records if name in r.edge_sets])
        # The best rule may differ between the log and an edge set, and in the newest window.
        rule_name, rule = best_rule(own)
        newest_name, newest_rule = best_rule(own[-1:])
        out.append(
            {
                "name": name,
                "scored": sum(part.num_scored for part in own),
                "compared": sum(weight_of(part) for part in own),
                "mrr": mean_mrr(own, "live"),
                "rule_name": rule_name,
                "rule": rule,
                "newest_mrr": compared_mrr(own[-1], "live"),
                "newest_rule": newest_rule,
                "below_rule": over_rule(own, rule_name).is_worse,
                "newest_below_rule": are_newest_worse(own, 1, newest_name),
                "recurrence": recurrence(part.novelty for part in own),
                "negatives": mean_negatives(own),
            }
        )
    return out
