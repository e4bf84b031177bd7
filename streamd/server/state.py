"""The state that the routes share: settings, engine, registry, Kafka producer and API keys."""

import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request

from streamd.decode.decoder import Decoder, make_decoder
from streamd.decode.event_sets import EventSets, named_features
from streamd.decode.time_units import number_in, other_unit
from streamd.events import Key
from streamd.registry import Registry
from streamd.roles import FOLLOW
from streamd.schema import Schema
from streamd.server.engine.conditions import Conditions, read_conditions
from streamd.server.engine.engine import Engine
from streamd.server.engine.key_types import KeyTypes, hint_of
from streamd.server.engine.recent_activity import Streams
from streamd.server.engine.set_names import Sets
from streamd.server.http.event_forwarding import Forwarder
from streamd.server.moves import Moves
from streamd.server.page.status import PageSettings, StatusPage
from streamd.server.page.troubles import find_following_troubles, find_kafka_troubles
from streamd.server.v1.filters import Filters
from streamd.server.v1.new_sources import NewSources
from streamd.server.v1.trial_answers import TrialAnswers
from streamd.server.v2.statistics import InferenceStatistics
from streamd.serving.requests import Answer
from streamd.serving.serving_settings import ServingSettings
from streamd.settings.loading import Settings, schema_of, with_schema
from streamd.settings.paths import roles_here
from streamd.telemetry import metrics
from streamd.telemetry.api_keys import ApiKeys, key_of
from streamd.telemetry.heartbeat import STALLED_SECONDS, Heartbeat, held_times, read_beat, refusals
from streamd.trials.impression_sender import ImpressionSender

YEAR_US = 366 * 86_400_000_000
"""A query time further ahead than this may have another unit."""
NO_KEY = "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY", "Bearer"
WRONG_KEY = (
    "the API key is wrong: it is not in server.api_keys, server.admin_keys or their files",
    'Bearer error="invalid_token"',
)
"""Detail and challenge (RFC 6750) of a request without a key, and of one with an unknown key."""


