"""The TGUF format, version 1: the header page and the layout of the sections (docs/tguf.md)."""

import struct
from dataclasses import dataclass, fields
from pathlib import Path

from streamd.errors import TGUFError

MAGIC = 0x54474E42494E3031
"""The letters TGNBIN01 as a number; the file is little-endian and so begins with them reversed."""
PAGE = 4096
"""Bytes of a page, to whose multiples the format aligns the header and every section."""
NO_LIMIT = 2**40
"""Capacity, in rows, of a section with rows of no bytes; a schema's sizes must be below it. Larger
ones are damage, not data: 2**40 edges take 24 TiB."""
REWRITE = "rewrite or restore the file; `streamd verify` names damaged segments of a log."
"""The action for an operator of a file that is not TGUF."""


def pages(num_bytes: int) -> int:
    """Round a number of bytes up to whole pages."""
    return (num_bytes + PAGE - 1) // PAGE * PAGE


@dataclass(frozen=True)
class Header:
    """The header page: 21 little-endian u64 fields, in file order."""

    magic: int = MAGIC
    version: int = 1
    num_edges: int = 0
    num_labels: int = 0
    num_nodes: int = 0
    msg_dim: int = 0
    label_dim: int = 0
    node_feat_dim: int = 0
    negatives_start_e_id: int = 0
    negatives_per_edge: int = 0
    src_offset: int = PAGE
    dst_offset: int = 0
    time_offset: int = 0
    msg_offset: int = 0
    neg_dst_offset: int = 0
    label_n_id_offset: int = 0
    label_time_offset: int = 0
    label_target_offset: int = 0
    node_feat_offset: int = 0
    val_start: int = 0
    test_start: int = 0

    def pack(self) -> bytes:
        """Encode the fields as in the file."""
        return struct.pack(f"<{len(FIELDS)}Q", *(getattr(self, f) for f in FIELDS))


FIELDS = tuple(f.name for f in fields(Header))
"""Names of the header's fields, in file order."""
HEADER_BYTES = 8 * len(FIELDS)
"""Bytes of the fields; the rest of the page is zero."""


@dataclass(frozen=True)
class Section:
    """A named array inside the file: its byte offset, bytes per row, and capacity in rows, which
    ends at the next section."""

    name: str
    offset: int
    row_bytes: int
    capacity: int


@dataclass(frozen=True)
class TGUFSchema:
    """Capacities in rows, widths in numbers a row, and splits of a file to be written.

    Args:
        edge_capacity (int): edges that fit.
        msg_dim (int, default 0): features of an edge.
        label_capacity (int, default 0): labels that fit.
        label_dim (int, default 0): numbers in the target of a label.
        node_capacity (int, default 0): nodes with features that fit.
        node_feat_dim (int, default 0): features of a node.
        val_start, test_start (int, default 0): splits as edge rows, 0 for none: train is
            [0, val_start), validation [val_start, test_start), test the rest.
        negatives_per_edge (int, default 0): wrong destinations that are stored for each edge.
        negatives_start (int, default 0): first edge row with negatives.

    Raises:
        ValueError: a size is negative or too large for a file, or sizes contradict one another.
    """

    edge_capacity: int
    msg_dim: int = 0
    label_capacity: int = 0
    label_dim: int = 0
    node_capacity: int = 0
    node_feat_dim: int = 0
    val_start: int = 0
    test_start: int = 0
    negatives_per_edge: int = 0
    negatives_start: int = 0

    def __post_init__(self) -> None:
        wrong = [f.name for f in fields(self) if not 0 <= getattr(self, f.name) < NO_LIMIT]
        if wrong:
            raise ValueError(
                f"{wrong[0]} is {getattr(self, wrong[0])}; it must be 0 or above, "
                "and a size a file can have"
            )
        if self.negatives_start > self.edge_capacity:
            raise ValueError(
                f"negatives_start {self.negatives_start} is more than "
                f"edge_capacity {self.edge_capacity}"
            )
        if not _in_order(self.val_start, self.test_start, self.edge_capacity):
            raise ValueError(
                f"splits val_start {self.val_start}, test_start {self.test_start} are out of order "
                f"or more than edge_capacity {self.edge_capacity}"
            )


def _in_order(val_start: int, test_start: int, edges: int) -> bool:
    """Whether the splits, 0 for none, are in order and within `edges` rows."""
    return val_start <= (test_start or edges) and max(val_start, test_start) <= edges


