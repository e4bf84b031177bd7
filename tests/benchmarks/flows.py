"""Generated network flows in the form of Zeek's conn.log as JSON, with planted intrusions.

Workstations connect to internal servers and to external hosts, each to some of its own again and again, by day more than by night; 3 % of the
flows go to a host that the workstation never contacted. From day 4 on intrusions begin at the workstations, three a day in turn:

scan     20 internal hosts within 10 minutes
lateral  5 other workstations within 2 hours
exfil    an external host that nobody contacted before, every 20 minutes for 4 hours
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

BEGIN = 1_790_035_200
"""A midnight UTC, in seconds."""
DAY, HOUR = 86_400, 3_600
QUIET_DAYS = 4
KINDS = ("scan", "lateral", "exfil")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flows:
    """src_E, dst_E: int64[E], numbers of hosts. time_E: int64[E], microseconds, ascending. incident_E: int64[E], number of the intrusion, -1 for none.
    hosts: addresses by number. kinds: of the intrusions."""

    src_E: np.ndarray
    dst_E: np.ndarray
    time_E: np.ndarray
    incident_E: np.ndarray
    hosts: list[str]
    kinds: list[str]

    def records(self) -> Iterator[dict[str, Any]]:
        """The flows as lines of conn.log."""
        rng = np.random.default_rng(5)
        for n, (src, dst, time_us) in enumerate(zip(self.src_E.tolist(), self.dst_E.tolist(), self.time_E.tolist(), strict=True)):
            internal = self.hosts[dst].startswith("10.")
            yield {"ts": time_us / 1e6, "uid": f"C{n:08x}", "id.orig_h": self.hosts[src], "id.orig_p": int(rng.integers(1024, 65_536)), "id.resp_h": self.hosts[dst],
                   "id.resp_p": 445 if internal else 443, "proto": "tcp", "service": "smb" if internal else "ssl", "duration": float(rng.exponential(2)),
                   "orig_bytes": int(rng.exponential(800)), "resp_bytes": int(rng.exponential(9_000)), "conn_state": "SF"}


def flows(days: int = 14, a_day: int = 4_000, workstations: int = 120, servers: int = 30, others: int = 400, seed: int = 0) -> Flows:
    """Draw the flows of some days."""
    rng = np.random.default_rng(seed)
    hosts = [f"10.0.{n // 250}.{n % 250 + 1}" for n in range(workstations)] + [f"10.1.0.{n + 1}" for n in range(servers)]
    hosts += [f"203.0.{n // 250}.{n % 250 + 1}" for n in range(others)]
    first_server, first_other = workstations, workstations + servers

    # Ordinary traffic: own hosts by habit, others by popularity.
    popularity = 1 / np.arange(1, others + 1)
    own = [np.concatenate([first_server + rng.choice(servers, 5, replace=False), first_other + rng.choice(others, 12, replace=False, p=popularity / popularity.sum())])
           for _ in range(workstations)]
    habit = 1 / np.arange(1, 18)
    count = days * a_day
    when = np.sort(rng.integers(0, days, count) * DAY + np.clip(rng.normal(13, 3.5, count), 0, 23.99) * HOUR)
    activity = rng.exponential(1, workstations) + 0.2
    src = rng.choice(workstations, count, p=activity / activity.sum())
    dst = np.array([rng.permutation(own[s])[0] if rng.random() < 0.2 else own[s][rng.choice(17, p=habit / habit.sum())] for s in src])
    strange = rng.random(count) < 0.03
    dst[strange] = np.where(rng.random(strange.sum()) < 0.3, first_server + rng.integers(0, servers, strange.sum()),
                            first_other + rng.choice(others, strange.sum(), p=popularity / popularity.sum()))

    # Intrusions.
    rows = [np.stack([when, src, dst, np.full(count, -1)], 1)]
    kinds = []
    for day in range(QUIET_DAYS, days):
        for kind in KINDS:
            number, victim, at = len(kinds), int(rng.integers(workstations)), day * DAY + rng.uniform(6, 18) * HOUR
            kinds.append(kind)
            if kind == "scan":
                to, times = rng.choice(first_other, 20, replace=False), at + np.sort(rng.uniform(0, 600, 20))
            elif kind == "lateral":
                to, times = rng.choice(workstations, 5, replace=False), at + np.sort(rng.uniform(0, 2 * HOUR, 5))
            else:
                hosts.append(f"198.51.100.{number + 1}")
                to, times = np.full(12, len(hosts) - 1), at + 1200 * np.arange(12)
            to = np.where(to == victim, first_server, to)
            rows.append(np.stack([times, np.full(len(to), victim), to, np.full(len(to), number)], 1))
    whole = np.concatenate(rows)
    whole = whole[np.argsort(whole[:, 0], kind="stable")]
    return Flows(src_E=whole[:, 1].astype(np.int64), dst_E=whole[:, 2].astype(np.int64), time_E=((BEGIN + whole[:, 0]) * 1e6).astype(np.int64),
                 incident_E=whole[:, 3].astype(np.int64), hosts=hosts, kinds=kinds)
