"""The content of the status page as JSON: roles, throughput, windows, versions and moves."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from streamd.eventlog.journal.changelog_position import read_position
from streamd.models.rule import NAME as RULE
from streamd.registry import Registry
from streamd.registry.manifest import Manifest
from streamd.registry.registry import read_manifests
from streamd.roles import RANK, rank_names
from streamd.schema import Schema
from streamd.server.engine.engine import Engine
from streamd.server.engine.lag import BROKER_SECONDS
from streamd.server.page.dead_letters import DeadLettersOnPage
from streamd.server.page.headline import headline_of
from streamd.server.page.key_watch import OddKeysOnPage
from streamd.server.page.newest_events import newest_events
from streamd.server.page.pulse import SAMPLE_SECONDS, Pulse
from streamd.server.page.trend import Trend
from streamd.server.page.trial_on_page import TrialOnPage
from streamd.server.page.troubles import MachineFacts, Trouble, find_troubles, is_expected
from streamd.server.page.window_rows import edge_sets, window_row
from streamd.settings.loading import LogSettings
from streamd.telemetry.heartbeat import Beat, Heartbeat, read_beat, read_beats
from streamd.windows.history import HistoryReader
from streamd.windows.version_scores import VersionScores, version_scores

MAX_WINDOWS = 1000
"""Maximum number of windows on the page. It bounds the size of `/status.json`, which each open page
requests every few seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageSettings:
    """The settings that the page shows, and those from which it derives the expected roles.

    roles: of this machine. schema: of a new log under these settings. time_unit: of events in the
    topics. key_prefixes: the prefixes that sources add to keys. broker: addresses of Kafka. trial:
    name of the present trial, "" for none. Other fields: as in `Settings`.
    """

    data_dir: Path
    log: LogSettings
    roles: tuple[str, ...]
    schema: Schema
    ranks: int
    workers: int
    window_seconds: int
    nightly_twin: bool
    time_unit: str
    key_prefixes: frozenset[str]
    broker: str
    trial: str
    page_note: str


