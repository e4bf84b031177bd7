"""The topic and the store that trainers and replicas of a test share."""

import pytest

from tests.replica.models_world import MemoryLog


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/store"
