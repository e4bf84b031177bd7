"""Virtual time and a baton: of all threads of all simulated processes one runs, until it calls a seam."""

import errno
import heapq
import itertools
import random
import re
import threading
import traceback
import zlib
from collections import deque

TURN_SECONDS = 2e-5
"""Time that a turn takes at least, so that time passes for a loop that never waits."""
TRACED_TURNS = 400
"""Turns that the trace of a failure shows."""


class Kill(BaseException):
    """The process is gone: raised at each seam that a thread of it calls."""


class Failure(Exception):
    """What a check or the liveness of a seed found."""


class Process:
    """A simulated process: its threads, and when it is killed.

    kill_in: number of seams after which it is killed, None for no plan. kill_at: kind of the seam at which it is, "" for no plan. seams: kinds
    of those that processes of its role have called. locks: descriptors of lock files, which end with it.
    """

    def __init__(self, name, machine, on_end, number, seams):
        """number: as the system counts processes."""
        self.kill_at, self.seams = "", seams
        self.name, self.machine, self.on_end, self.number = name, machine, on_end, number
        self.dead, self.kill_in, self.tasks, self.locks, self.ended = False, None, [], [], None


class Task:
    """A thread of a process. token: of its newest wait; older timers mean nothing."""

    def __init__(self, name, process):
        self.name, self.process = name, process
        self.go = threading.Lock()
        self.go.acquire()
        self.token, self.is_over, self.over = 0, False, []


class Scheduler:
    """Owner: the world. now: seconds since the seed's begin. failure: why the seed failed, "" as long as it did not."""

    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        self.now, self.turns, self.digest, self.until = 0.0, 0, 0, 0.0
        self.failure = ""
        self.trace = deque(maxlen=TRACED_TURNS)
        self.stop_at = None
        """The turn at which to stop, to look at it; None for none."""
        self._main = Task("main", None)
        self.current = None
        self._ready, self._doomed, self._timers = [], [], []
        self.seams, self._kinds = {}, {}
        """Role -> kinds of the seams that it has called; label of a seam -> its kind, which has no numbers."""
        self._numbers = itertools.count()

    # Called by the world.

    def stream(self, name):
        """Random numbers that nothing else draws from: what one part of a seed leaves out changes nothing for the others."""
        return random.Random(f"{self.seed} {name}")

    def at(self, seconds, call):
        """Call something after some seconds; it must not call a seam."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), call, None))

    def spawn(self, process, name, target):
        """Begin a thread of a process. Returns: its task."""
        task = Task(f"{process.name}/{name}", process)
        process.tasks.append(task)
        self._ready.append(task)
        threading.Thread(target=self._body, args=(task, target), daemon=True).start()
        return task

    def _body(self, task, target):
        task.go.acquire()
        try:
            if not task.process.dead:
                target()
        except Kill:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever the product does not catch is a finding
            # A kill closes its files, which its own code may try to close once more.
            is_closed = task.process.dead and isinstance(error, OSError) and error.errno == errno.EBADF
            if not is_closed:
                self.fail(f"{task.name} ended by\n{traceback.format_exc()}")
        task.is_over = True
        self.wake(task.over)
        process = task.process
        process.tasks.remove(task)
        if not process.tasks and self.current is task:
            self.current = None
            process.on_end(process)
        following = self._choose()
        self.current = following
        following.go.release()

    def run(self, seconds):
        """Let all go on for some seconds of virtual time. Raises: Failure."""
        self.until = self.now + seconds
        following = self._choose()
        if following is not self._main:
            self.current = following
            following.go.release()
            self._main.go.acquire()
        self.current = None
        if self.failure:
            raise Failure(self.failure)

    def fail(self, why):
        """Stop at the next hand-over, because of what was found; the first finding counts."""
        self.failure = self.failure or why

    def kill(self, process):
        """End a process: each of its threads unwinds before anybody else goes on."""
        if process.dead:
            return
        process.dead = True
        self.note(f"{process.name} is killed")
        for task in process.tasks:
            if task is not self.current:
                self._doomed.append(task)
                task.token += 1
                if task in self._ready:
                    self._ready.remove(task)

    def note(self, text):
        """Write a line of the trace."""
        self.trace.append((self.turns, self.now, "", text))

    # Called by threads of processes, through the seams.

    def seam(self, label, seconds=0.0):
        """Hand over the baton, and go on after some seconds at the earliest. Raises: Kill."""
        task = self.current
        if task is None:
            return
        self._enter(task, label)
        if seconds <= 0:
            self._ready.append(task)
        else:
            task.token += 1
            heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), task, task.token))
        self._hand_over(task)

    def wait(self, waiters, seconds, label):
        """Hand over until somebody wakes `waiters`, at most some seconds, None for any time. Raises: Kill."""
        task = self.current
        if task is None:
            return
        self._enter(task, label)
        task.token += 1
        waiters.append((task, task.token))
        if seconds is not None:
            heapq.heappush(self._timers, (self.now + max(seconds, 0.0), next(self._numbers), task, task.token))
        self._hand_over(task)

    def wake(self, waiters):
        """Let those go on who wait."""
        for task, token in waiters:
            if task.token == token and not task.process.dead:
                task.token += 1
                self._ready.append(task)
        waiters.clear()

    def _enter(self, task, label):
        process = task.process
        if process.dead:
            raise Kill
        self.turns += 1
        self.now += TURN_SECONDS
        self.trace.append((self.turns, self.now, task.name, label))
        self.digest = zlib.crc32(f"{task.name} {label}".encode(), self.digest)
        kind = self._kinds.get(label)
        if kind is None:
            kind = self._kinds[label] = re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", label)
        process.seams.add(kind)
        if process.kill_in is not None:
            process.kill_in -= 1
        if kind == process.kill_at or (process.kill_in is not None and process.kill_in < 0):
            self.kill(process)
            raise Kill

    def _hand_over(self, task):
        following = self._choose()
        if following is not task:
            self.current = following
            following.go.release()
            task.go.acquire()
        self.current = task
        if task.process.dead:
            raise Kill

    def _choose(self):
        """Who has the next turn; the clock jumps where nobody is ready."""
        while True:
            if self._doomed:
                return self._doomed.pop(0)
            if self.failure or (self.stop_at is not None and self.turns >= self.stop_at):
                self.failure = self.failure or f"stopped at turn {self.turns}, as asked"
                return self._main
            while self._timers and (self._timers[0][0] <= self.now or not self._ready):
                if self._timers[0][0] > self.until or self._doomed:
                    break
                due, _, who, token = heapq.heappop(self._timers)
                self.now = max(self.now, due)
                if token is None:
                    self.current = None
                    try:
                        who()
                    except Exception:  # noqa: BLE001 - in the place of whichever thread looks for the next turn
                        self.fail(f"the simulator failed by\n{traceback.format_exc()}")
                        return self._main
                elif who.token == token and not who.is_over and not who.process.dead:
                    who.token += 1
                    self._ready.append(who)
            if self._doomed:
                continue
            if self.now >= self.until or not self._ready:
                self.now = max(self.now, self.until)
                return self._main
            at = self.random.randrange(len(self._ready))
            self._ready[at], self._ready[-1] = self._ready[-1], self._ready[at]
            return self._ready.pop()


def told(scheduler, turns=TRACED_TURNS):
    """The newest turns as text."""
    return "\n".join(f"{turn:>8} {now:12.6f} {who:<24} {label}" for turn, now, who, label in list(scheduler.trace)[-turns:])
