"""Who serves: the champion, the shadow or incumbent that it is compared with, and what follows from
that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from streamd.errors import VersionError
from streamd.events import Float32, Int64
from streamd.models import restored
from streamd.registry import Registry
from streamd.registry.candidate import PublishResult
from streamd.registry.registry import learn_alike
from streamd.segments.reader import LogReader
from streamd.settings import Settings
from streamd.telemetry import metrics
from streamd.training.incumbent import Incumbent
from streamd.training.learner import Learner
from streamd.training.recorder import Chunk, Recorder
from streamd.training.scores import ranks
from streamd.training.shadow import Comparison, Said, Shadow, judge
from streamd.windows import Window, next_window

logger = structlog.get_logger()


class Proof(NamedTuple):
    """A version that is the shadow from now on, and why: for the journal."""

    version: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """said: what a comparison came to, "open" while it goes on. back_to: the shadow to learn on
    from instead of the champion, which is worse. proof: of the champion that took the shadow's
    place."""

    said: Said
    why: str
    back_to: Shadow | None = None
    proof: Proof | None = None


class Contest:
    """Owner: the trainer's thread. It moves nothing but its own state; the trainer tells the
    learner and the ledger.

    version: what the learner goes on from, "" before the first: the champion, or, beside an
    incumbent, the newest of ours. shadow: the last proven version of ours, which stands still; None
    before there is one. incumbent: the champion of other settings that serves until what is learned
    here is proven. compared: `version` beside whichever of the two there is, since the last
    verdict.
    """

    def __init__(
        self,
        settings: Settings,
        reader: LogReader,
        versions: Registry,
        learner: Learner,
        recorder: Recorder,
        rebuilding: Callable[[int], Callable[[int], None]],
    ) -> None:
        """rebuilding: of the edge to rebuild to, what is told the edge reached while an incumbent's
        graph and facts are made."""
        self._settings = settings
        self._log = reader
        self._versions = versions
        self._learner = learner
        self._recorder = recorder
        self._rebuilding = rebuilding
        self.version = ""
        self.shadow: Shadow | None = None
        self.incumbent: Incumbent | None = None
        self.compared = Comparison()
        self._not_followed = ""

    @property
    def beside(self) -> str | None:
        """The incumbent's name."""
        return self.incumbent.name if self.incumbent else None

    @property
    def shadow_is_older(self) -> bool:
        """Whether there is a shadow, of another version than the champion."""
        return self.shadow is not None and self.shadow.name != self.version

    # While windows are learned

    def score(self, chunk: Chunk, logits_EC: Float32) -> Float32 | None:
        """Move the shadow over a chunk and compare it. logits_EC: the champion's.

        Returns: the shadow's, float32[E, 101]; None where it is the champion itself or nothing was
        asked.
        """
        if self.shadow is None:
            return None
        said_EC = self.shadow.score(chunk, self._log.deletions.of_nodes)
        if said_EC is None or not self.shadow_is_older:
            return None
        self.compared = self.compared.added(1 / ranks(logits_EC), 1 / ranks(said_EC))
        return said_EC

    def score_window(
        self, event_E: Int64, logits_EC: Float32, window: Window, on_chunk: Callable[[], None]
    ) -> Float32 | None:
        """Move the incumbent over a window that was scored and compare it; arguments as of
        `Incumbent.compare`.

        Returns: the incumbent's logits, float32[E, 101]; None where there is no incumbent.
        """
        if self.incumbent is None:
            return None
        ours_EC, said_EC = self.incumbent.compare(event_E, logits_EC, window, on_chunk)
        self.compared = self.compared.added(1 / ranks(ours_EC), 1 / ranks(said_EC))
        return said_EC

    def judge(self) -> Verdict:
        """Decide once enough events were compared, before the window is learned; a new comparison
        begins then."""
        said, why = judge(self.compared, self._settings.registry.gate_events)
        if said == "open":
            return Verdict(said=said, why=why)
        metrics.gate_verdicts.labels(said).inc()
        self.compared = Comparison()
        if self.incumbent is not None:
            if said == "proven":
                logger.warning("settings_proven", instead_of=self.incumbent.name, why=why)
                self.incumbent = None
            return Verdict(said=said, why=why)
        if said == "proven":
            self.shadow = Shadow.of(self.version, self._learner)
            return Verdict(said=said, why=why, proof=Proof(self.version, why))
        assert self.shadow is not None
        logger.warning("rolled_back", version=self.shadow.name, instead_of=self.version, why=why)
        self.version = self.shadow.name
        return Verdict(said=said, why=why, back_to=self.shadow)

    def after(self, outcome: PublishResult) -> Proof | None:
        """A version was handed over. Returns: a proof where it is the first that serves, which is
        the shadow too."""
        self.version = outcome.version
        if not outcome.promoted or self.shadow is not None:
            return None
        self.shadow = Shadow.of(outcome.version, self._learner)
        return Proof(outcome.version, "the first under its settings to serve")

    def renew_shadow(self, why: str) -> Proof:
        """The champion becomes the shadow, unproven."""
        self.shadow = Shadow.of(self.version, self._learner)
        self.compared = Comparison()
        return Proof(self.version, why)

    # Moves by hand

    def follow(self, edge: int) -> Shadow | None:
        """When someone moved the champion by hand: stand beside it where it has other settings,
        else follow it.

        Returns: the version to learn on from, its memory at `edge`; None where learning just goes
        on.
        """
        champion = self._versions.moved_by_hand()
        if champion is None or champion == self.beside:
            return None
        if champion == self.version:
            self.incumbent = None
            return None
        reason = "the log or the trainer is elsewhere"
        try:
            if self._stand_beside(champion):
                return None
            version = self._carried(champion, edge)
        except VersionError as error:
            version = None
            reason = str(error)
        if version is None:
            if champion != self._not_followed:
                logger.error("champion_not_followed", version=champion, reason=reason)
            self._not_followed = champion
            return None
        logger.warning("following_champion", version=champion, instead_of=self.version)
        self.version = champion
        self.compared = Comparison()
        self.incumbent = None
        return version

    # After a stop

    def restore(self, version: str, compared: Comparison) -> None:
        """As a checkpoint, or else the journal, has it; `restore_shadow` and `restore_incumbent`
        come later."""
        self.version = version
        self.compared = compared

    def restore_shadow(self, name: str, edge: int) -> Proof | None:
        """The last proven version, its memory carried to `edge`. Returns: a proof that the journal
        has not heard of: a stop came before that, or the champion takes the place of a version that
        cannot be read."""
        try:
            self.shadow = self._carried(name, edge)
        except VersionError as error:
            logger.error(
                "shadow_lost",
                version=name,
                error=str(error),
                meaning="the champion takes its place unproven",
            )
            return self.renew_shadow("the version proven before it cannot be read")
        return Proof(name, "proven before a restart") if self._versions.shadow() != name else None

    def restore_incumbent(self) -> None:
        """Where the champion has other settings, go on comparing with it."""
        compared = self.compared
        champion = self._versions.champion()
        try:
            if champion is not None and self._stand_beside(champion):
                self.compared = compared
        except VersionError as error:
            logger.error("champion_not_compared", version=champion, reason=str(error))

    def _stand_beside(self, champion: str) -> bool:
        """Learn beside a champion of other settings, until what is learned here is proven. False
        where it has ours."""
        version = self._versions.load(champion)
        edge = version.manifest.edge
        if learn_alike(version.manifest.fixed_settings, self._settings):
            return False
        if not self._log.first_edge <= edge <= self._log.num_edges:
            logger.warning(
                "champion_not_compared",
                version=champion,
                reason=f"the log does not hold edge {edge}",
            )
            return False
        logger.warning(
            "learning_beside_champion",
            version=champion,
            reason="it has other model or window settings",
        )
        self.incumbent = Incumbent(self._settings, self._log, version, self._rebuilding(edge))
        self.shadow = None
        self.compared = Comparison()
        return True

    def _carried(self, name: str, edge: int) -> Shadow | None:
        """A version with its memory carried to `edge`; None where the log begins behind it or it is
        further. Raises: VersionError."""
        version = self._versions.load(name)
        if not self._log.first_edge <= version.manifest.edge <= edge:
            return None
        if not learn_alike(version.manifest.fixed_settings, self._settings):
            raise VersionError(
                f"Version {name} has other model or window settings.",
                "promote one of these settings.",
            )
        model, memory = restored(version, self._log.state.schema, self._learner.model.device)
        while memory.edge < edge:
            window = next_window(
                self._log, memory.edge, self._settings.windows.width_seconds * 1_000_000
            )
            assert window is not None
            for chunk in self._recorder.cut(window):
                model.advance(memory, chunk, self._log.deletions.of_nodes)
        return Shadow(name, model, memory, self._learner.carrier)
