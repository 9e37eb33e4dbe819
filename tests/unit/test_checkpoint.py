"""Checkpoints are whole or absent, and damage is seen."""

import errno
import os
from dataclasses import fields

import pytest
import tiny
import torch

from fedpart.checkpoint import load, save
from fedpart.errors import OutputError
from fedpart.files import sync, write_atomic
from fedpart.server import initial_state, server_update


@pytest.fixture
def state():
    program = tiny.bare_program([0, 1, 0, 1, 1], 2, num_hyper=2, chunks=(0.5, 0.5))
    sent = {1: torch.tensor([0.5, -0.25, 1e-30])}
    gradient = torch.tensor([-0.5, 3.0])
    replies = [tiny.reply(3, 1, sent, hyper_gradient=gradient, hyper_examples=4)]
    return server_update(program, initial_state(program), replies)


def test_round_trip_is_exact(tmp_path, state):
    """Every tensor to the bit, every counter, and what else was given."""
    extra = {"bytes": 2**40, "losses": [0.1, -2.5], "name": "a run", "nested": {"x": None}}
    save(tmp_path / "checkpoint.pt", state, extra)
    loaded, loaded_extra = load(tmp_path / "checkpoint.pt")
    assert loaded_extra == extra
    for f in fields(state):
        before, after = getattr(state, f.name), getattr(loaded, f.name)
        if isinstance(before, torch.Tensor):
            assert before.dtype == after.dtype
            assert torch.equal(before, after)
        else:
            assert before == after
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


@pytest.mark.parametrize("where", [0, 30, 90, 400, -1])
def test_a_damaged_byte_is_seen(tmp_path, state, where):
    """In the header, the hash, or anywhere in the body."""
    path = tmp_path / "checkpoint.pt"
    save(path, state, {})
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(OutputError, match="damaged or of another version"):
        load(path)


@pytest.mark.parametrize("kept", [0, 10, 50, 500])
def test_a_cut_file_is_seen(tmp_path, state, kept):
    """Also one cut inside its header, or empty."""
    path = tmp_path / "checkpoint.pt"
    save(path, state, {})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(OutputError, match="damaged"):
        load(path)


def test_a_missing_file_is_named(tmp_path):
    """The path and the system's reason."""
    with pytest.raises(OutputError, match=r"cannot read checkpoint .*none\.pt: No such file"):
        load(tmp_path / "none.pt")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(tmp_path, state, monkeypatch, call):
    """A full disk at sync or rename: the old checkpoint loads, nothing else is left behind."""
    path = tmp_path / "checkpoint.pt"
    save(path, state, {"round": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (type(path), "replace")), full)
    with pytest.raises(OutputError, match=r"cannot write .*No space left on device"):
        save(path, state, {"round": 2})
    assert load(path)[1] == {"round": 1}
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_the_file_is_synced_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    """So that after a power cut the name stands for the old content or the new, whole."""
    done = []
    fsync, replace = os.fsync, type(tmp_path).replace

    def synced(handle):
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def renamed(path, target):
        done.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(type(tmp_path), "replace", renamed)
    write_atomic(tmp_path / "x", b"a", memoryview(b"b"))
    assert done == ["file", "rename", "folder"]
    assert (tmp_path / "x").read_bytes() == b"ab"


def test_a_file_system_that_cannot_sync_folders_will_do(tmp_path, monkeypatch):
    """It says EINVAL for the folder; for a file that is an error as any other.

    Windows cannot even open one.
    """
    fsync, open_ = os.fsync, os.open

    def opens_no_folder(path, *args):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opens_no_folder)
        write_atomic(tmp_path / "x", b"0")

    def refuses_folders(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(handle)

    def refuses(handle):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuses_folders)
    write_atomic(tmp_path / "x", b"a")
    monkeypatch.setattr(os, "fsync", refuses)
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "x")
    with pytest.raises(OutputError, match="Invalid argument"):
        write_atomic(tmp_path / "x", b"b")
    assert (tmp_path / "x").read_bytes() == b"a"


def test_an_interrupted_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    """Ctrl-C in the midst of it."""
    write_atomic(tmp_path / "x", b"a")

    def interrupt(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "x", b"b")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"x": b"a"}


def test_a_place_that_cannot_be_written_is_an_error_of_one_sentence(tmp_path):
    """A folder that does not exist."""
    with pytest.raises(OutputError, match=r"cannot write .*No such file"):
        write_atomic(tmp_path / "none" / "file", b"x")
