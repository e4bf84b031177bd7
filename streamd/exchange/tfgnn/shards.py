"""Names of sharded files, base@N, and formats of tables by their names."""

import re
from pathlib import Path

from streamd.errors import TFGNNError

MAX_SHARDS = 99_999
"""A shard's number has five digits."""
_SHARDED = re.compile(r"(?P<base>.+)@(?P<count>[0-9]+)(?P<end>(\.[A-Za-z][A-Za-z0-9]*)*)")
"""The ending of a file may come behind the number too: base@N.tfrecord."""
_TFRECORD = re.compile(r"[_.-]tfrecords?|\btfr\b")
_CSV = re.compile(r"[_.-]csv\b")


def table_format(path: Path) -> str:
    """The format of a table, tfrecord or csv, by the file's name.

    The name alone counts, not its folders. Raises: TFGNNError where it tells neither.
    """
    if _TFRECORD.search(path.name):
        return "tfrecord"
    if _CSV.search(path.name):
        return "csv"
    raise TFGNNError(
        f"the name {path.name!r} does not tell the format of the table.",
        "name it .csv or .tfrecord.",
    )


def shard_count(path: Path) -> int | None:
    """N of base@N or base@N.end, None for a file that is not sharded. Raises: TFGNNError for N out
    of range."""
    found = _SHARDED.fullmatch(path.name)
    if found is None:
        return None
    count = int(found["count"][:9])
    if not 1 <= count <= MAX_SHARDS:
        raise TFGNNError(f"{path} has {found['count'][:9]} shards.", f"1 to {MAX_SHARDS}.")
    return count


def shard_paths(path: Path) -> list[Path]:
    """The files to write: all shards of base@N, or the one file. Raises: TFGNNError."""
    count = shard_count(path)
    if count is None:
        return [path]
    found = _SHARDED.fullmatch(path.name)
    assert found is not None
    base, end = found["base"], found["end"]
    return [path.with_name(f"{base}-{i:05d}-of-{count:05d}{end}") for i in range(count)]


def is_compressed(path: Path) -> bool:
    """Whether a file, or the base of a shard, is written as gzip by its name."""
    return re.search(r"\.gz(-[0-9]{5}-of-[0-9]{5})?$", path.name) is not None


def find_files(path: Path) -> list[Path]:
    """The files to read, by name: a file, a glob such as base-?????-of-00003, or base@N.

    Raises: TFGNNError where there is none, or a shard is missing.
    """
    if path.is_file():
        return [path]
    if shard_count(path) is not None:
        # Each shard may be compressed, as a file may.
        return [_plain_or_gz(shard) for shard in shard_paths(path)]
    if re.search(r"[*?\[]", path.name):
        matches = sorted(p for p in path.parent.glob(path.name) if p.is_file())
        if not matches:
            raise TFGNNError(f"no file matches {path}.", "check the path.")
        return matches
    return [_plain_or_gz(path)]


def _plain_or_gz(path: Path) -> Path:
    """The file, or the one with .gz behind its name. Raises: TFGNNError where there is neither."""
    for found in (path, path.with_name(f"{path.name}.gz")):
        if found.is_file():
            return found
    raise TFGNNError(f"{path} is not a file.", "check the path; shards must all be there.")
