"""SamplingSpec: the seeds, edge sets and strategies of sampling subgraphs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamd.errors import TFGNNError
from streamd.settings.sets import nearest_of
from streamd.tfgnn.sampling.reverse_advice import CORRECT, ReverseAdvice
from streamd.tfgnn.schema.messages import (
    GraphSchema,
    SamplingOp,
    SamplingSpec,
    parse_message,
    print_text,
)

READOUT = "_readout"
"""The readout node set of a schema with symmetric link seeds; its edge sets append /source and
/target."""


def seed_of(spec: SamplingSpec) -> Any:
    """The seed operation: its `seed_op`, or its `symmetric_link_seed_op`."""
    return getattr(spec, spec.WhichOneof("seed_type") or "seed_op")


def check_spec(
    spec: SamplingSpec,
    schema: GraphSchema | None = None,
    where: str = "the sampling spec",
    reverses: Mapping[str, str] | None = None,
) -> None:
    """Refuse a spec that cannot be run. With a schema, also refuse sets that are not in it.

    reverses: for a log, the name of each edge set's reverse. Raises: TFGNNError.
    """
    if spec.WhichOneof("seed_type") is None:
        raise _spec_error(f"{where} has no seed", "write a seed_op.")
    seed, is_link = seed_of(spec), spec.HasField("symmetric_link_seed_op")
    _check_name(seed.op_name, f"{where}: the seed")
    if not is_link and not seed.node_set_name:
        raise _spec_error(f"{where}: the seed {seed.op_name!r} has no node_set_name")
    seed_set = READOUT if is_link else seed.node_set_name
    if schema is not None:
        # Link seeds need the readout with its two edge sets.
        needed = (f"{READOUT}/source", f"{READOUT}/target") if is_link else ()
        _in_schema(schema.node_sets, seed_set, "node set", f"{where}: {seed.op_name!r}")
        for edge_set in needed:
            _in_schema(schema.edge_sets, edge_set, "edge set", f"{where}: {seed.op_name!r}")

    # The node set in which each operation ends, by its name; None if unknown.
    ends: dict[str, str | None] = {seed.op_name: None if is_link else seed_set}
    for op in spec.sampling_ops:
        location = f"{where}: operation {op.op_name!r}"
        _check_name(op.op_name, f"{where}: an operation")
        if op.op_name in ends:
            raise _spec_error(f"{location} occurs twice", "give each its own name.")
        _check_op(op, ends, location)
        ends[op.op_name] = None
        if schema is not None:
            advice = ReverseAdvice(schema, reverses or {})
            ends[op.op_name] = _check_walk(spec, op, ends, advice, location)


def _check_walk(
    spec: SamplingSpec,
    op: SamplingOp,
    ends: Mapping[str, str | None],
    advice: ReverseAdvice,
    location: str,
) -> str:
    """Refuse an operation if the source of its edge set is not the node set of its inputs.

    Returns: the node set in which it ends. Raises: TFGNNError.
    """
    sets, name = advice.schema.edge_sets, op.edge_set_name
    starts = {i: end for i in op.input_op_names if (end := ends[i]) is not None}
    if name not in sets:
        # The sources of later operations show in which node set the missing edge set should end.
        later = [o for o in spec.sampling_ops if op.op_name in o.input_op_names]
        wanted = {sets[o.edge_set_name].source for o in later if o.edge_set_name in sets}
        action = advice.of_missing(name, next(iter(starts.values()), None), wanted)
        raise _missing(sets, name, "edge set", location, action)
    one = sets[name]
    for i, start in starts.items():
        if start != one.source:
            raise _spec_error(
                f"{location}: its input {i!r} gives nodes of {start!r}, and its edge set "
                f"{name!r} begins at {one.source!r}",
                advice.of_direction(name, start),
            )
    target: str = one.target
    return target


def _check_op(op: SamplingOp, ends: Mapping[str, str | None], location: str) -> None:
    """Refuse an operation that cannot be run with any schema. Raises: TFGNNError."""
    if op.sample_size <= 0:
        raise _spec_error(f"{location} has sample_size {op.sample_size}", "write at least 1.")
    if not op.edge_set_name:
        raise _spec_error(f"{location} has no edge_set_name")
    if not op.input_op_names:
        raise _spec_error(
            f"{location} has no input_op_names", "name the seed or an earlier operation."
        )
    for name in op.input_op_names:
        if name not in ends:
            near = nearest_of(name, ends)
            raise _spec_error(f"{location}: its input {name!r} is not defined before it{near}")


def _spec_error(what: str, action: str = CORRECT) -> TFGNNError:
    return TFGNNError(f"{what}.", action)


def _check_name(name: str, location: str) -> None:
    if not name:
        raise _spec_error(f"{location} has no op_name")


def _in_schema(sets: Any, name: str, kind: str, location: str) -> None:
    if name not in sets:
        raise _missing(sets, name, kind, location)


def _missing(sets: Any, name: str, kind: str, location: str, action: str = CORRECT) -> TFGNNError:
    near = nearest_of(name, sorted(sets))
    return _spec_error(f"{location}: the {kind} {name!r} is not in the schema{near}", action)


def read_spec(
    path: Path,
    schema: GraphSchema | None = None,
    reverses: Mapping[str, str] | None = None,
) -> SamplingSpec:
    """Read a sampling spec, text or binary, and check it. reverses: as for `check_spec`.
    Raises: TFGNNError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TFGNNError(f"{path} cannot be read: {error.strerror}.", "check the path.") from None
    return parse_spec(data, schema, str(path), reverses)


def parse_spec(
    data: bytes,
    schema: GraphSchema | None = None,
    where: str = "the sampling spec",
    reverses: Mapping[str, str] | None = None,
) -> SamplingSpec:
    """A sampling spec from protobuf text or binary, checked. Raises: TFGNNError."""
    spec = parse_message(SamplingSpec, data, where)
    check_spec(spec, schema, where, reverses)
    return spec


def spec_text(spec: SamplingSpec) -> str:
    """A sampling spec as protobuf text. Raises: TFGNNError if it cannot be run."""
    check_spec(spec)
    return print_text(spec)


def spec_binary(spec: SamplingSpec) -> bytes:
    """A sampling spec as protobuf binary. Raises: TFGNNError if it cannot be run."""
    check_spec(spec)
    return bytes(spec.SerializeToString(deterministic=True))
