"""Reads the versions in their folders: names, manifests, weights and checksums."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from safetensors import SafetensorError
from safetensors.numpy import load_file

from streamd.errors import VersionError
from streamd.registry.candidate import Weights
from streamd.registry.manifest import REMOVE, Manifest, memory_names, read_manifest
from streamd.settings.trials import VERSION_NAME
from streamd.storage import ImmutableFile
from streamd.tensors import file_checksum

logger = structlog.get_logger()


@dataclass(frozen=True)
class Version:
    """A loaded version: manifest, weights, and the files of its memory at `manifest.edge`.

    `streamd.models.memory.files` reads and checks them.
    """

    manifest: Manifest
    weights: Weights
    memory: tuple[ImmutableFile, ...]


class StoredVersions:
    """Reads versions. Safe to use from several processes, each with its own object."""

    def __init__(self, folder: Path) -> None:
        """folder: of the versions; it is made if it is missing."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.passed_over: dict[str, str] = {}
        """Folders that are no versions -> why, as of the last call of `names`."""
        self._manifests: dict[str, tuple[tuple[int, int], Manifest]] = {}
        """Manifests read, by name, with inode and time of change of the file each came from."""

    def names(self) -> list[str]:
        """Names of all versions with a readable manifest, oldest first.

        Other folders are skipped, and each is logged once.
        """
        readable = []
        unreadable = {}
        for path in self.folder.iterdir():
            if not path.is_dir() or path.name.startswith("."):
                continue
            try:
                self.manifest(path.name)
            except VersionError as error:
                unreadable[path.name] = str(error)
                if path.name not in self.passed_over:
                    logger.warning("version_passed_over", folder=str(path), error=str(error))
            else:
                readable.append(path.name)
        self.passed_over = unreadable
        self._manifests = {n: known for n, known in self._manifests.items() if n in readable}
        # A name begins with the window's end, so numbers in order are times in order.
        return sorted(readable, key=lambda n: tuple(int(x) for x in n.split("-")))

    def manifest(self, name: str) -> Manifest:
        """Read a version's manifest. Raises: VersionError if there is no such version, or if this
        release cannot read it."""
        path = self.folder / name / "manifest.json"
        if not VERSION_NAME.fullmatch(name) or not path.is_file():
            raise VersionError(
                f"There is no version {name!r}.", "pick one of `streamd models list`."
            )
        # A changed file has another stamp; a missing one has none.
        stamp = None
        with contextlib.suppress(OSError):
            stat = path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns)
        known = self._manifests.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        manifest = read_manifest(path, name)
        if stamp is not None:
            self._manifests[name] = stamp, manifest
        return manifest

    def load(self, name: str) -> Version:
        """Load the weights of a version, and name the files of its memory.

        Raises: VersionError if there is none, it has no memory, or it is damaged or not finite.
        """
        manifest = self.manifest(name)
        manifest.model_settings()
        if not self.is_servable(manifest):
            raise VersionError(
                f"Version {name} is kept without its memory, so it cannot serve.",
                "pick one of `streamd models list` that has its memory.",
            )

        # Check the checksums first: damaged tensors might still load.
        try:
            self.check_files(manifest, ["model.safetensors"])
            weights = load_file(self.folder / name / "model.safetensors")
        except (SafetensorError, OSError) as error:
            raise VersionError(f"Version {name} cannot be read: {error}.", REMOVE) from None

        # A version that is not finite would make every answer NaN.
        for part, array in weights.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise VersionError(
                    f"Version {name} is not finite in {part}.", "promote another one."
                )
        files = [
            ImmutableFile(self.folder / name / file, manifest.checksums.get(file, ""))
            for file in memory_names(manifest)
        ]
        return Version(manifest, weights, tuple(files))

    def is_servable(self, manifest: Manifest) -> bool:
        """Whether a version still has its memory; only champion, shadow and the newest keep it."""
        # The first file is removed first.
        names = memory_names(manifest)
        return not names or (self.folder / manifest.name / names[0]).exists()

    def check_files(self, manifest: Manifest, names: Iterable[str] | None = None) -> None:
        """Check files of a version, by default all that it must have, against the manifest's
        checksums.

        Raises: VersionError if one differs; OSError if one is missing.
        """
        if names is None:
            memory = memory_names(manifest) if not self.is_servable(manifest) else []
            names = [name for name in manifest.checksums if name not in memory]
        for file in names:
            checksum = manifest.checksums.get(file)
            if checksum and file_checksum(self.folder / manifest.name / file) != checksum:
                raise VersionError(
                    f"{file} of version {manifest.name} differs from its checksum.", REMOVE
                )
