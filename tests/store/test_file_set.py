"""The objects that name the files of a set: what releases wrote is read, and written again byte for byte."""

import msgspec
import pytest

from streamd.errors import ManifestError, StoreError
from streamd.store import checkpoints, manifests, versions
from streamd.store.checkpoints import StoredCheckpoint
from streamd.store.file_set import Piece, StoredFile, wrong_in
from streamd.store.manifests import Manifest
from streamd.store.versions import StoredVersion

C, D, E = (f"objects/ab/{digit * 62}" for digit in "cde")
MANIFEST = Manifest(term=0, seq=3, created_at=0.0, log={}, changelog_offset=None, versions=[], checkpoint="", files=[])
VERSION = StoredVersion(
    name="3-10", manifest='{"name": "3-10", "checksums": {"model.safetensors": "00000007"}}',
    files=[StoredFile("model.safetensors", 5, [Piece(C, 5, 7, [(0, 5)])])])
STATE = StoredFile("checkpoint/state.safetensors", 9, [Piece(D, 4, 8, [(0, 4)]), Piece(E, 5, 9, [(4, 5)])])
CHECKPOINT = StoredCheckpoint(
    term=2, checkpoint="00000004", nightly="", edge=40, held=12, purged_before=3, files=[STATE, StoredFile("history", 0, [])],
    versions=[VERSION])
WRITTEN = {
    "manifest": (
    b'{"crc":"65d3d908","manifest":{"format":1,"term":0,"seq":3,"created_at":0.0,"log":{},"changelog_seq":0,"changelog_offset"'
    b':null,"changelog":["","",""],"changelog_term":0,"compacted":0,"versions":[],"checkpoint":"","files":[]}}'),
    "version": (
    b'{"crc":"1eaa0143","version":{"name":"3-10","manifest":"{\\"name\\": \\"3-10\\", \\"checksums\\": {\\"model.safetensors\\": \\"000'
    b'00007\\"}}","files":[{"path":"model.safetensors","size":5,"pieces":[{"object":"objects/ab/ccccccccccccccccccccccccccccccc'
    b'ccccccccccccccccccccccccccccccc","size":5,"crc":7,"extents":[[0,5]]}],"revision":0}]}}'),
    "checkpoint": (
    b'{"crc":"8267adaa","checkpoint":{"format":1,"term":2,"checkpoint":"00000004","nightly":"","edge":40,"held":12,"purged_bef'
    b'ore":3,"files":[{"path":"checkpoint/state.safetensors","size":9,"pieces":[{"object":"objects/ab/dddddddddddddddddddddddd'
    b'dddddddddddddddddddddddddddddddddddddd","size":4,"crc":8,"extents":[[0,4]]},{"object":"objects/ab/eeeeeeeeeeeeeeeeeeeeee'
    b'eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee","size":5,"crc":9,"extents":[[4,5]]}],"revision":0},{"path":"history","size":0,'
    b'"pieces":[],"revision":0}],"versions":[{"name":"3-10","manifest":"{\\"name\\": \\"3-10\\", \\"checksums\\": {\\"model.safetenso'
    b'rs\\": \\"00000007\\"}}","files":[{"path":"model.safetensors","size":5,"pieces":[{"object":"objects/ab/cccccccccccccccccccc'
    b'cccccccccccccccccccccccccccccccccccccccccc","size":5,"crc":7,"extents":[[0,5]]}],"revision":0}]}]}}')}
"""As the release before wrote them."""
SETS = {"manifest": (manifests.KIND, MANIFEST), "version": (versions.KIND, VERSION), "checkpoint": (checkpoints.KIND, CHECKPOINT)}


@pytest.mark.parametrize("kind", SETS)
def test_a_set_is_written_and_read_as_the_release_before_did(kind):
    codec, files = SETS[kind]
    assert codec.encode(files) == WRITTEN[kind]
    assert codec.decode("x", WRITTEN[kind]) == files


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: b"[1]", lambda data: b"{}", lambda data: b"\xff", lambda data: data[:-2],
    lambda data: data.replace(b'"crc":"', b'"crc":"f'), lambda data: data.replace(b'"crc":', b'"other":'), lambda data: b'{"crc":1,"x":2}'])
def test_a_damaged_set_is_refused_by_its_name(kind, damage):
    codec, _ = SETS[kind]
    with pytest.raises(StoreError, match="sets/x (is damaged|differs from its checksum)") as caught:
        codec.decode("sets/x", damage(WRITTEN[kind]))
    assert isinstance(caught.value, ManifestError) == (kind == "manifest")


def test_a_kind_does_not_read_another_kind():
    with pytest.raises(StoreError, match="it has no 'version'"):
        versions.KIND.decode("x", WRITTEN["checkpoint"])


@pytest.mark.parametrize(("pieces", "words"), [
    ([Piece(C, 9, 0, [(0, 9)])], ""), ([Piece(D, 5, 0, [(4, 5)]), Piece(C, 4, 0, [(0, 4)])], ""),
    ([Piece(C, 8, 0, [(0, 8)])], "do not fill it"), ([], "do not fill it"), ([Piece(C, 9, 0, [(0, 9)]), Piece(D, 1, 0, [(3, 1)])], "do not fill it"),
    ([Piece(C, 10, 0, [(0, 10)])], "does not fit"), ([Piece(C, 8, 0, [(0, 9)])], "does not fit"), ([Piece(C, 9, 0, [(0, 9), (4, 0)])], "does not fit"),
    ([Piece("objects/../x", 9, 0, [(0, 9)])], "is no name of an object")])
def test_the_pieces_of_a_full_file_cover_each_byte_once(pieces, words):
    found = wrong_in([StoredFile("a", 9, pieces)], lambda path: True, "a set", full=True)
    assert words in found and bool(words) == bool(found)
    if words == "do not fill it":
        assert not wrong_in([StoredFile("a", 9, pieces)], lambda path: True, "a set", full=False)


def test_a_version_of_a_checkpoint_is_checked_too():
    bad = msgspec.structs.replace(CHECKPOINT, versions=[msgspec.structs.replace(VERSION, name="../x")])
    with pytest.raises(StoreError, match="is no name of a version"):
        checkpoints.KIND.decode("x", checkpoints.KIND.encode(bad))
