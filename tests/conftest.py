import os
from pathlib import Path

import pytest
import structlog

from streamd.demo.broker import ApacheKafka

# One thread for each process, as roles have it; read once, when numpy and torch are loaded. Where several processes share the
# cores, a small product on two threads waits for the one that has no core: a file of tests then took twenty times as long.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Before CUDA is used: without it cuBLAS refuses to work once a test has turned deterministic mode on.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
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