class StatusPage:
    """Collects the state of all roles from the data directory. Owner: the event loop's thread."""

    def __init__(
        self,
        settings: PageSettings,
        engine: Engine,
        registry: Registry,
        is_ready: Callable[[], tuple[bool, str]],
        beat: Heartbeat,
    ) -> None:
        """is_ready: returns whether the server answers, and the reason if not, as in `/readyz`.
        beat: the server's heartbeat, in which `streamd doctor` finds the troubles."""
        self._beat = beat
        self._is_ready = is_ready
        self._settings = settings
        self._engine = engine
        self._registry = registry
        self._history = HistoryReader(settings.data_dir)
        self._letters = DeadLettersOnPage(settings.data_dir)
        self._odd_keys = OddKeysOnPage(lambda: engine.log, settings.key_prefixes)
        self._trend = Trend(lambda: engine.log, settings.window_seconds * 1_000_000)
        self._trial = TrialOnPage(settings.data_dir, settings.trial)
        self._begun = time.monotonic()
        self.pulse = Pulse(lambda: engine.status.events_per_second, self._lag_seconds)

    def content(self, num_windows: int = MAX_WINDOWS) -> dict[str, Any]:
        """The content of `/status.json`. num_windows: number of newest windows in it."""
        return {
            **self._server(),
            **self._machine(),
            **self._training(num_windows),
            **self._models(),
        }

    async def run(self) -> None:
        """Sample metrics and heartbeats every SAMPLE_SECONDS, until cancelled."""
        while True:
            await self._trial.refresh()
            await asyncio.sleep(SAMPLE_SECONDS)
            self.pulse.sample()
            roles = self._roles()[1]
            self._update_trend(roles)
            self._beat.note(troubles=[asdict(trouble) for trouble in self._all_troubles(roles)])

    def _all_troubles(self, roles: Mapping[str, Beat | None]) -> list[Trouble]:
        """The troubles of the machine, and the page's notices about answers, model and trial."""
        found = find_troubles(self._facts(roles))
        notices = []
        answers, why = self._is_ready()
        if not answers and not found:
            notices.append(f"the server does not answer: {why}")
        headline = headline_of(self._history.refresh()[-MAX_WINDOWS:])
        if headline is not None and (notice := headline.notice()):
            notices.append(notice)
        if (trial := self._trial.content()) and trial["mismatch"]:
            notices.append(f"trial {trial['name']}: the numbers of units contradict the shares")
        return found + [Trouble(text=notice, is_bad=False) for notice in notices]

    def _lag_seconds(self) -> float | None:
        """The lag of answers in seconds, None if unknown. It is 0 if ingest has read all records of
        Kafka by a recent report, and the server has read the whole log."""
        log = self._engine.log
        beat = read_beat(self._settings.data_dir, "ingest")
        has_all = log is not None and log.num_edges == self._engine.status.edge
        if has_all and beat is not None and beat.alive and beat.detail.get("behind") == {}:
            broker_age = beat.age_seconds + float(beat.detail["broker_age_seconds"])
            if broker_age < BROKER_SECONDS:
                return 0.0
        return self._engine.lag_seconds()

    def _update_trend(self, roles: Mapping[str, Beat | None]) -> None:
        self._trend.read_heartbeats(roles.get("ingest"), roles.get("train"))

    def _server(self) -> dict[str, Any]:
        """The state of this server's engine."""
        status = self._engine.status
        is_ready, why = self._is_ready()
        return {
            "now": time.time(),
            "rule": RULE,
            "ready": is_ready,
            "why": why,
            "loaded": status.ready,
            "version": status.version,
            "trained_until_us": status.trained_until_us,
            "edges": status.edge,
            "newest_us": status.newest_us,
            "memory_edge": status.memory_edge,
            "answered": status.answered,
            "events_per_second": status.events_per_second,
            "rebuild": status.rebuild.fields() if status.rebuild else None,
            "pulse": self.pulse.content(),
            "newest": newest_events(self._engine.log),
        }

    def _machine(self) -> dict[str, Any]:
        """The log of this machine, its roles and its settings."""
        # A log without a name has no leader's term, since no other machine follows it.
        s = self._settings
        num_ranks, roles = self._roles()
        self._update_trend(roles)
        position = read_position(s.data_dir) if s.log.name else None
        schema = self._engine.schema or s.schema
        return {
            "log": {
                "name": s.log.name,
                "member": s.log.member,
                "term": position and position.term,
            },
            "roles": {name: beat and _beat(beat) for name, beat in roles.items()},
            "troubles": [asdict(trouble) for trouble in find_troubles(self._facts(roles))],
            "page_note": s.page_note,
            "ranks": num_ranks,
            "workers": s.workers,
            "window_seconds": s.window_seconds,
            "windows_waiting": self._trend.num_waiting(roles.get("train")),
            "nightly_twin": s.nightly_twin,
            "time_unit": s.time_unit,
            "edge_set_names": list(schema.edge_set_names),
            "node_set_names": list(schema.node_set_names),
            "dead_letters": self._letters.content(),
            "odd_keys": self._odd_keys.content(),
            "trial": self._trial.content(),
        }

    def _facts(self, roles: Mapping[str, Beat | None]) -> MachineFacts:
        """The facts from which troubles are found. roles: as `_roles` returns them."""
        s = self._settings
        status = self._engine.status
        log = self._engine.log
        # While the server starts, the page shows its progress instead.
        is_ready = status.ready and log is not None
        return MachineFacts(
            now=time.time(),
            up_seconds=time.monotonic() - self._begun,
            broker=s.broker,
            beats={
                name: beat
                for name, beat in roles.items()
                if is_expected(name, beat, s.roles, s.workers)
            },
            version="the rule" if status.version == RULE else f"version {status.version}",
            next_version=status.next_version if is_ready else None,
            memory_behind=status.edge - status.memory_edge if is_ready else 0,
            log_behind=log.num_edges - status.edge if log is not None and is_ready else 0,
            no_progress_seconds=self._trend.no_progress_seconds,
            refusals=self._trend.refusals,
        )

    def _roles(self) -> tuple[int, dict[str, Beat | None]]:
        """The number of ranks, and the heartbeat of each role, rank and server; None for one that
        never ran."""
        beats = {beat.name: beat for beat in read_beats(self._settings.data_dir)}

        # The trainer reports its number of ranks, which torchrun may have been given instead of
        # that of the settings.
        train = beats.get("train")
        num_ranks = train.detail.get("ranks", 0) if train else 0
        num_ranks = num_ranks or self._settings.ranks
        names: list[str] = []
        for role in self._settings.roles:
            names += rank_names(num_ranks) if role == "train" else [role]

        # Then other roles and servers with a heartbeat, without ranks of an earlier, larger group.
        names += [n for n in beats if n not in names and not n.startswith(RANK)]
        return num_ranks, {n: beats.get(n) for n in names}

    def _training(self, num_windows: int) -> dict[str, Any]:
        """The trained windows, oldest first, and their headline."""
        records = self._history.refresh()
        shown = records[-num_windows:] if num_windows else []
        sets = edge_sets(shown)
        headline = headline_of(records[-MAX_WINDOWS:])
        return {
            "num_windows": len(records),
            "headline": headline and headline.content(),
            "windows": [window_row(record) for record in shown],
            # Absent if the log has a single edge set.
            **({"edge_sets": sets} if sets else {}),
        }

    def _models(self) -> dict[str, Any]:
        """The versions and the moves of the champion, newest first."""
        # A version is written before the move that names it, so read the moves first.
        moves, num_moves = self._registry.journal.recent()
        last = self._registry.shown()
        manifests = read_manifests(self._registry)
        scores = version_scores(self._history.records, {m.name for m in manifests})
        return {
            "num_moves": num_moves,
            "champion": last and last.champion,
            "shadow": last and last.shadow,
            "versions": [self._version(m, scores) for m in reversed(manifests)],
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

    def _version(self, m: Manifest, scores: Mapping[str, VersionScores]) -> dict[str, Any]:
        """A version as JSON, with its scores over the windows that it scored; null before the
        first."""
        # Not the scores in its manifest: the version before it made them.
        of_it = scores.get(m.name)
        return {
            "name": m.name,
            "window_start_us": m.window_start_us,
            "trained_until_us": m.window_end_us,
            "servable": self._registry.is_servable(m),
            "num_windows": of_it.num_windows if of_it else 0,
            "mrr": of_it and of_it.mrr,
            "compared_by": of_it and of_it.measure,
            "rule_name": of_it and of_it.rule_name,
            "rule": of_it and of_it.rule,
            "hits10": of_it and of_it.hits10,
            "parent": m.parent,
            "loss": m.loss,
        }


def _beat(beat: Beat) -> dict[str, Any]:
    return {
        "role": beat.role,
        "state": beat.state,
        "alive": beat.alive,
        "age_seconds": round(beat.age_seconds, 1),
        # Without the troubles, since the page has newer ones.
        "detail": {key: value for key, value in beat.detail.items() if key != "troubles"},
    }


def passed_over(registry: Registry) -> dict[str, str]:
    """Entry of `models/` that is neither a version nor a move, so that the last read ignored it ->
    the reason."""
    lines = registry.journal.passed_over.items()
    moves = {f"moves.jsonl: {line[:80].decode(errors='replace')}": why for line, why in lines}
    return {**registry.passed_over, **moves}
