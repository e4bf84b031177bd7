"""The content of the status page as JSON: roles, throughput, windows, versions and moves."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from streamd.eventlog.journal.changelog_position import read_position
from streamd.models.rule import NAME as RULE
from streamd.registry import Registry
from streamd.registry.manifest import Manifest
from streamd.registry.registry import read_manifests
from streamd.roles import RANK, rank_names, roles_of
from streamd.schema import Schema
from streamd.server.engine.engine import Engine
from streamd.server.page.headline import headline_of
from streamd.server.page.letters import Letters
from streamd.server.page.pulse import Pulse
from streamd.settings.loading import Settings, schema_of
from streamd.telemetry.heartbeat import Beat, read_beats
from streamd.windows.history import HistoryReader, SetScores, WindowRecord

MAX_WINDOWS = 1000
"""Newest windows that the page shows: it bounds the size of an answer, which is asked for often."""


class StatusPage:
    """Collects the state of all roles from the data directory. Owner: the event loop's thread."""

    def __init__(self, settings: Settings, engine: Engine, registry: Registry) -> None:
        self._settings = settings
        self._engine = engine
        self._registry = registry
        self._history = HistoryReader(settings.data_dir)
        self._letters = Letters(settings.data_dir)
        self.pulse = Pulse(lambda: engine.status.events_per_second, engine.lag_seconds)

    def _sets(self) -> Schema:
        """The sets of the log, or of the settings before there is one."""
        return self._engine.schema or schema_of(self._settings)

    def _roles(self) -> tuple[int, dict[str, Any]]:
        """The number of ranks, and the heartbeats of the roles, of each rank and of each server;
        one that never ran as None."""
        log = self._settings.log
        beats = {beat.name: beat for beat in read_beats(self._settings.data_dir)}

        # As many ranks as the trainer says: torchrun may have started others than are set.
        train = beats.get("train")
        num_ranks = train.detail.get("ranks", 0) if train else 0
        num_ranks = num_ranks or self._settings.training.ranks
        names: list[str] = []
        topic = self._settings.server.score_topic
        for role in roles_of(log.name, log.store, log.member, topic):
            names += rank_names(num_ranks) if role == "train" else [role]

        # Ranks of an earlier, larger group are gone.
        names += [n for n in beats if n not in names and not n.startswith(RANK)]
        return num_ranks, {n: _beat(beats[n]) if n in beats else None for n in names}

    def content(self, num_windows: int = MAX_WINDOWS) -> dict[str, Any]:
        """The content of `/status.json`. num_windows: newest ones that are told."""
        status = self._engine.status
        log = self._settings.log
        num_ranks, roles = self._roles()
        position = read_position(self._settings.data_dir) if log.name else None

        # What training wrote.
        records = self._history.refresh()
        moves, num_moves = self._registry.journal.recent()
        last = self._registry.shown()
        shown = records[-num_windows:] if num_windows else []
        sets = edge_sets(shown)
        headline = headline_of(records[-MAX_WINDOWS:])

        return {
            # The server.
            "now": time.time(),
            "rule": RULE,
            "ready": status.ready,
            "why": status.why,
            "version": status.version,
            "trained_until_us": status.trained_until_us,
            "edges": status.edge,
            "newest_us": status.newest_us,
            "memory_edge": status.memory_edge,
            "answered": status.answered,
            "events_per_second": status.events_per_second,
            # The machines that hold the log, all roles here, and the windows, oldest first.
            "log": {"name": log.name, "member": log.member, "term": position and position.term},
            "roles": roles,
            "num_windows": len(records),
            "window_seconds": self._settings.windows.width_seconds,
            "headline": headline and {**asdict(headline), "below_rule": headline.is_below_rule},
            "nightly_twin": self._settings.training.nightly_twin,
            "ranks": num_ranks,
            "workers": self._settings.server.workers,
            "time_unit": self._settings.stream.time_unit,
            "edge_set_names": list(self._sets().edge_set_names),
            "node_set_names": list(self._sets().node_set_names),
            "rebuild": status.rebuild.fields() if status.rebuild else None,
            "pulse": self.pulse.content(),
            "dead_letters": self._letters.content(),
            "windows": [
                {
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
                    "mrr": {k: v["mrr"] for k, v in r.scores.items() if "mrr" in v},
                    "mrr_known": {
                        k: v["mrr_known"] for k, v in r.scores.items() if "mrr_known" in v
                    },
                    "ap": {k: v["ap"] for k, v in r.scores.items() if "mrr" in v},
                    "hits10": {k: v["hits10"] for k, v in r.scores.items() if "hits10" in v},
                    "mrr_beside_nightly": r.scores.get("nightly", {}).get("mrr_live"),
                    "scored_by": r.scored_by,
                    "reason": r.reason,
                    "loss": r.loss,
                }
                for r in shown
            ],
            # Of several edge sets, what windows say of each.
            **({"edge_sets": sets} if sets else {}),
            # Versions and moves, newest first.
            "num_moves": num_moves,
            "champion": last and last.champion,
            "shadow": last and last.shadow,
            "versions": [
                {
                    "name": m.name,
                    "window_start_us": m.window_start_us,
                    "trained_until_us": m.window_end_us,
                    "servable": self._registry.is_servable(m),
                    "mrr": _mrr(m, "live"),
                    "edgebank": _mrr(m, "edgebank"),
                    "nightly": _mrr(m, "nightly"),
                    "hits10": m.scores.get("live", {}).get("hits10"),
                    "parent": m.parent,
                    "loss": m.loss,
                }
                for m in read_manifests(self._registry)
            ][::-1],
            "passed_over": passed_over(self._registry),
            "moves": [
                {
                    "time": m.time,
                    "action": m.action,
                    "champion": m.champion,
                    "who": m.who,
                    "why": m.why,
                }
                for m in moves
            ][::-1],
        }


def _beat(beat: Beat) -> dict[str, Any]:
    return {
        "role": beat.role,
        "state": beat.state,
        "alive": beat.alive,
        "age_seconds": round(beat.age_seconds, 1),
        "detail": beat.detail,
    }


def edge_sets(records: Sequence[WindowRecord]) -> list[dict[str, Any]]:
    """What windows say of each edge set: its scored events, and MRR over them all by the version
    that served and by EdgeBank. Empty where the log has one edge set."""
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


def passed_over(registry: Registry) -> dict[str, str]:
    """The entries of `models/` that are neither version nor move, and why, as last read."""
    lines = registry.journal.passed_over.items()
    moves = {f"journal.jsonl: {line[:80].decode(errors='replace')}": why for line, why in lines}
    return {**registry.passed_over, **moves}


def _mrr(manifest: Manifest, model: str) -> float | None:
    """MRR over the version's own window, before it was learned; None where it was not scored."""
    return manifest.scores.get(model, {}).get("mrr")
