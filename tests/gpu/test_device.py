import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from streamd.errors import DeviceError
from streamd.gpu import choose_device, device, make_graph
from streamd.graph import BlockGraph
from streamd.settings.loading import GpuSettings, GraphSettings
from streamd.training.checkpoint import build_facts


@pytest.fixture(autouse=True)
def anew():
    choose_device.cache_clear()
    yield
    choose_device.cache_clear()


def gpu(monkeypatch, cupy):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(device, "find_spec", lambda name: cupy)


def test_auto_takes_a_gpu_where_cupy_can_drive_it_and_says_what_it_took(monkeypatch, capsys):
    assert choose_device("cpu") == choose_device("auto") == "cpu" and capsys.readouterr().out == ""
    choose_device.cache_clear()
    gpu(monkeypatch, cupy=True)
    assert choose_device("auto") == "cuda" and "gpu_chosen" in capsys.readouterr().out
    assert choose_device("cpu") == "cpu"


def test_auto_leaves_several_ranks_on_the_cpu_though_there_is_a_gpu(monkeypatch):
    gpu(monkeypatch, cupy=True)
    assert choose_device("auto", 2) == "cpu" and choose_device("cuda", 2) == choose_device("auto", 1) == "cuda"


def test_auto_leaves_a_gpu_idle_without_cupy_and_says_what_to_install(monkeypatch, capsys):
    gpu(monkeypatch, cupy=None)
    assert choose_device("auto") == "cpu"
    said = capsys.readouterr().out
    assert "gpu_idle" in said and "pip install" in said


def test_cuda_without_a_gpu_or_without_cupy_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"torch .* (is built without CUDA|sees no GPU).*set device: cpu"):
        choose_device("cuda")
    gpu(monkeypatch, cupy=None)
    with pytest.raises(DeviceError, match=r"cupy.*is not installed.*pip install 'streamd-gnn\[gpu\]'"):
        choose_device("cuda")


def test_cuda_where_all_is_there_is_taken_and_said(monkeypatch, capsys):
    gpu(monkeypatch, cupy=True)
    assert choose_device("cuda") == "cuda" and "gpu_chosen" in capsys.readouterr().out


def test_roles_compute_the_same_bits_again_and_do_not_fill_what_they_are_about_to_write():
    code = ("import torch; from streamd.gpu import make_torch_deterministic; make_torch_deterministic(1)\n"
            "print(torch.are_deterministic_algorithms_enabled(), "
            "torch.utils.deterministic.fill_uninitialized_memory, __import__('os').environ['CUBLAS_WORKSPACE_CONFIG'])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True False :4096:8\n"


def test_what_bits_depend_on_names_the_gpu_and_says_nothing_new_of_a_cpu(monkeypatch):
    def on(name, multiprocessors):
        made = SimpleNamespace(name=name, multi_processor_count=multiprocessors)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: made)
        runtime = SimpleNamespace(driverGetVersion=lambda: 13000)
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(runtime=runtime))
        return build_facts("cuda")

    plain = build_facts("cpu")
    assert plain == {"torch": torch.__version__, "threads": torch.get_num_threads()}
    assert on("H100", 132) == {**plain, "gpu": "H100", "multiprocessors": 132, "cuda": str(torch.version.cuda), "driver": 13000}
    assert on("H100", 132) != on("H100", 66) != on("H200", 132), "a slice of a GPU is another one"


def test_the_cpu_has_the_plain_graph(tmp_path):
    graph = make_graph(GraphSettings(), GpuSettings(), "cpu", 70, "out", lambda first, end: None)
    assert type(graph) is BlockGraph and graph.next_event == 70 and list(graph.directions) == ["out"]


def test_importing_streamd_and_learning_on_a_cpu_never_ask_for_cupy():
    code = ("import sys; sys.modules['cupy'] = None; import streamd.daemon.run_role, streamd.cli.doctor_checks, streamd.gpu, streamd.gpu.graph, "
            "streamd.gpu.launch, streamd.training.trainer, streamd.server.app; print('ok')")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "ok\n"
