"""A small part of the fuzz on every run, the whole on `make slow`; and that the fuzz finds what is planted."""

import subprocess
import sys

import numpy as np
import pytest

from streamd.tfgnn.logs import table_events
from streamd.tfgnn.records import columns, examples, records
from streamd.tfgnn.sampling import sampler as sampling
from streamd.tfgnn.sampling.draws import ENDLESS
from tests.tfgnn import fuzz


def test_mutated_inputs_give_a_named_error_or_a_right_result():
    assert fuzz.run(1_500, seed=7) == []


@pytest.mark.slow
def test_a_hundred_thousand_mutated_inputs():
    # kafka-python reads its schemas by a deprecated call: as in pyproject.toml
    warnings = ["-W", "error", "-W", "ignore:read_text is deprecated:DeprecationWarning", "-W", "ignore:open_text is deprecated:DeprecationWarning"]
    subprocess.run([sys.executable, *warnings, "-m", "tests.tfgnn.fuzz", "100000", "0"], check=True, timeout=3000)


def crash_in_the_slow_path(monkeypatch):
    monkeypatch.setattr(columns, "rewrite", lambda record, where: record[len(record)])


def ends_of_edges_unchecked(monkeypatch):
    monkeypatch.setattr(examples, "_check_ends", lambda *_: None)


def data_unchecked(monkeypatch):
    scan = records.scan_frames

    def repaired(array, at, starts, ends):
        found, behind, why = scan(array, at, starts, ends)
        if why == records.BAD_DATA:
            starts[found], ends[found] = behind + 12, behind + 12 + int(array[behind : behind + 8].view(np.int64)[0])
            return found + 1, int(ends[found]) + 4, 0
        return found, behind, why

    monkeypatch.setattr(records, "scan_frames", repaired)


def samples_see_their_own_time(monkeypatch):
    right = sampling.before
    monkeypatch.setattr(sampling, "before", lambda edges, node, until: right(edges, node, np.minimum(until, ENDLESS - 1) + 1))


def events_by_set_instead_of_time(monkeypatch):
    ordered = table_events.TableEvents._time_order

    def by_set(self):
        sets, rows, times = ordered(self)
        order = np.argsort(sets, kind="stable")
        return sets[order], rows[order], times[order]

    monkeypatch.setattr(table_events.TableEvents, "_time_order", by_set)


@pytest.mark.parametrize(("plant", "words"), [
    (events_by_set_instead_of_time, "not in order of time"),
    (samples_see_their_own_time, ", not "),
    (crash_in_the_slow_path, "IndexError"), (ends_of_edges_unchecked, "another result"), (data_unchecked, "damage")])
def test_a_planted_defect_is_found(monkeypatch, plant, words):
    plant(monkeypatch)
    found = fuzz.run(2_000, seed=7, stop_after=1)
    assert len(found) == 1 and words in found[0]
