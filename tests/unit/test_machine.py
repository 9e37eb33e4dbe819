import os
import subprocess
import sys

import pytest

from fedpart import machine
from fedpart.machine import (
    _quota,
    available_cores,
    computes_bfloat16,
    hardware,
    peak_rss,
    process_tree,
    slow_precision,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and control groups")


def test_cores_are_those_of_this_process():
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


@linux
def test_cores_follow_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert available_cores() == 1


def test_a_containers_share_of_time_is_the_least_above_the_process(tmp_path):
    own = tmp_path / "membership"
    own.write_text("1:cpu:/other\n0::/a/b\n")
    root = tmp_path / "cgroup"
    (root / "a" / "b").mkdir(parents=True)
    assert _quota(root, own) > 10**6
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert _quota(root, own) > 10**6
    (root / "cpu.max").write_text("400000 100000\n")
    assert _quota(root, own) == 4.0
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    assert _quota(root, own) == 1.5


def test_version_1_of_control_groups(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for text, cores in (("-1\n", 10.0**9), ("250000\n", 2.5)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(text)
        assert _quota(tmp_path, tmp_path / "missing") == cores


@pytest.mark.process
def test_memory_counts_what_a_child_holds(monkeypatch):
    # Other tests may have started larger processes, and waited for their end.
    monkeypatch.setattr(machine, "_peak", lambda: 0)
    megabyte = 2**20
    code = "import sys; b = bytearray(150 * 2**20); print('ready', flush=True); sys.stdin.read()"
    before = peak_rss()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"ready\n"
        assert process_tree(os.getpid()) == [os.getpid(), child.pid]
        more = peak_rss() - before
    # The child's libraries, less than 20 MB, are in part this process's too.
    assert 140 * megabyte < more < 180 * megabyte
    assert child.pid not in process_tree(os.getpid())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model name\t: A\nflags\t\t: fpu avx512_bf16 avx2\n", True),
        ("flags\t\t: amx_bf16\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx2 avx512f\nmodel name\t: A\n", False),
        ("Features\t: fp asimd i8mm\n", False),
        ("model name\t: A\n", None),
    ],
)
def test_bfloat16_is_looked_up_in_what_linux_says_of_the_processor(
    text, found, tmp_path, monkeypatch
):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    assert computes_bfloat16() is None
    (tmp_path / "cpuinfo").write_text(text)
    assert computes_bfloat16() is found
    assert hardware()["bfloat16"] == {True: "yes", False: "no", None: "unknown"}[found]
    assert bool(slow_precision("bf16", "cpu")) == (found is False)
    assert not slow_precision("fp32", "cpu")
    assert not slow_precision("bf16", "cuda")