class ServerState:
    """The state that the routes share. The caller of `create_app` makes it once.

    Note: three things in it change: the engine's state, `draining`, and the parts made from the
    log's schema, when the log gets further sets or features.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        beat: Heartbeat,
        moves: Moves | None = None,
        on_failure: Callable[[], None] = lambda: None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """moves: executes promotions and rollbacks; the registry if None. on_failure, prepare: as
        in `Engine`."""
        # The roles of this machine, and the schema of the settings until the log's own is known.
        self.settings = settings
        roles = roles_here(settings)
        schema = schema_of(settings)
        self._other_roles = [role for role in roles if role != "serve"]

        # The engine, and the parts around it.
        self.engine = engine = Engine(
            ServingSettings.of(settings, beat.name),
            settings.server,
            settings.kafka.topics,
            registry,
            beat,
            self._take_schema,
            on_failure,
            prepare,
        )
        self.registry = registry
        self.moves: Moves = moves or registry

        # The page shows the settings of the server's start.
        shown = _page_settings(settings, roles, schema)
        self.page = StatusPage(shown, engine, registry, self.ready, beat)
        self.forwarder = Forwarder(settings.kafka, settings.sources, self._make_decoder)
        self.trial = self._make_trial()
        """The present trial, None if none runs."""
        self.inferences = InferenceStatistics()
        self.may_listen: Callable[[], bool] = lambda: True
        """Whether this process may open the port. A worker that is not ready waits while another
        worker answers."""
        self.streams = Streams()
        self.draining = False
        """Whether the process has been asked to stop. Until it ends it answers, and reports that it
        is not ready."""
        self.keys = ApiKeys(settings.server)
        self.key_types = KeyTypes()
        self.sets, self.filters, self.new_sources = self._names_in(schema)

    def _names_in(self, schema: Schema) -> tuple[Sets, Filters, NewSources]:
        """Make the readers of set names, of feature filters and of new sources for a schema."""
        sets = Sets(schema)
        filters = Filters(schema, self.settings.server.max_candidates)
        events = EventSets(schema, named_features(self.settings))
        return sets, filters, NewSources(sets, events, self.settings.stream.time_unit)

    def _make_trial(self) -> TrialAnswers | None:
        """The trial of the settings, if there is one."""
        trial, kafka = self.settings.trials, self.settings.kafka
        if not trial.name:
            return None
        # Imported here: a server without a trial needs the Kafka client only to forward events.
        from streamd.scoring.topic import KafkaSink

        return TrialAnswers(trial, ImpressionSender(lambda: KafkaSink(kafka, trial.topic)))

    def _make_decoder(self) -> Decoder:
        return make_decoder(self.settings, schema_of(self.settings))

    def _take_schema(self, schema: Schema) -> None:
        """Use the sets and features of the log, which may have more than the settings at the
        server's start."""
        if schema != schema_of(self.settings):
            self.settings = with_schema(self.settings, schema)
            self.sets, self.filters, self.new_sources = self._names_in(schema)
            self.forwarder.reset_decoder()

    def key_hint(self, node: Key, answer: Answer) -> str:
        """A hint that a key of a request may have the wrong type; empty if all its keys are nodes.
        node: the source, or the only node of the request."""
        # Most requests return here, without a lookup.
        if answer.src_known and all(answer.known):
            return ""
        pairs = ((node, answer.src_known), *zip(answer.dst, answer.known, strict=True))
        log = self.engine.log
        return hint_of(log.ids if log else (), (key for key, is_known in pairs if not is_known))

    def time_hint(self, answer: Answer) -> str:
        """A hint that the query time of a request looks like a time in another unit; empty
        otherwise."""
        now_us = max(time.time_ns() // 1_000, answer.newest_us)
        if answer.as_of_us < now_us + YEAR_US:
            return ""
        unit = self.settings.stream.time_unit
        looks = other_unit(answer.as_of_us, now_us, unit)
        if looks is None:
            return ""
        asked = number_in(answer.as_of_us, unit)
        return f"time {asked} looks like {looks}, stream.time_unit is {unit}"

    def alive(self) -> tuple[bool, str]:
        """Whether the engine's loop turns, idle or busy, and the age of its last turn as text."""
        age = time.monotonic() - self.engine.status.beat
        return age < STALLED_SECONDS, f"the engine's last turn was {age:.1f} s ago"

    def refusals(self) -> dict[str, str]:
        """Other role that refused its data -> the reason. Also sets the metric."""
        refused = refusals(self.settings.data_dir, self._other_roles)
        for role in self._other_roles:
            metrics.role_refused.labels(role).set(role in refused)
        return refused

    def kafka_troubles(self) -> dict[str, str]:
        """Why this machine gets no events from Kafka or from a leader, by the key `kafka`; empty if
        it does."""
        servers = self.settings.kafka.bootstrap_servers
        bad = []
        for role in ("ingest", FOLLOW):
            beat = read_beat(self.settings.data_dir, role)
            if beat is not None and beat.alive:
                found = find_kafka_troubles(servers, beat) if role == "ingest" else ()
                bad += [*found, *find_following_troubles(role, beat)]
        texts = [one.text for one in bad if one.is_bad]
        return {"kafka": "; ".join(texts)} if texts else {}

    def refresh_metrics(self) -> None:
        """Update the metrics that are computed only when they are read."""
        self.refusals()
        metrics.ready.set(self.ready()[0])

    def rebuild(self) -> dict[str, Any]:
        """The progress of the rebuild of graph, facts and memory: the share that is done, and the
        remaining seconds, None until measured. Empty once they are complete."""
        reading = self.engine.status.rebuild
        return reading.fields() if reading else {}

    def ready(self) -> tuple[bool, str]:
        """Whether the server can answer requests now, and the reason if not, as text."""
        # The order matters: a draining server still answers, a stalled one does not.
        alive, why = self.alive()
        if self.draining:
            return False, "stopping"
        if held := held_times(self.settings.data_dir):
            return False, f"ingest holds the first commit: {held}"
        return (self.engine.status.ready, self.engine.status.why) if alive else (False, why)


def _page_settings(settings: Settings, roles: tuple[str, ...], schema: Schema) -> PageSettings:
    """The settings that the status page shows. roles: of this machine. schema: of the settings."""
    return PageSettings(
        data_dir=settings.data_dir,
        log=settings.log,
        roles=roles,
        schema=schema,
        ranks=settings.training.ranks,
        workers=settings.server.workers,
        window_seconds=settings.windows.width_seconds,
        nightly_twin=settings.training.nightly_twin,
        time_unit=settings.stream.time_unit,
        key_prefixes=frozenset(p for s in settings.sources for p in s.prefixes()),
        broker=settings.kafka.bootstrap_servers,
        trial=settings.trials.name,
        page_note=settings.server.page_note,
    )


async def state_of(request: Request) -> ServerState:
    """Dependency: the state that the routes share. All dependencies here are async, since FastAPI
    calls the others in another thread."""
    state: ServerState = request.app.state.streamd
    return state


State = Annotated[ServerState, Depends(state_of)]


async def conditions_of(request: Request) -> Conditions:
    """Dependency: the conditions of a request on its answer. Raises: BadCondition."""
    return read_conditions(request.headers)


AnswerConditions = Annotated[Conditions, Depends(conditions_of)]


async def require_key(request: Request) -> None:
    """Dependency: refuse a request without a valid API key. It reads the headers itself, since
    FastAPI's classes for keys take 0.2 ms."""
    given = _key_of(request)
    if not request.app.state.streamd.keys.allows(given):
        detail, challenge = NO_KEY if given is None else WRONG_KEY
        raise HTTPException(401, detail, {"WWW-Authenticate": challenge})


async def require_admin_key(request: Request) -> None:
    """Dependency: refuse a request to promote, roll back or erase without one of
    `server.admin_keys`."""
    if not request.app.state.streamd.keys.may_administer(_key_of(request)):
        raise HTTPException(
            403, "promoting, rolling back and erasing need one of server.admin_keys"
        )


def _key_of(request: Request) -> str | None:
    return key_of(request.headers.get("authorization", ""), request.headers.get("x-api-key"))
