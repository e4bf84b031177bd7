"""A pipeline of one's own over the tables of a schema: writes what each collection holds, as JSON."""

import json
import sys
from functools import partial
from pathlib import Path

import apache_beam as beam

from streamd.tfgnn.beam.pipeline import read_graph


def text(value):
    """Bytes as text, for JSON."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)):
        return [text(one) for one in value]
    return {name: text(one) for name, one in value.items()} if isinstance(value, dict) else value


def write(rows, path):
    path.write_text(json.dumps(sorted(map(text, rows), key=str)))


folder, out = map(Path, sys.argv[1:])
with beam.Pipeline("DirectRunner") as pipeline:
    for name, rows in read_graph(pipeline, folder).items():
        listed = rows | f"list {name}" >> beam.combiners.ToList()
        listed | f"write {name}" >> beam.Map(partial(write, path=out / f"{name.replace('/', '.')}.json"))
