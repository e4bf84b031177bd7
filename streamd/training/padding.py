"""Inputs of a training step, padded to sizes that many steps share, in one tensor for each
dtype."""

from dataclasses import dataclass

import torch
from torch import Tensor

from streamd.models import LinkInputs

PARTS = 4
"""Sizes are rounded up to a multiple of 1 / PARTS of the power of two below them: at most a quarter
of a step is padding, and few steps differ in size."""
ALIGNED = 64
"""Tensors begin at multiples of this many elements: kernels that load several elements at once need
it."""
Shapes = tuple[tuple[str, torch.dtype, torch.Size], ...]
"""Names, dtypes and padded shapes of all tensors, in order."""


@dataclass(frozen=True, slots=True)
class PackedInputs:
    """Padded inputs. pieces: a tensor for each dtype, of which `inputs` has views.

    Padding consists of events of weight 0, masked neighbors, unknown nodes, and roots that no
    event uses, so it does not change the result. Its indices are spread over many rows, since a GPU
    adds the gradients of one row one after another, zeros too.
    """

    shapes: Shapes
    pieces: tuple[Tensor, ...]
    inputs: LinkInputs

    @classmethod
    def of(cls, inputs: LinkInputs) -> "PackedInputs":
        """Copy the inputs with padding, on their device."""
        values = inputs.tensors()
        shapes = padded_shapes(values)
        size_of = {name: shape[0] for name, _, shape in shapes}
        num_nodes, num_roots = size_of["node_M"], size_of["hops.0.root_U"]
        pieces, views = _laid_out(shapes, inputs.node_M.device)
        for name, tensor in values.items():
            view, own = views[name], len(tensor)
            view[:own].copy_(tensor, non_blocking=True)
            rest = view[own:]
            if not rest.numel():
                continue
            field = name.rsplit(".", 1)[-1]
            index = torch.arange(rest.numel(), device=rest.device).view(rest.shape)
            if field == "node_M":
                rest.fill_(-1)
            elif field == "root_U":
                rest.copy_(index + num_nodes - len(rest))
            elif field == "neighbor_UK":
                rest.copy_(index % num_nodes)
            elif field in ("src_E", "candidate_EC"):
                rest.copy_(index % num_roots)
            else:
                rest.zero_()
        return cls(shapes, pieces, LinkInputs.restored(views))

    def zeros_like(self) -> "PackedInputs":
        """Zeros of the same shapes, as buffers for `fill`."""
        pieces, views = _laid_out(self.shapes, self.pieces[0].device)
        return PackedInputs(self.shapes, pieces, LinkInputs.restored(views))

    def fill(self, other: "PackedInputs") -> None:
        """Copy inputs of the same shapes into these."""
        for piece, source in zip(self.pieces, other.pieces, strict=True):
            piece.copy_(source)

    def without_padding(self, inputs: LinkInputs) -> LinkInputs:
        """Views of these tensors with the sizes of `inputs`, from which they were made."""
        views = self.inputs.tensors()
        return LinkInputs.restored({n: views[n][: len(t)] for n, t in inputs.tensors().items()})


def padded_shapes(values: dict[str, Tensor]) -> Shapes:
    """The shapes of inputs after padding. They depend on the unpadded shapes alone, so that a
    restart pads alike.

    values: by the names of `LinkInputs.tensors`. The capitals at the end of a name are its axes:
    axes with the same letter have equal sizes, except for the U roots of each hop.
    """
    sizes = {axis_of(name): round_up(len(tensor)) for name, tensor in values.items()}
    # Each root added to a hop is a separate node, because states are written by root.
    roots = [name for name in values if name.endswith("root_U")]
    added = max(sizes[axis_of(name)] - len(values[name]) for name in roots)
    sizes["M"] = round_up(len(values["node_M"]) + added)
    return tuple(
        (name, tensor.dtype, torch.Size([sizes[axis_of(name)], *tensor.shape[1:]]))
        for name, tensor in values.items()
    )


def axis_of(name: str) -> str:
    """The first axis of a value, by its name; for the roots of a hop, with the hop's number."""
    *hop, field = name.rsplit(".", 1)
    return "".join(hop) + field.rsplit("_", 1)[1][0]


def round_up(size: int) -> int:
    """The next size that steps are padded to: see PARTS."""
    part = max(1, (1 << max(size - 1, 1).bit_length() - 1) // PARTS)
    return -(-size // part) * part


def _laid_out(shapes: Shapes, device: torch.device) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Allocate zeroed tensors of the given shapes: a piece for each dtype, and the views by
    name."""
    dtypes = list(dict.fromkeys(dtype for _, dtype, _ in shapes))
    ends = dict.fromkeys(dtypes, 0)
    begins = {}
    for name, dtype, shape in shapes:
        begins[name] = ends[dtype]
        ends[dtype] += -(-shape.numel() // ALIGNED) * ALIGNED
    piece_of = {dtype: torch.zeros(ends[dtype], dtype=dtype, device=device) for dtype in dtypes}
    views = {
        name: piece_of[dtype][begins[name] : begins[name] + shape.numel()].view(shape)
        for name, dtype, shape in shapes
    }
    return tuple(piece_of.values()), views
