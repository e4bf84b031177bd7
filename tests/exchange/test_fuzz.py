"""Hostile rows become in every format what docs/types.md promises; a fault that is put in is found by the same rows."""

import pytest

from streamd.decode import encoding, plain_values
from streamd.decode.sources import formats, rules
from streamd.exchange import column_values, key_cells
from tests.decode.registry import Registry
from tests.exchange.fuzz import Fuzz

ROWS = 2_500


@pytest.fixture
def registry():
    server = Registry()
    yield server
    server.stop()


def test_hostile_rows_of_every_format(tmp_path, registry):
    fuzz = Fuzz(tmp_path, 1, registry)
    fuzz.run(ROWS)
    assert min(fuzz.num_edges, fuzz.num_refused, 20 * fuzz.num_bitten) > 400


@pytest.mark.slow
def test_many_hostile_rows(tmp_path, registry):
    Fuzz(tmp_path, 2, registry).run(200_000)


def take_nan_for_a_number_of_files(monkeypatch):
    monkeypatch.setattr(column_values, "plain_value", lambda value: 0.0 if value != value else plain_values.plain_value(value))


def lose_the_text_of_bytes_in_topics(monkeypatch):
    scalar = plain_values.plain_scalar
    for module in (encoding, rules):
        monkeypatch.setattr(module, "plain_scalar", lambda value: None if isinstance(value, bytes) else scalar(value))


def read_rows_of_arrow_twice(monkeypatch):
    monkeypatch.setattr(formats, "batch_rows", lambda batch: plain_values.batch_rows(batch) * 2)


def take_text_for_integers(monkeypatch):
    monkeypatch.setattr(key_cells, "is_integer_key", lambda text: text.isdecimal())


@pytest.mark.parametrize("plant", [take_nan_for_a_number_of_files, lose_the_text_of_bytes_in_topics, read_rows_of_arrow_twice, take_text_for_integers])
def test_a_fault_is_found(tmp_path, registry, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        Fuzz(tmp_path, 1, registry).run(ROWS)
