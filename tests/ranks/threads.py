"""Ranks as threads of one process, which run what ranks run as processes of their own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from streamd.errors import RanksError
from streamd.ranks import Ranks


class _Meeting:
    """Where the threads of a group leave what they send."""

    def __init__(self, size, seconds):
        self.barrier = threading.Barrier(size, timeout=seconds)
        self.sent = [None] * size


class ThreadGroup:
    def __init__(self, rank, size, meeting):
        self.rank, self.size, self._meeting = rank, size, meeting
        self.calls = 0

    def all_to_all(self, rows, sent, received):
        assert sum(sent) == len(rows)
        self.calls += 1
        try:
            self._meeting.sent[self.rank] = rows.detach().clone().split(list(sent))
            self._meeting.barrier.wait()
            got = [parts[self.rank] for parts in self._meeting.sent]
            self._meeting.barrier.wait()
        except threading.BrokenBarrierError:
            raise RanksError("The other ranks did not answer.") from None
        assert [len(part) for part in got] == list(received)
        return torch.cat(got)


def run(size, work, seconds=120, shards=0):
    """Call work(ranks) in a thread for each rank. shards: of a replica, all ranks where 0. Returns: what each returned, in
    rank order."""
    shards = shards or size
    everyone = _Meeting(size, seconds)
    of_replicas = [[_Meeting(shards, seconds) for _ in range(2)] for _ in range(size // shards)]

    def one(rank):
        recording, rows = (ThreadGroup(rank % shards, shards, m) for m in of_replicas[rank // shards])
        try:
            return work(Ranks.over(recording, ThreadGroup(rank, size, everyone), rows) if size > 1 else Ranks())
        except BaseException:
            for meeting in [everyone, *sum(of_replicas, [])]:
                meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
    errors = [f.exception() for f in futures if f.exception() is not None]
    # What went wrong first, rather than what followed from it.
    errors.sort(key=lambda e: isinstance(e, RanksError))
    if errors:
        raise errors[0]
    return [f.result() for f in futures]
