"""Stores and reads a model version: its files as objects named by their content, and one object,
written last, that lists them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from streamd.errors import StoreError
from streamd.storage import DISK, SCRATCH, Disk, link_or_copy
from streamd.store.file_set import OBJECTS, FileSetKind, StoredFile, check_objects_exist, wrong_in
from streamd.store.leases import upload_lease
from streamd.store.objects import Store
from streamd.store.ranges import PendingFile
from streamd.store.restore import write_file
from streamd.store.sender import FileSender

FOLDER = "versions"
MANIFEST = "manifest.json"
VERSION_BYTES = 900_000
"""Maximum size of the object that lists a version's files, which must fit a Kafka record of the
default 1 MiB. It is enough for 200 GB in objects of 32 MiB."""
NAME = re.compile(r"\d+-\d+(-\d+)?", re.ASCII)
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.safetensors", re.ASCII)
AGAIN = "none is needed: the trainer publishes newer versions; `streamd backup` stores all again."


class StoredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version with its files in a store.

    manifest: text of its manifest.json. files: the other files, each filled by its pieces in order;
    without those of memory if the version was stored as a record only.
    """

    name: str
    manifest: str
    files: list[StoredFile]

    @property
    def checksums(self) -> dict[str, str]:
        """File -> its CRC32C in hex, by the manifest, even of files that are not stored."""
        found: dict[str, str] = msgspec.json.decode(self.manifest, type=_Checksums).checksums
        return found


class _Checksums(msgspec.Struct):
    name: str
    checksums: dict[str, str] = {}


def object_of(name: str) -> str:
    """Name of the object that lists the files of a version."""
    return f"{FOLDER}/{name}.json"


def upload_version(
    folder: Path, store: Store, earlier: Mapping[tuple[str, int], StoredFile]
) -> StoredVersion:
    """Upload the files in a version's folder.

    A file that an earlier version has too is not read again; objects that a killed upload sent are
    not sent again. No process removes the objects during the upload, nor as long as the object
    `object_of` exists.

    Args: folder: of the version, with its name. earlier: (checksum, bytes) -> a file of a stored
    version. Raises: StoreError, also if an object was removed meanwhile; FileNotFoundError,
    CorruptionError if files of the folder were removed meanwhile.
    """
    manifest = (folder / MANIFEST).read_text()
    checksums = msgspec.json.decode(manifest, type=_Checksums).checksums
    files = []
    with upload_lease(store) as lease:
        known = store.sizes(OBJECTS)
        sender = FileSender(store, lease, known)
        for path in sorted(folder.glob("*.safetensors")):
            size = path.stat().st_size
            same = earlier.get((checksums.get(path.name, ""), size))
            if same is not None and all(known.get(p.object) == p.size for p in same.pieces):
                files.append(StoredFile(path.name, size, same.pieces))
                continue
            wanted = PendingFile(path=path.name, size=size, extents=((0, size),) if size else ())
            files.append(sender.send(folder, wanted))
        version = StoredVersion(name=folder.name, manifest=manifest, files=files)
        store.put(object_of(version.name), KIND.encode(version))
        # A machine with a clock an hour ahead takes this upload's lease as expired, and may remove
        # objects. Check that all exist before other machines learn of the version.
        check_objects_exist(
            store, version.files, "none is needed: the trainer sends the version again."
        )
    return version


def download_version(
    store: Store,
    version: StoredVersion,
    folder: Path,
    with_memory: bool,
    here: Mapping[str, Path],
    disk: Disk = DISK,
) -> None:
    """Write a version's folder durably, completely or not at all.

    Args: folder: must not exist. with_memory: whether to write the memory too, not only the
    weights. here: checksum -> a file of this machine with the same bytes, which is linked instead.
    Raises: StoreError if an object is missing or differs, OSError.
    """
    scratch = folder.with_name(f".{folder.name}{SCRATCH}")
    checksums = version.checksums
    try:
        disk.remove_folder(scratch)
        disk.make_folder(scratch)
        for file in version.files:
            if not with_memory and file.path != "model.safetensors":
                continue
            own = here.get(checksums.get(file.path, ""))
            if own is not None and own.stat().st_size == file.size:
                link_or_copy(own, scratch / file.path, disk)
            else:
                write_file(store, scratch / file.path, file, False, lambda _: None, disk)
        fd = disk.open(scratch / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            disk.write(fd, version.manifest.encode(), 0)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.sync_folder(scratch)
        disk.replace(scratch, folder)
    except (OSError, StoreError):
        disk.remove_folder(scratch)
        raise
    disk.sync_folder(folder.parent)


def stored_versions(store: Store) -> dict[str, StoredVersion]:
    """The versions of a store, by name. Raises: StoreError if one cannot be read."""
    found = {}
    for name in store.sizes(FOLDER):
        version = KIND.read(store, name)
        found[version.name] = version
    return found


def check(version: StoredVersion) -> None:
    """Check an untrusted version: it may come from a topic. Raises: StoreError."""
    if wrong := _wrong_in(version):
        raise StoreError(f"Version {version.name[:80]!r} cannot be trusted: {wrong}.", AGAIN)


def _wrong_in(version: StoredVersion) -> str:
    """Describe the first fault of a version; "" if there is none."""
    if not NAME.fullmatch(version.name):
        return f"{version.name[:80]!r} is no name of a version"
    try:
        if msgspec.json.decode(version.manifest, type=_Checksums).name != version.name:
            return "its manifest is that of another"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"its manifest is damaged: {error}"
    return wrong_in(version.files, lambda path: bool(FILE_NAME.fullmatch(path)), "a version", True)


KIND = FileSetKind(
    name="version",
    struct=StoredVersion,
    max_bytes=VERSION_BYTES,
    check=_wrong_in,
    action=AGAIN,
)
