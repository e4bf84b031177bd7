"""Finds the files of an Iceberg table that no snapshot names."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

ORPHAN_SECONDS = 86_400.0
"""Least age of a file that is removed. Another writer's transaction, whose files no snapshot names
yet, is younger."""


def unnamed_files(table: Any) -> list[Path]:
    """The files in the folder of a table that its metadata do not name and that were written more
    than ORPHAN_SECONDS ago: of an append that was killed, or of snapshots that expired. Raises: the
    errors of pyiceberg and of files."""
    folder = _path_of(table.metadata.location)
    named = _named_files(table)
    until = time.time() - ORPHAN_SECONDS
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file not in named and file.stat().st_mtime < until
    ]


def _named_files(table: Any) -> set[Path]:
    """The files that the metadata of a table name, in any of its snapshots."""
    metadata = table.metadata
    named = {table.metadata_location, *(one.metadata_file for one in metadata.metadata_log)}
    named |= {one.statistics_path for one in metadata.statistics}
    named |= {one.statistics_path for one in metadata.partition_statistics}
    # Snapshots share most of their manifests.
    manifests = {}
    for snapshot in table.snapshots():
        named.add(snapshot.manifest_list)
        manifests.update({one.manifest_path: one for one in snapshot.manifests(table.io)})
    for path, manifest in manifests.items():
        named.add(path)
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        named |= {entry.data_file.file_path for entry in entries}
    return {_path_of(one) for one in named}


def _path_of(location: str) -> Path:
    """The path of a file's URL; a path is returned as it is."""
    url = urlparse(location)
    return Path(unquote(url.path)) if url.scheme == "file" else Path(location)