def lay_out(schema: TGUFSchema) -> tuple[Header, int]:
    """Make the header for a schema, with the offsets that the reference writer would choose.

    Returns: the header, and the file size in bytes.
    """
    s = schema
    at = PAGE
    offset: dict[str, int] = {}

    def add_section(name: str, num_bytes: int) -> None:
        nonlocal at
        offset[name] = at
        at += pages(num_bytes)

    # Sections follow one another in the reference's order; absent ones have offset 0.
    for name in ("src", "dst", "time"):
        add_section(name, 8 * s.edge_capacity)
    add_section("msg", 4 * s.edge_capacity * s.msg_dim)
    if s.negatives_per_edge:
        add_section("neg_dst", 8 * s.negatives_per_edge * (s.edge_capacity - s.negatives_start))
    has_features = bool(s.node_capacity and s.node_feat_dim)
    if has_features:
        add_section("node_feat", 4 * s.node_capacity * s.node_feat_dim)
    if s.label_capacity:
        add_section("label_n_id", 8 * s.label_capacity)
        add_section("label_time", 8 * s.label_capacity)
        add_section("label_target", 4 * s.label_capacity * s.label_dim)

    # The last section gets a page even if it has no bytes, so that its offset is in the file.
    size = max(at, max(offset.values()) + PAGE)
    header = Header(
        msg_dim=s.msg_dim,
        label_dim=s.label_dim if s.label_capacity else 0,
        node_feat_dim=s.node_feat_dim if has_features else 0,
        negatives_start_e_id=s.negatives_start if s.negatives_per_edge else 0,
        negatives_per_edge=s.negatives_per_edge,
        val_start=s.val_start,
        test_start=s.test_start,
        **{f"{name}_offset": value for name, value in offset.items()},
    )
    return header, size


def parse_header(page: bytes, file_bytes: int, path: Path) -> Header:
    """Read and check a header page. Raises: TGUFError naming the field that is wrong."""

    def fail(what: str) -> TGUFError:
        return TGUFError(f"{path}: {what}.", REWRITE)

    # Is it TGUF at all, and a version that this reader knows?
    if file_bytes < PAGE or len(page) < HEADER_BYTES:
        raise fail(f"{file_bytes} bytes are too few for a TGUF header page")
    header = Header(*struct.unpack_from(f"<{len(FIELDS)}Q", page))
    if header.magic != MAGIC:
        raise fail(f"magic {header.magic:#x} is not TGUF's")
    if header.src_offset != PAGE:
        raise fail(
            f"the header is of an older TGUF layout (src_offset {header.src_offset}, "
            f"version 1 has {PAGE}), which this reader does not know"
        )
    if header.version != 1:
        raise fail(f"version {header.version} is unknown, this reader knows 1")

    # Do sections, negatives and splits lie inside the file?
    capacity = sections_of(header, file_bytes, path)["src"].capacity
    if header.neg_dst_offset and header.negatives_start_e_id > capacity:
        raise fail(
            f"negatives begin at edge {header.negatives_start_e_id}, "
            f"but the file has room for {capacity} edges"
        )
    if not _in_order(header.val_start, header.test_start, capacity):
        raise fail(
            f"splits val_start {header.val_start}, test_start {header.test_start} are out of order "
            f"or more than the {capacity} edges that fit the file"
        )
    return header


def sections_of(h: Header, file_bytes: int, path: Path) -> dict[str, Section]:
    """Compute the sections of a header by name, and check them against the file.

    Each must be page-aligned, after the one before it, inside the file, and large enough for the
    header's counts. Raises: TGUFError naming the section.
    """
    # A width larger than the file would overflow the sums below.
    for name in ("msg_dim", "label_dim", "node_feat_dim", "negatives_per_edge"):
        if getattr(h, name) * 4 > file_bytes:
            raise TGUFError(
                f"{path}: {name} {getattr(h, name)} does not fit a file of {file_bytes} bytes.",
                REWRITE,
            )

    # Which sections are there, and how wide are their rows?
    row_bytes = {"src": 8, "dst": 8, "time": 8, "msg": 4 * h.msg_dim}
    if h.neg_dst_offset:
        row_bytes["neg_dst"] = 8 * h.negatives_per_edge
    if h.node_feat_offset:
        row_bytes["node_feat"] = 4 * h.node_feat_dim
    if h.label_n_id_offset:
        row_bytes |= {"label_n_id": 8, "label_time": 8, "label_target": 4 * h.label_dim}

    # Does each begin at a page inside the file?
    rows = {"node_feat": h.num_nodes, "neg_dst": max(0, h.num_edges - h.negatives_start_e_id)}
    out: dict[str, Section] = {}
    names = list(row_bytes)
    starts = [getattr(h, f"{n}_offset") for n in names]
    for name, start in zip(names, starts, strict=True):
        if start % PAGE or not PAGE <= start <= file_bytes:
            raise TGUFError(
                f"{path}: section {name} at byte {start} is misaligned or outside the file of "
                f"{file_bytes} bytes.",
                REWRITE,
            )

    # Does each hold its rows before the next one begins?
    for i, name in enumerate(names):
        start = starts[i]
        end = starts[i + 1] if i + 1 < len(names) else file_bytes
        if end < start:
            raise TGUFError(
                f"{path}: section {name} at byte {start} is after section {names[i + 1]}.",
                REWRITE,
            )
        width = row_bytes[name]
        capacity = (end - start) // width if width else NO_LIMIT
        count = rows.get(name, h.num_labels if name.startswith("label") else h.num_edges)
        if count > capacity:
            raise TGUFError(
                f"{path}: section {name} has room for {capacity} rows, the header counts {count}.",
                REWRITE,
            )
        out[name] = Section(name, start, width, capacity)
    if (h.num_labels and not h.label_n_id_offset) or (h.num_nodes and not h.node_feat_offset):
        raise TGUFError(
            f"{path}: the header counts labels or node features but names no section for them.",
            REWRITE,
        )
    return out
