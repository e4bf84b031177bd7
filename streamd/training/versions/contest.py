"""The contest of versions: the learner's version is compared with a shadow or an incumbent, and the
verdict says which version serves from then on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from streamd.errors import VersionError
from streamd.eventlog.reader import LogReader
from streamd.events import Bools, Float32, Int64
from streamd.graph.ranking import ranks
from streamd.models.loading import load_model
from streamd.models.memory.files import MemoryReader
from streamd.registry import Registry
from streamd.registry.candidate import PublishResult
from streamd.roles import FACTS
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.training.learner import Learner
from streamd.training.learning_settings import LearningSettings
from streamd.training.recorder import Chunk, Recorder
from streamd.training.versions.incumbent import Incumbent
from streamd.training.versions.shadow import Comparison, ComparisonResult, Shadow, judge
from streamd.windows import Window, next_window
from streamd.windows.novelty import Novelty

logger = structlog.get_logger()


class Proof(NamedTuple):
    """A line for the registry's journal: this version is the shadow from now on, and why."""

    version: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a comparison came to.

    decision: "open" while the comparison goes on. why: the reason, in words.
    back_to: the shadow that learning goes back to, where the version is worse than it; None against
    an incumbent, which just goes on serving.
    proof: for the journal, where the champion took the shadow's place.
    """

    decision: ComparisonResult
    why: str
    back_to: Shadow | None = None
    proof: Proof | None = None


class Contest:
    """Keeps the learner's version, the shadow and the incumbent, and compares them over the same
    events.

    Owner: the trainer's thread. A contest changes its own state only; the trainer tells the learner
    and the ledger what follows from a verdict.

    version: name of the version that the learner goes on from, "" before the first. It is the
    champion, or, while an incumbent serves, the newest version learned here.
    shadow: the version to fall back to, with fixed weights: the last proven one learned here, or
    the champion where that was lost or may hold deleted data; None before there is one.
    incumbent: the champion of other settings, which serves until what is learned here is proven.
    compared: `version` against the shadow or the incumbent, since the last verdict.
    """

    def __init__(
        self,
        paths: Paths,
        settings: LearningSettings,
        gate_events: int,
        reader: LogReader,
        versions: Registry,
        learner: Learner,
        recorder: Recorder,
        rebuilding: Callable[[int], Callable[[int], None]],
    ) -> None:
        """gate_events: events over which two versions are compared. rebuilding: makes the progress
        callback of a rebuild up to an event id; it is called with the event id reached."""
        # What it reads.
        self._paths = paths
        self._settings = settings
        self._gate_events = gate_events
        self._log = reader
        self._versions = versions
        self._learner = learner
        self._ranks = learner.ranks
        self._recorder = recorder
        self._rebuilding = rebuilding

        # What it owns.
        self.version = ""
        self.shadow: Shadow | None = None
        self.incumbent: Incumbent | None = None
        self.compared = Comparison()
        self._not_followed = ""

    @property
    def incumbent_name(self) -> str | None:
        """Name of the incumbent, None where there is none."""
        return self.incumbent.name if self.incumbent else None

    @property
    def shadow_is_older(self) -> bool:
        """Whether there is a shadow and it is another version than the champion."""
        return self.shadow is not None and self.shadow.name != self.version

    # While windows are learned

    def score(self, chunk: Chunk) -> Float32 | None:
        """Move the shadow over a chunk.

        Returns: its logits, float32[E, 101]; None where there is no shadow, the shadow is the
        learner's version itself, or no event of the chunk is scored.
        """
        if self.shadow is None:
            return None
        shadow_EC = self.shadow.score(chunk)
        return shadow_EC if self.shadow_is_older else None

    def compare(self, live_EC: Float32, shadow_EC: Float32, known_E: Bools) -> None:
        """Compare the learner's version with the shadow over a window. Args: logits of both,
        float32[E, 101]; bool[E], whether each event's destination was known."""
        self.compared = self.compared.added(
            1 / ranks(live_EC[known_E]), 1 / ranks(shadow_EC[known_E])
        )

    def score_window(
        self,
        event_E: Int64,
        logits_EC: Float32,
        novelty: Novelty,
        window: Window,
        on_chunk: Callable[[], None],
    ) -> tuple[Int64, Float32, Novelty] | None:
        """Move the incumbent over a window that was scored, and compare the learner's version with
        it; arguments as in `Incumbent.compare`.

        Returns: edge sets of the events that it has scored meanwhile, int64[E], its logits of them,
        float32[E, 101], and their novelty; None where there is no incumbent.
        """
        if self.incumbent is None:
            return None
        paired = self.incumbent.compare(event_E, logits_EC, novelty, window, on_chunk)
        self.compare(paired.learned_EC, paired.incumbent_EC, paired.novelty.known_E)
        return self._log.edge_sets_of(paired.event_E), paired.incumbent_EC, paired.novelty

    def judge(self) -> Verdict:
        """Decide, once enough events were compared and before the window is learned; each verdict
        that is not "open" starts a new comparison."""
        decision, why = judge(self.compared, self._gate_events)
        if decision == "open":
            return Verdict(decision=decision, why=why)
        metrics.gate_verdicts.labels(decision).inc()
        self.compared = Comparison()

        # Against an incumbent: a version that is worse goes on learning beside it.
        if self.incumbent is not None:
            if decision == "proven":
                logger.warning("settings_proven", instead_of=self.incumbent.name, why=why)
                self.incumbent = None
            return Verdict(decision=decision, why=why)

        # Against the shadow: the champion takes its place, or learning goes back to it.
        if decision == "proven":
            self.shadow = Shadow.of(self.version, self._learner)
            return Verdict(decision=decision, why=why, proof=Proof(self.version, why))
        assert self.shadow is not None
        logger.warning("rolled_back", version=self.shadow.name, instead_of=self.version, why=why)
        self.version = self.shadow.name
        return Verdict(decision=decision, why=why, back_to=self.shadow)

    def after(self, outcome: PublishResult) -> Proof | None:
        """Note the version that learning goes on from: the published one or, after a refusal, its
        parent.

        Returns: a proof where it serves and there was no shadow, because it becomes the shadow too.
        """
        self.version = outcome.version
        if not outcome.promoted or self.shadow is not None:
            return None
        self.shadow = Shadow.of(outcome.version, self._learner)
        return Proof(outcome.version, "the first under its settings to serve")

    def renew_shadow(self, why: str) -> Proof:
        """Make the champion the shadow although it is unproven. why: for the journal."""
        self.shadow = Shadow.of(self.version, self._learner)
        self.compared = Comparison()
        return Proof(self.version, why)

    # Moves by hand

    def follow(self, edge: int) -> Shadow | None:
        """Follow the champion where someone moved it by hand.

        A champion of other settings becomes the incumbent; learning goes on from one of the same
        settings.

        Returns: the version that learning goes on from, its memory at event `edge`; None where
        learning goes on as before.
        """
        # Whether there is anything to follow.
        champion = self._ranks.tell(self._versions.moved_by_hand())
        if champion is None or champion == self.incumbent_name:
            return None
        if champion == self.version:
            self.incumbent = None
            return None

        # Load it, as the incumbent or as the version that learning goes on from.
        reason = "its event lies before the log's first event or after the trainer's"
        try:
            if self._begin_incumbent(champion):
                return None
            carried = self._load_at(champion, edge)
        except VersionError as error:
            carried = None
            reason = str(error)

        # One that cannot be followed is reported once, not at every window.
        if carried is None:
            if champion != self._not_followed:
                logger.error("champion_not_followed", version=champion, reason=reason)
            self._not_followed = champion
            return None
        logger.warning("following_champion", version=champion, instead_of=self.version)
        self.version = champion
        self.compared = Comparison()
        self.incumbent = None
        return carried

    # After a stop

    def restore(self, version: str, compared: Comparison) -> None:
        """Take over the name of the version that learning goes on from, and the comparison so far,
        from a checkpoint; without one, the champion and an empty comparison.

        `restore_shadow` and `restore_incumbent` are called later, once graph and facts exist.
        """
        self.version = version
        self.compared = compared

    def restore_shadow(self, name: str, edge: int) -> Proof | None:
        """Load the last proven version and advance its memory to event `edge`.

        Returns: a proof that the journal does not hold yet, because a stop came before it was
        written, or because the champion replaces a shadow that cannot be read; else None.
        """
        try:
            self.shadow = self._load_at(name, edge)
        except VersionError as error:
            logger.error(
                "shadow_lost",
                version=name,
                error=str(error),
                meaning="the champion takes its place unproven",
            )
            return self.renew_shadow("the version proven before it cannot be read")
        journal = self._ranks.tell(self._versions.shadow())
        return Proof(name, "proven before a restart") if journal != name else None

    def restore_incumbent(self) -> None:
        """Go on comparing with the champion where it has other settings."""
        # The comparison of the checkpoint goes on: beginning an incumbent would empty it.
        compared = self.compared
        champion = self._ranks.tell(self._versions.champion())
        try:
            if champion is not None and self._begin_incumbent(champion):
                self.compared = compared
        except VersionError as error:
            logger.error("champion_not_compared", version=champion, reason=str(error))

    def _begin_incumbent(self, champion: str) -> bool:
        """Make a champion of other settings the incumbent, until what is learned here is proven.

        Returns: False where it has this trainer's settings, or the log does not reach its event.
        Raises: VersionError where it cannot be loaded.
        """
        # Whether it is an incumbent that can be compared.
        version = self._versions.load(champion)
        edge = version.manifest.edge
        if self._settings.continues(version.manifest.fixed_settings):
            return False
        if not self._log.first_edge <= edge <= self._log.num_edges:
            logger.warning(
                "champion_not_compared",
                version=champion,
                reason=f"the log does not hold edge {edge}",
            )
            return False

        # From here on the learner's version is compared with it alone.
        logger.warning(
            "learning_beside_champion",
            version=champion,
            reason="it has other model or window settings",
        )
        self.incumbent = Incumbent(
            self._settings,
            self._paths.folder / FACTS,
            self._log,
            version,
            self._rebuilding(edge),
            self._ranks,
        )
        self.shadow = None
        self.compared = Comparison()
        return True

    def _load_at(self, name: str, edge: int) -> Shadow | None:
        """Load a version and advance its memory to event `edge`.

        Returns: None where the log begins after the version's event, or `edge` lies before it.
        Raises: VersionError where it cannot be loaded or has other settings.
        """
        version = self._versions.load(name)
        if not self._log.first_edge <= version.manifest.edge <= edge:
            return None
        if not self._settings.continues(version.manifest.fixed_settings):
            raise VersionError(
                f"Version {name} has other model or window settings.",
                "promote one of these settings.",
            )
        like = MemoryReader(self._learner.memory)
        model, memory = load_model(
            version, self._log.state.schema, self._learner.model.device, like, self._ranks
        )
        while memory.edge < edge:
            window = next_window(self._log, memory.edge, self._settings.width_us)
            assert window is not None
            for chunk in self._recorder.cut(window):
                model.advance(memory, chunk)
        return Shadow(name, model, memory, self._learner.transfer)
