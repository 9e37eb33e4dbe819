"""Writing files; what a full disk does is in the tests of those who write."""

import os
import threading

import pytest

from fedpart.errors import OutputError
from fedpart.files import write_chosen


def test_a_chosen_file_and_its_folders_are_made(tmp_path):
    path = tmp_path / "deep" / "er" / "table.md"
    write_chosen(path, b"one")
    write_chosen(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["table.md"]


def test_a_link_stays_a_link_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("real")
    write_chosen(link, b"new")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_pipe_stays_a_pipe_and_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_chosen(pipe, b"text")
    reader.join()
    assert read == [b"text"]
    assert pipe.is_fifo()


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*: Is a directory"):
        write_chosen(tmp_path, b"x")
