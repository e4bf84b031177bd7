"""Reads the champion before a role makes its graph."""

import structlog

from streamd.errors import StreamdError
from streamd.registry import Registry
from streamd.registry.manifest import Manifest
from streamd.settings.loading import ModelSettings

logger = structlog.get_logger()


def read_champion(
    registry: Registry, default: ModelSettings
) -> tuple[Manifest | None, ModelSettings]:
    """Read the champion's manifest and model settings: facts by other settings would have to be
    rebuilt for it.

    Returns: None and `default` if no champion can be read; the swap, which tries to load it,
    reports the error again.
    """
    # The move that servers follow, which may be older than the newest one.
    move = registry.shown()
    name = move.champion if move else None
    try:
        manifest = registry.manifest(name) if name else None
        return manifest, manifest.model_settings() if manifest else default
    except (StreamdError, OSError, ValueError) as error:
        logger.warning("champion_not_read", version=name, error=str(error))
        return None, default
