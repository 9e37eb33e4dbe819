"""Files at chosen places; what a full disk does is in the tests of those who write."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedpart.chosen import check_chosen, write_chosen
from fedpart.errors import ConfigError, OutputError


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


def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path):
    usual = tmp_path / "usual"
    usual.touch()
    for name, mode in (("old", 0o600), ("new", None)):
        path = tmp_path / name
        if mode is not None:
            path.touch(mode)
        write_chosen(path, b"x")
        assert path.stat().st_mode & 0o777 == (mode or usual.stat().st_mode & 0o777)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS, errno.EBUSY])
def test_a_file_that_none_can_replace_is_written_itself(tmp_path, monkeypatch, number):
    def refuse(path, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", refuse)
    path = tmp_path / "file"
    path.write_bytes(b"a longer text")
    write_chosen(path, b"text")
    assert path.read_bytes() == b"text"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_longest_name_is_no_obstacle_and_no_neighbour_is_touched(tmp_path):
    (tmp_path / "a.tmp").write_bytes(b"mine")
    write_chosen(tmp_path / "a", b"x")
    write_chosen(tmp_path / ("n" * 255), b"x")
    assert (tmp_path / "a.tmp").read_bytes() == b"mine"


def test_several_may_write_one_file_and_a_reader_sees_all_of_one(tmp_path):
    path = tmp_path / "file"
    texts = [bytes([65 + i]) * 50_000 for i in range(3)]
    write_chosen(path, texts[0])
    writers = [
        threading.Thread(target=lambda text=text: [write_chosen(path, text) for _ in range(20)])
        for text in texts
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in texts
    assert path.read_bytes() in texts
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*: Is a directory"):
        write_chosen(tmp_path, b"x")


def test_a_file_at_the_end_of_a_link_is_replaced_as_a_whole(tmp_path, monkeypatch):
    """A full disk leaves what was there."""

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    monkeypatch.setattr("fedpart.files.os.fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*link: No space left"):
        write_chosen(tmp_path / "link", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert {p.name for p in tmp_path.iterdir()} == {"file", "link"}


def test_a_link_that_leads_nowhere_or_back_is_no_folder_and_no_file(tmp_path):
    (tmp_path / "new").symlink_to("folder/file")
    write_chosen(tmp_path / "new", b"text")
    assert (tmp_path / "folder" / "file").read_bytes() == b"text"
    (tmp_path / "back").symlink_to("back")
    with pytest.raises(OutputError, match=r"cannot write .*back: Too many levels"):
        write_chosen(tmp_path / "back", b"text")


def test_what_lies_beneath_a_file_is_told(tmp_path):
    (tmp_path / "file").touch()
    for name in ("file/x", "file/x/y"):
        with pytest.raises(OutputError, match="Not a directory"):
            write_chosen(tmp_path / name, b"x")


def test_the_reason_is_the_system_s(tmp_path, monkeypatch):
    """A disk that is read only is not a lack of rights."""
    (tmp_path / "file").touch()

    def refuse(path, mode="r", *rest):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OutputError, match="Read-only file system"):
        write_chosen(tmp_path / "file", b"x")


@pytest.mark.parametrize("name", ["", ".", "..", "/"])
def test_what_has_no_name_is_no_file(name):
    with pytest.raises(ConfigError, match="must be the name of a file"):
        check_chosen(Path(name))


OF_A_RUN = (
    *("config.toml", "run.json", "summary.json", "rounds.jsonl", "evaluations.jsonl"),
    *("checkpoint.pt", "model.pt", "curves.csv", "curves.png"),
)


@pytest.mark.parametrize(
    ("marks", "own"),
    [
        (("summary.json", "run.json", "evaluations.jsonl"), OF_A_RUN),
        (("sweep.json",), ("config.toml", "sweep.json", "sweep.png", "table.md")),
        # Of several seeds, or of another program.
        (("config.toml",), ("config.toml",)),
    ],
)
def test_files_of_a_run_are_not_for_the_taking(tmp_path, marks, own):
    for mark in marks:
        (folder := tmp_path / mark).mkdir()
        for name in OF_A_RUN:
            check_chosen(folder / name)
        (folder / mark).touch()
        for name in own:
            (tmp_path / "link").unlink(missing_ok=True)
            (tmp_path / "link").symlink_to(folder / name)
            for path in (folder / name, tmp_path / "link"):
                with pytest.raises(OutputError, match=r"is a file of the run in .*: name another"):
                    check_chosen(path)
        for name in {*OF_A_RUN, "sweep.png", "table.md", "mine.png"} - {*own}:
            check_chosen(folder / name)


def test_a_folder_that_cannot_be_looked_into_is_told_by_writing(tmp_path):
    path = tmp_path / ("d" * 300) / "table.md"
    check_chosen(path)
    with pytest.raises(OutputError, match="File name too long"):
        write_chosen(path, b"x")


def test_standard_output_is_written_to_where_it_is_a_pipe():
    code = "from pathlib import Path; from fedpart.chosen import check_chosen, write_chosen; "
    code += "check_chosen(p := Path('/dev/stdout')); write_chosen(p, b'text')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"text", b"")


def test_what_may_not_be_written_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")
    whole = Path.open

    def refuse(path, mode="r", *rest, **more):
        # As for a file that is read only, in a folder where anything may be made.
        if path.name == "file" and mode != "r":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return whole(path, mode, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(OutputError, match="Permission denied"):
            write_chosen(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
