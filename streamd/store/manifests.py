"""Manifests: a manifest lists the files of a data directory after one commit, in a store."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import msgspec
import structlog

from streamd.errors import ManifestError, StoreError
from streamd.eventlog.journal.changelog_position import ChangelogId, ChangelogPosition
from streamd.eventlog.layout import APPENDED, EDGE_FOLDERS
from streamd.roles import FOLDER as ROLES_FOLDER
from streamd.store.file_set import FORMAT, FileSetKind, StoredFile, wrong_in
from streamd.store.objects import Store

logger = structlog.get_logger()
FOLDER = "manifests"
NAME = re.compile(rf"{FOLDER}/(\d{{10}})-(\d{{20}})\.json")
"""Name of a manifest: term and commit, padded with zeros, so that names sort as numbers do."""
MANIFEST_BYTES = 1 << 30
"""Maximum size of a manifest; one of 1,000,000 files takes about 0.3 GB."""
PARTS = {"models", "train", "journal", EDGE_FOLDERS, ROLES_FOLDER}
"""Folders with files that a manifest may list, besides the append-only files."""
OTHER_MANIFEST = "take another one (--seq), or back up again."


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a data directory after a commit.

    term, seq: of the commit. created_at: wall time in seconds. log: `LogState.checkpoint` after the
    commit. changelog_seq, changelog_offset: the commit, this one or an earlier one, after which a
    follower with the files resumes, and its offset in the changelog; 0 and None without a
    changelog. changelog: identity of the changelog, a `ChangelogId`; changelog_term: the term in
    it. compacted: commit of the newest compaction before the files were read, 0 for none. versions:
    names of the model versions. checkpoint: name of the trainer's checkpoint, "" for none.
    """

    format: int = FORMAT
    term: int
    seq: int
    created_at: float
    log: dict[str, Any]
    changelog_seq: int = 0
    changelog_offset: int | None
    changelog: tuple[str, str, str] = ("", "", "")
    changelog_term: int = 0
    compacted: int = 0
    versions: list[str]
    checkpoint: str
    files: list[StoredFile]

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"{FOLDER}/{self.term:010d}-{self.seq:020d}.json"

    @property
    def position(self) -> ChangelogPosition | None:
        """The position in the changelog at which followers with these files resume, None without a
        changelog."""
        if self.changelog_offset is None:
            return None
        changelog = ChangelogId(*self.changelog)
        return ChangelogPosition(
            self.changelog_term, self.changelog_seq, self.changelog_offset, changelog
        )


def _wrong_in(manifest: Manifest) -> str:
    """Describe the first fault of a manifest; "" if there is none."""
    return wrong_in(manifest.files, _is_path, "a data directory", full=False)


def _is_path(path: str) -> bool:
    """Whether a manifest may list a path: it must be inside the data directory, and one of a file
    that a data directory has."""
    parts = path.split("/")
    plain = all(p and not p.startswith(".") and "\\" not in p and p.isprintable() for p in parts)
    return plain and str(PurePosixPath(path)) == path and (path in APPENDED or parts[0] in PARTS)


KIND = FileSetKind(
    name="manifest",
    struct=Manifest,
    max_bytes=MANIFEST_BYTES,
    check=_wrong_in,
    action="take another one (--seq), or back up again.",
    error=ManifestError,
)


def names(store: Store) -> list[str]:
    """Names of the store's manifests, oldest first. Raises: StoreError."""
    return sorted(name for name in store.sizes(FOLDER) if NAME.fullmatch(name))


def commit_of(name: str) -> tuple[int, int]:
    """Term and commit of a manifest, by its name."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1]), int(match[2])


def read(store: Store, name: str) -> Manifest:
    """Read a manifest. Raises: StoreError."""
    manifest = KIND.read(store, name)
    if manifest.name != name:
        raise StoreError(
            f"{name} cannot be trusted: it is that of term {manifest.term}, commit {manifest.seq}.",
            KIND.action,
        )
    return manifest


def read_all(store: Store) -> Iterator[tuple[str, Manifest]]:
    """Read the manifests of a store, with their names; one that the archive removes meanwhile is
    skipped. Raises: StoreError."""
    for name in names(store):
        try:
            manifest = read(store, name)
        except StoreError:
            # The archive may have removed it since it was listed.
            if name in names(store):
                raise
            continue
        yield name, manifest


def newest(store: Store) -> Manifest | None:
    """Read the newest undamaged manifest, None if there is none. Raises: StoreError if the store
    fails, or a manifest is of another format."""
    for name in reversed(names(store)):
        try:
            return read(store, name)
        except ManifestError as error:
            logger.warning("manifest_damaged", store=store.shown, manifest=name, error=str(error))
    return None
