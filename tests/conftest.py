import os
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from streamd.demo.broker import ApacheKafka

# One thread for each process, as roles have it; read once, when numpy and torch are loaded. Where several processes share the
# cores, a small product on two threads waits for the one that has no core: a file of tests then took twenty times as long.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Before CUDA is used: without it cuBLAS refuses to work once a test has turned deterministic mode on.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
INGEST = SimpleNamespace(is_asleep=False)
KAFKA_REASON = "needs a real Apache Kafka: set KAFKA_HOME to an unpacked release (Java 17)"


@pytest.fixture(autouse=True)
def logs_as_they_were():
    """Each command sets up the logs of its process, which is the tests'."""
    yield
    structlog.reset_defaults()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def on(request):
    """A device of tensors; a GPU where there is one."""
    import torch
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return request.param


@pytest.fixture(scope="session")
def kafka_home():
    home = os.environ.get("KAFKA_HOME")
    if not home:
        pytest.skip(KAFKA_REASON)
    return Path(home)


@pytest.fixture(scope="session")
def kafka(kafka_home, tmp_path_factory):
    broker = ApacheKafka(kafka_home, tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.close()


@pytest.fixture(scope="session", autouse=True)
def open_logs_take_lines():
    """A log that a test has open takes the learned lines of a trainer or registry in its process, as ingest does, unless ingest is
    asleep."""
    from streamd.eventlog import delivery
    from streamd.eventlog.writer import LogWriter
    begin, commit_alone, logs = LogWriter.__init__, delivery.commit_alone, weakref.WeakValueDictionary()

    def begun(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        logs[self.data_dir] = self

    def committed(data_dir, disk=delivery.DISK):
        if commit_alone(data_dir, disk):
            return True
        log = logs.get(data_dir)
        if log is not None and not log.files.closed and not INGEST.is_asleep:
            log.show_acknowledged()
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogWriter, "__init__", begun)
        patch.setattr(delivery, "commit_alone", committed)
        yield


@pytest.fixture
def ingest_asleep(monkeypatch):
    """Ingest has the log open, and commits only where the test says so."""
    monkeypatch.setattr(INGEST, "is_asleep", True)
