"""The settings of a role in which a version serves: the server and the scoring role."""

from dataclasses import dataclass

from streamd.gpu import choose_device
from streamd.registry.trial_arms import arms_with_versions
from streamd.settings.loading import GpuSettings, GraphSettings, ModelSettings, Settings
from streamd.settings.paths import Paths


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingSettings:
    """The settings of a role's graph, facts and version.

    paths: of the role. device: "cpu" or "cuda". model: this machine's settings, which apply while
    there is no champion. max_candidates: maximum number of nodes that a recommendation scores.
    follows: whether a follower of another machine may write the log. version_arms: the trial's arms
    with versions other than the champion.
    """

    paths: Paths
    device: str
    graph: GraphSettings
    gpu: GpuSettings
    model: ModelSettings
    max_candidates: int
    follows: bool
    version_arms: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, role: str) -> "ServingSettings":
        """role: its name, such as the `--name` of a server. Raises: DeviceError."""
        return cls(
            paths=Paths.of(settings, role),
            device=choose_device(settings.server.device),
            graph=settings.graph,
            gpu=settings.gpu,
            model=settings.model,
            max_candidates=settings.server.max_candidates,
            follows=settings.log.follows,
            version_arms=arms_with_versions(settings.trials.arms),
        )
