"""What every test of the project starts from."""

import signal
import subprocess
import sys

import pytest
import tiny
import torch

from fedpart.data import FederatedData
from fedpart.program import Program
from fedpart.runtime import prepare_process


def pytest_collection_modifyitems(config, items):
    """Skip what this machine cannot do."""
    if not torch.cuda.is_available():
        # A GPU is no part of most machines: what needs one says so here, once.
        for item in items:
            if item.get_closest_marker("cuda") is not None:
                item.add_marker(pytest.mark.skip(reason="needs a GPU, and there is none here"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    prepare_process()


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c():
    """As in a terminal, whatever started the tests: a shell's background jobs ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _processes_are_marked(request, monkeypatch):
    """Plain ``pytest`` leaves out what starts Python processes, which take seconds each."""
    if any(request.node.get_closest_marker(name) for name in ("process", "ray", "flwr", "slow")):
        return
    start = subprocess.Popen.__init__

    def checked(self, args, *more, **options):
        assert args[0] != sys.executable, "starts a process: give it pytest.mark.process"
        start(self, args, *more, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", checked)


@pytest.fixture(scope="session")
def small_program() -> Program:
    """Three partitions, augmentation and one dropout: ``tiny.small_cnn``."""
    return tiny.program()


@pytest.fixture(scope="session")
def small_data() -> FederatedData:
    """Ten clients with 3 to 12 random images."""
    return tiny.data()
