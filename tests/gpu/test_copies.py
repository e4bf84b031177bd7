import numpy as np
import torch

from streamd.gpu import copies
from streamd.telemetry import metrics
from tests.readings import reading


class OfTheHost:
    """A tensor of eight bytes that notes how it is sent."""

    device = copies.HOST

    def __init__(self):
        self.done = []

    def numel(self):
        return 1

    def element_size(self):
        return 8

    def pin_memory(self):
        self.done.append("page-locked")
        return self

    def to(self, device, non_blocking):
        self.done.append((str(device), non_blocking))
        return self


def test_what_goes_to_a_gpu_goes_from_page_locked_memory_and_nobody_waits():
    sent, before = OfTheHost(), reading(metrics.gpu_transfer_bytes.labels("up"))
    copies.send(sent, torch.device("cuda"))
    assert sent.done == ["page-locked", ("cuda", True)]
    assert reading(metrics.gpu_transfer_bytes.labels("up")) - before == 8


def test_on_the_host_nothing_is_copied():
    array = np.arange(3)
    tensor = copies.to_device(array, copies.HOST)
    array[0] = 7
    assert tensor[0] == 7 and copies.send(tensor, copies.HOST) is tensor
