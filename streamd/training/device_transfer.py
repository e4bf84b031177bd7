"""Transfer of recorded inputs to the model's device: to a GPU one step ahead of their use."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar

import structlog
import torch
from torch import Tensor

from streamd.events import Float32
from streamd.gpu.cache import FeatureCache
from streamd.gpu.copies import HOST, send
from streamd.models import LinkInputs, LinkModel, Memory
from streamd.models.inputs import HopInputs
from streamd.models.labels import LabelInputs
from streamd.settings.loading import GpuSettings
from streamd.telemetry import metrics

logger = structlog.get_logger()
KEPT_SHARE = 0.6
"""Inputs stay on a GPU for the next epoch while tensors take less than this share of its memory: a
training step, a scored chunk and the growth of the graph need the rest."""
T = TypeVar("T")
R = TypeVar("R")


class DeviceTransfer:
    """Sends recorded inputs to one device. On a CPU it returns them unchanged.

    Edge features are read through a cache on the device: their rows never change, and many chunks
    sample the same recent events.

    Owner: the thread that trains, or, while the next step is prepared, the transfer's own thread.
    """

    def __init__(self, device: str, settings: GpuSettings, edge_feature_dim: int) -> None:
        """device: as torch names it. edge_feature_dim: 0 if events have no features."""
        self.device = torch.device(device)
        self._mixed = settings.mixed_precision
        self._cache = None
        if device != "cpu" and settings.cache_rows and edge_feature_dim:
            self._cache = FeatureCache(
                settings.cache_rows, edge_feature_dim, settings.cache_policy, device
            )
        # One stream for all epochs: torch reuses memory that was freed on a stream only on that
        # stream.
        self._side: Any = None
        self.replays_steps = self.device.type == "cuda"
        """Whether training steps are padded, so that CUDA graphs may replay them."""
        self.captures_steps = self.replays_steps
        """Whether graphs are captured; otherwise padded steps are launched kernel by kernel, with
        the same bits."""
        self.graph_stream: Any = None
        # Whether inputs stay on the device over epochs. On a CPU nothing is copied there.
        self._keeps = self.device.type == "cuda"
        if self.device.type == "cuda":
            # Create both once: torch hands out streams from a small pool, and a graph must not be
            # captured on the stream that prepares the next step.
            self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self.graph_stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def inputs(self, inputs: LinkInputs) -> LinkInputs:
        """Copy the inputs to the device."""
        return inputs if self.device == HOST else inputs.to(self.send, self._edge_rows)

    def labels(self, labels: LabelInputs) -> LabelInputs:
        """Copy the label inputs to the device, except for the node sets."""
        if self.device == HOST:
            return labels
        return LabelInputs(
            around=self.inputs(labels.around),
            node_L=self.send(labels.node_L),
            set_L=labels.set_L,
            facts_LF=self.send(labels.facts_LF),
            history_LT=self.send(labels.history_LT),
            target_LT=self.send(labels.target_LT),
        )

    def send(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device from page-locked memory, so that the caller need not wait."""
        if tensor.device.type == self.device.type:
            return tensor
        return send(tensor, self.device)

    def logits(
        self, model: LinkModel, memory: Memory, inputs: LinkInputs, updated_PD: Tensor
    ) -> Float32:
        """A model's logits for recorded inputs under its present memory, float32[E, C].

        updated_PD: states of the nodes with pending messages, as in `LinkModel.over`.
        """
        on_device = self.inputs(inputs)
        logits_EC: Float32 = (
            model(on_device, memory.gather(on_device.node_M, updated_PD)).cpu().numpy()
        )
        return logits_EC

    def autocast(self, keep_casts: bool = True) -> AbstractContextManager[None]:
        """A context with matrix products in bfloat16 if `gpu.mixed_precision` is on and the device
        is a GPU.

        Weights and sums stay float32. keep_casts: whether a weight is cast only once for all
        products.
        """
        mixed = self._mixed and self.device.type != "cpu"
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=mixed, cache_enabled=keep_casts
        )

    def ahead(self, steps: Iterable[T], prepare: Callable[[T], R]) -> Iterator[R]:
        """Yield `prepare(step)` for each step, in order.

        On a GPU the next step is prepared while the caller works on this one, in another thread and
        on another CUDA stream.
        """
        if self._side is None:
            yield from map(prepare, steps)
            return

        # The side stream waits for everything queued on the caller's stream.
        side = self._side
        side.wait_stream(torch.cuda.current_stream())
        coming = iter(steps)

        def work() -> list[R]:
            with torch.cuda.stream(side):
                return [prepare(step) for step in islice(coming, 1)]

        # Prepare only one step ahead: each holds device memory.
        with ThreadPoolExecutor(1, "device-transfer") as pool:
            next_one = pool.submit(work)
            while done := next_one.result():
                # Tensors allocated on the side stream are used on the caller's: neither stream may
                # get ahead of the other by more than a step.
                torch.cuda.current_stream().wait_stream(side)
                side.wait_stream(torch.cuda.current_stream())
                next_one = pool.submit(work)
                yield done[0]

    def epochs(
        self, num_epochs: int, steps: Sequence[T], prepare: Callable[[T], R]
    ) -> Iterator[Iterator[R]]:
        """Yield for each epoch an iterator over `prepare(step)` of each step, as `ahead` does.

        On a GPU, prepared steps stay there for the next epochs: the first ones of a window, as long
        as there is room.
        """
        kept: list[R] = []

        def epoch() -> Iterator[R]:
            yield from list(kept)
            keeps = True
            for done in self.ahead(steps[len(kept) :], prepare):
                keeps = keeps and self.has_room()
                if keeps:
                    kept.append(done)
                yield done

        for _ in range(num_epochs):
            yield epoch()

    def has_room(self) -> bool:
        """Whether further prepared inputs may stay on the device."""
        if not self._keeps:
            return False
        most = KEPT_SHARE * torch.cuda.get_device_properties(self.device).total_memory
        return torch.cuda.memory_allocated(self.device) < most

    @property
    def savings(self) -> tuple[Callable[[], bool], ...]:
        """Ways to need less GPU memory, the cheapest first. Each returns whether it changed
        anything."""
        return self.stop_capturing, self.stop_keeping

    def stop_keeping(self) -> bool:
        """Keep no prepared inputs from the next epochs on, because the GPU lacks memory. Returns:
        whether any could have been kept until now."""
        kept = self._keeps
        self._keeps = False
        if kept:
            logger.warning(
                "gpu_inputs_sent_each_epoch",
                reason="the GPU lacks memory for a training step next to the inputs of other steps",
            )
        return kept

    def stop_capturing(self) -> bool:
        """Capture no more graphs, because the GPU lacks memory for them. Returns: whether any could
        have been captured until now."""
        captured = self.captures_steps
        self.captures_steps = False
        if captured:
            logger.warning("gpu_steps_not_captured", reason="the GPU lacks memory for CUDA graphs")
        return captured

    def report(self) -> None:
        """Set the metric of allocated device memory."""
        if self.device.type == "cuda":
            metrics.gpu_memory.set(torch.cuda.memory_allocated(self.device))

    def _edge_rows(self, hop: HopInputs) -> Tensor:
        """Edge features of a hop on the device, float32[U, K, D], through the cache if there is
        one."""
        if self._cache is None:
            return self.send(hop.edge_UKD)
        return cached_edge_rows(hop, self._cache, self.send)


def cached_edge_rows(
    hop: HopInputs, cache: FeatureCache, send: Callable[[Tensor], Tensor]
) -> Tensor:
    """Edge features of a hop, float32[U, K, D], on the cache's device; zeros for masked neighbors.

    send: copies a tensor to that device. Only rows that the cache lacks are sent, each once.
    """
    recorded_ND = hop.edge_UKD.flatten(0, 1)
    mask_N = hop.mask_UK.flatten()
    asked_N = mask_N.nonzero()[:, 0]
    # Index of the row of each neighbor; masked ones point to a row of zeros after all others. It
    # is computed on the host, so that nothing waits for the device.
    row_N = torch.where(mask_N, mask_N.cumsum(0) - 1, len(asked_N))

    def source(missed: Tensor) -> Tensor:
        staged = torch.empty(
            len(missed), recorded_ND.shape[1], pin_memory=missed.device.type == "cuda"
        )
        return send(torch.index_select(recorded_ND, 0, asked_N[missed.cpu()], out=staged))

    rows = cache.fetch(send(hop.eid_UK.flatten()[asked_N]), source)
    rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    return rows[send(row_N)].view(hop.edge_UKD.shape)
