"""The examples of the docs, each on a small stream in the shape that it is for."""

import json
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import uvicorn
from typer.testing import CliRunner

from streamd.cli.main import app
from streamd.clock import SystemClock
from streamd.exchange.load import FileRow
from streamd.exchange.sample import Sample, judge
from streamd.ingest.kafka.client import make_producer
from streamd.scoring.alarms import AlarmRecord
from streamd.server.app import create_app
from streamd.settings.loading import load_settings
from streamd.settings.tree import KafkaSettings
from tests.benchmarks.flows import flows
from tests.server.world import World, wait

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
BEGIN = 1_790_000_000
EXAMPLES = ("recommendation", "fraud", "mobility", "security")


def orders(random_):
    for n in range(300):
        customer = random_.randrange(12)
        yield {"customer": customer, "sku": f"b{customer * 2 + random_.randrange(2)}", "amount": 9.5,
               "ordered_at": f"2026-11-01T{n // 50:02}:{n % 50:02}:00Z"}


def payments(random_):
    """Cards 0 to 3 are reported, and pay at merchant 9, where no other card does."""
    for n in range(600):
        card = random_.randrange(12)
        at = BEGIN + 50 * n
        stolen = card < 4
        yield {"type": "payment", "card": card, "merchant": 9 if stolen else card % 5, "amount": 900.0 if stolen else 10.0, "at": at}
        if n % 3 == 0:
            yield {"type": "review", "card": card, "fraud": int(stolen), "at": at}


def trips(random_):
    for n in range(300):
        zone = random_.randrange(10)
        yield {"from": zone, "to": (zone + random_.choice([1, 1, 1, 5])) % 10, "pickup_ms": (BEGIN + 70 * n) * 1000, "km": 2.0}


STREAMS = {"recommendation": ("shop.orders", orders), "fraud": ("payments", payments), "mobility": ("trips", trips)}


@pytest.fixture
def asked(tmp_path):
    """Learns an example's stream and runs its program on a server. Gives what the program printed."""
    running = []

    def run(name, *args, stdin="", **values):
        topic, records = STREAMS[name]
        config, file = FOLDER / f"{name}.yaml", tmp_path / f"{name}.ndjson"
        file.write_text("".join(json.dumps(r) + "\n" for r in records(random.Random(3))))
        done = CliRunner().invoke(app, ["tguf", "import", str(file), "--source", topic, "-c", str(config), "--data-dir", str(tmp_path / "log")])
        assert done.exit_code == 0, done.output

        settings = load_settings(config, {"data_dir": tmp_path / "log", "training.threads": 1, **values}, {})[0]
        world = World.of(tmp_path / "log", settings)
        world.train()
        assert world.registry.champion(), "the program is to ask a model, not a rule"
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(world.state), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        running.append((server, thread, listening))
        wait(lambda: world.engine.status.version == world.registry.champion(), 60)
        url = f"http://localhost:{listening.getsockname()[1]}"
        program = subprocess.run([sys.executable, FOLDER / f"{name}.py", url, *args], input=stdin, capture_output=True, text=True, timeout=60)
        assert program.returncode == 0, program.stderr
        return program.stdout.splitlines()

    yield run
    for server, thread, listening in running:
        server.should_exit = True
        thread.join()
        listening.close()


def test_recommendation_leaves_out_what_the_customer_had(asked):
    known, new = asked("recommendation", "customer:3", "customer:99")
    assert known.startswith("customer:3: sku:b") and "sku:b6 " not in known and "sku:b7 " not in known
    assert new.startswith("customer:99 (new): sku:b") and new.count("sku:") == 3


def test_fraud_shows_the_cards_that_are_like_those_reported(asked):
    lines = [{"card": 1, "merchant": 9}, {"card": 8, "merchant": 3}, {"card": 2, "merchant": 9}, {"card": 7, "merchant": 9}, {"card": 7, "merchant": 2}]
    lines += [{"card": card, "merchant": card % 5} for card in (5, 6, 9)]
    # Of the seeds 0 to 3 only 0 ranks merchant 9 in the first half for a card that never paid there.
    shown = asked("fraud", stdin="".join(json.dumps(p) + "\n" for p in lines), **{"training.seed": 1})
    assert {line.split(":")[1].split()[0] for line in shown[:2]} == {"1", "2"} and "card:8 at merchant:3" not in "".join(shown)
    assert any(line.startswith("card:7 at merchant:9") and line.endswith("an unusual merchant") for line in shown)


def test_mobility_says_where_trips_go(asked):
    lines = asked("mobility", "2026-09-21T22:00:00Z", "0", "4")
    assert [line.split()[:2] for line in lines] == [["zone:0", "->"], ["zone:4", "->"]]
    assert "zone:1" in lines[0].split()[2:] and "zone:5" in lines[1].split()[2:]


def test_security_maps_conn_logs():
    settings = load_settings(FOLDER / "security.yaml", {}, {})[0]
    logged = flows(days=1, a_day=200)
    rows = [FileRow(offset=n, value=json.dumps(one).encode(), timestamp=int(1000 * one["ts"])) for n, one in enumerate(logged.records())]
    verdict = judge(settings, Sample("zeek.conn", {0: rows}), SystemClock())
    assert verdict.counts == {"edge": len(rows)} and not verdict.sentences()
    assert json.loads(verdict.judged[0].event)["src"] == f"host:{logged.hosts[logged.src_E[0]]}"


@pytest.mark.kafka
def test_security_prints_alarms_as_they_come(kafka):
    # The form of an alarm is that of the role.
    alarm = AlarmRecord(event=7, src="host:10.0.0.2", dst="host:10.0.0.9", edge_set="default", time_us=1_790_035_200_000_000, version="v", score=-4.2, rank=97.0, candidates=100,
                        known=True, surprise=9.1, usual_surprise=0.4, p_value=0.0008, source_p_value=0.0002, reasons=("the two never met", "it is popular"), repeats=3)
    kafka.create_topic("zeek.alarms", 1)
    producer = make_producer(KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    producer.send("zeek.alarms", value=msgspec.json.encode(alarm)).get(timeout=30)
    producer.close()
    program = subprocess.run([sys.executable, FOLDER / "security.py", kafka.bootstrap_servers, "3"], capture_output=True, text=True, timeout=60)
    assert program.stdout == "2026-09-22 00:00 host:10.0.0.2 -> host:10.0.0.9: 1 in 5,000, the two never met, 3 like it since the last alarm\n", program.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name):
    lines = [line for end in ("py", "yaml") for line in (FOLDER / f"{name}.{end}").read_text().splitlines()]
    assert len(lines) < 60


def test_every_example_is_on_the_page():
    page = (FOLDER.parent / "examples.md").read_text()
    assert {p.name for p in FOLDER.iterdir() if p.suffix in (".py", ".yaml")} == {f"{n}.{e}" for n in EXAMPLES for e in ("py", "yaml")}
    assert all(f"examples/{n}.py" in page and f"examples/{n}.yaml" in page for n in EXAMPLES)
