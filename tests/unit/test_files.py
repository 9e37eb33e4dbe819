"""Files that somebody names by ``--out``."""

import os
from pathlib import Path

import pytest

from fedpart.errors import ConfigError, OutputError
from fedpart.files import PICTURES, check_out, write_out


def test_a_file_and_its_folders_are_made_and_the_file_is_replaced(tmp_path):
    place = tmp_path / "new" / "deep" / "table.md"
    for content in (b"first", b"second"):
        write_out(place, content)
        assert place.read_bytes() == content
    assert os.listdir(place.parent) == ["table.md"]


def test_the_file_at_the_end_of_a_link_is_written_and_the_link_stays(tmp_path):
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_out(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_what_the_disk_refuses_leaves_the_old_file_whole(tmp_path, monkeypatch):
    place = tmp_path / "table.md"
    place.write_bytes(b"old")

    def full(handle):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"table\.md: No space left on device"):
        write_out(place, b"new")
    assert place.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.md"]


def test_what_cannot_be_a_file_is_refused(tmp_path):
    for name in ("", ".."):
        with pytest.raises(ConfigError, match="it must be the name of a file"):
            check_out(Path(name))
    with pytest.raises(ConfigError, match=r"its name must end in \.png or \.svg"):
        check_out(Path("curves.jpg"), PICTURES)
    with pytest.raises(OutputError, match="Is a directory"):
        check_out(tmp_path)
    check_out(tmp_path / "curves.svg", PICTURES)
