"""What the nightly baseline costs: its share of a window's time and its bytes, on the demo's month with the default settings."""

import tempfile
from pathlib import Path

from streamd.clock import SystemClock
from streamd.eventlog.reader import LogReader
from streamd.registry import Registry
from streamd.settings.loading import load_settings
from streamd.settings.paths import Paths
from streamd.telemetry import metrics
from streamd.telemetry.heartbeat import Heartbeat
from streamd.training.trainer import Trainer
from tests.benchmarks.measure import Row, pick_size, wikipedia_log

WINDOWS = pick_size(40, 27)


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        wikipedia_log(path)
        chosen, _ = load_settings(None, {"data_dir": path, "stream.time_unit": "us", "bootstrap.max_events": 0}, {})
        log = LogReader.open(path, keep_keys=False)
        trainer = Trainer(chosen, Paths.of(chosen, "train"), "cpu", log, Registry.of(chosen), SystemClock(), Heartbeat(path, "train"))
        records = [trainer.process(trainer.due()[0]) for _ in range(WINDOWS)]
        pairs = trainer.recorder.live.facts.num_pairs
        mapped, slots = (metrics.TRAIN.get_sample_value("streamd_nightly_twin_bytes", {"where": w}) for w in ("mapped", "memory"))
    scored = [r for r in records if "nightly" in r.scores]
    of_baseline, all_of_it = sum(r.seconds["nightly"] for r in scored), sum(sum(r.seconds.values()) for r in scored)
    events = sum(r.scores["nightly"]["events"] for r in scored)
    lead = sum((r.scores["nightly"]["mrr_live"] - r.scores["nightly"]["mrr"]) * r.scores["nightly"]["events"] for r in scored) / events
    return [Row("nightly baseline, a window", 1e3 * of_baseline / len(scored), "ms", 1e3 * all_of_it / len(scored), "all of the window"),
            Row("nightly baseline, facts mapped from a file", mapped / 1e6, "MB", slots / 1e6, f"in memory, of {pairs} pairs"),
            Row("live less nightly", 1000 * lead, "thousandths of MRR", events / len(scored), "events a window, by both")]
