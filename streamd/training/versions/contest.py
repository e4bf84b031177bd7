"""The contest of versions: it compares the learner's version with a shadow or an incumbent, and its
verdict decides which version serves from then on."""

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
    """An entry for the registry's journal: this version is the shadow from now on, and the
    reason."""

    version: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The outcome of a comparison.

    decision: "open" while the comparison continues. why: the reason, in words.
    back_to: the shadow from which training continues, if the learner's version is worse than it;
    None against an incumbent, which simply remains champion.
    proof: for the journal, if the champion became the shadow.
    """

    decision: ComparisonResult
    why: str
    back_to: Shadow | None = None
    proof: Proof | None = None


class Contest:
    """Holds the shadow and the incumbent, and compares the learner's version with them over the
    same events.

    Owner: the trainer's thread. A contest changes only its own state; the trainer applies its
    verdicts to the learner and the ledger.

    version: name of the version from which the learner continues, "" before the first. It is the
    champion, or, while an incumbent serves, the newest version of this trainer.
    shadow: the version to fall back to, with fixed weights: the last proven one of this trainer, or
    the champion if that one was lost or may hold deleted data; None before the first version
    serves, and while an incumbent serves.
    incumbent: the champion with other settings, which serves until this trainer's version is
    proven.
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
        """gate_events: number of events over which two versions are compared.
        rebuilding: makes the progress callback of a rebuild up to an event id; the callback takes
        the event id reached so far.
        """
        # Inputs.
        self._paths = paths
        self._settings = settings
        self._gate_events = gate_events
        self._log = reader
        self._versions = versions
        self._learner = learner
        self._ranks = learner.ranks
        self._recorder = recorder
        self._rebuilding = rebuilding

        # Its state.
        self.version = ""
        self.shadow: Shadow | None = None
        self.incumbent: Incumbent | None = None
        self.compared = Comparison()
        self._not_followed = ""

    @property
    def incumbent_name(self) -> str | None:
        """Name of the incumbent, None if there is none."""
        return self.incumbent.name if self.incumbent else None

    @property
    def shadow_is_older(self) -> bool:
        """Whether the shadow exists and is another version than the learner's."""
        return self.shadow is not None and self.shadow.name != self.version

    # For each window

    def score(self, chunk: Chunk) -> Float32 | None:
        """Score a chunk by the shadow, then update the shadow's memory with it.

        Returns: its logits, float32[E, 101]; None if there is no shadow, the shadow is the
        learner's version itself, or no event of the chunk is scored.
        """
        if self.shadow is None:
            return None
        shadow_EC = self.shadow.score(chunk)
        return shadow_EC if self.shadow_is_older else None

    def compare(self, live_EC: Float32, shadow_EC: Float32, known_E: Bools) -> None:
        """Add a window to the comparison.

        live_EC, shadow_EC: logits of the learner's version and of the shadow or the incumbent,
        float32[E, 101]. known_E: bool[E], whether each event's destination was known; only these
        count.
        """
        self.compared = self.compared.with_events(
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
        """Move the incumbent over a scored window, and compare the learner's version with it.
        Arguments: as in `Incumbent.compare`.

        Returns: edge sets of the events that the incumbent scored meanwhile, int64[E], its logits
        of them, float32[E, 101], and their novelty; None if there is no incumbent.
        """
        if self.incumbent is None:
            return None
        paired = self.incumbent.compare(event_E, logits_EC, novelty, window, on_chunk)
        self.compare(paired.learned_EC, paired.incumbent_EC, paired.novelty.known_E)
        return self._log.edge_sets_of(paired.event_E), paired.incumbent_EC, paired.novelty

    def judge(self) -> Verdict:
        """Decide, once enough events were compared, and before the training on the window. Each
        verdict other than "open" starts a new comparison."""
        decision, why = judge(self.compared, self._gate_events)
        if decision == "open":
            return Verdict(decision=decision, why=why)
        metrics.gate_verdicts.labels(decision).inc()
        self.compared = Comparison()

        # Against an incumbent: a worse version continues training next to it.
        if self.incumbent is not None:
            if decision == "proven":
                logger.warning("settings_proven", instead_of=self.incumbent.name, why=why)
                self.incumbent = None
            return Verdict(decision=decision, why=why)

        # Against the shadow: the champion becomes the shadow, or training returns to the shadow.
        if decision == "proven":
            self.shadow = Shadow.of(self.version, self._learner)
            return Verdict(decision=decision, why=why, proof=Proof(self.version, why))
        assert self.shadow is not None
        logger.warning("rolled_back", version=self.shadow.name, instead_of=self.version, why=why)
        self.version = self.shadow.name
        return Verdict(decision=decision, why=why, back_to=self.shadow)

    def after(self, outcome: PublishResult) -> Proof | None:
        """Set the version from which training continues: the published one or, after a refusal, its
        parent.

        Returns: a proof if it was promoted without a shadow existing, because it becomes the shadow
        too.
        """
        self.version = outcome.version
        if not outcome.promoted or self.shadow is not None:
            return None
        self.shadow = Shadow.of(outcome.version, self._learner)
        return Proof(outcome.version, "the first version with these settings to serve")

    def renew_shadow(self, why: str) -> Proof:
        """Make the champion the shadow although it is unproven. why: the reason, for the
        journal."""
        self.shadow = Shadow.of(self.version, self._learner)
        self.compared = Comparison()
        return Proof(self.version, why)

    # Moves by an operator

    @property
    def has_move_to_follow(self) -> bool:
        """Whether an operator moved the champion since the newest window."""
        champion = self._ranks.broadcast(self._versions.moved_by_hand())
        return champion is not None and champion not in (self.version, self.incumbent_name)

    def follow(self, edge: int) -> Shadow | None:
        """Follow the champion if an operator moved it.

        A champion with other settings becomes the incumbent; training continues from one with the
        same settings.

        Returns: the version from which training continues, with its memory at event `edge`; None if
        training continues as before.
        """
        # Find a move that was not followed yet.
        champion = self._ranks.broadcast(self._versions.moved_by_hand())
        if champion is None or champion == self.incumbent_name:
            return None
        if champion == self.version:
            self.incumbent = None
            return None

        # Load it, as the incumbent or to continue training from it.
        reason = "its event is before the log's first one or after the trainer's position"
        try:
            if self._begin_incumbent(champion):
                return None
            carried = self._load_at(champion, edge)
        except VersionError as error:
            carried = None
            reason = str(error)

        # Report a champion that cannot be followed once, not for every window.
        if carried is None:
            if champion != self._not_followed:
                logger.error(
                    "champion_not_followed",
                    version=champion,
                    reason=reason,
                    meaning="training continues from the trainer's own version",
                )
            self._not_followed = champion
            return None
        logger.warning("following_champion", version=champion, instead_of=self.version)
        self.version = champion
        self.compared = Comparison()
        self.incumbent = None
        return carried

    # After a restart

    def restore(self, version: str, compared: Comparison) -> None:
        """Set the version from which training continues, and the comparison so far, from a
        checkpoint; without one, the champion and an empty comparison.

        `restore_shadow` and `restore_incumbent` are called later, when graph and facts are rebuilt.
        """
        self.version = version
        self.compared = compared

    def restore_shadow(self, name: str, edge: int) -> Proof | None:
        """Load the last proven version and advance its memory to event `edge`.

        Returns: a proof that the journal lacks, because a stop came before it was written, or
        because the champion replaces an unreadable shadow; else None.
        """
        try:
            self.shadow = self._load_at(name, edge)
        except VersionError as error:
            logger.error(
                "shadow_lost",
                version=name,
                error=str(error),
                meaning="the champion becomes the shadow without proof",
            )
            return self.renew_shadow("the version proven before it cannot be read")
        journal = self._ranks.broadcast(self._versions.shadow())
        return Proof(name, "proven before a restart") if journal != name else None

    def restore_incumbent(self) -> None:
        """Continue the comparison with the champion if it has other settings."""
        # Keep the checkpoint's comparison: loading an incumbent starts a new one.
        compared = self.compared
        champion = self._ranks.broadcast(self._versions.champion())
        try:
            if champion is not None and self._begin_incumbent(champion):
                self.compared = compared
        except VersionError as error:
            logger.error("champion_not_compared", version=champion, reason=str(error))

    def _begin_incumbent(self, champion: str) -> bool:
        """Make a champion with other settings the incumbent, until this trainer's version is
        proven.

        Returns: False if it has this trainer's settings, or its event is not in the log. Raises:
        VersionError if it cannot be loaded.
        """
        # Check that it is one, and that its event is in the log.
        version = self._versions.load(champion)
        edge = version.manifest.edge
        if self._settings.continues(version.manifest.fixed_settings):
            return False
        if not self._log.first_edge <= edge <= self._log.num_edges:
            logger.warning(
                "champion_not_compared",
                version=champion,
                reason=f"its event {edge} is not in the log",
            )
            return False

        # From here on the learner's version is compared with the incumbent only.
        logger.warning(
            "training_in_parallel_to_champion",
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

        Returns: None if the log begins after the version's event, or `edge` is before it. Raises:
        VersionError if it cannot be loaded or has other settings.
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
