"""A run folder survives its process: ended at any operation on the disk, it is taken up again.

``Disk`` stands between the run and the file system and ends it at one chosen operation: a write is
cut in half, and after a kill nothing that is tried later happens. The tests go through all
operations.
"""

import contextlib
import errno
import fcntl
import json
import os
from dataclasses import fields, replace
from itertools import accumulate
from pathlib import Path

import pytest
import tiny
import torch
from compare_commits import timeless

from fedpart import algorithm, checkpoint, files, folder_lock, machine, run_files
from fedpart.accounting import BYTES
from fedpart.client import client_update
from fedpart.errors import BusyError, ClientFailure, DivergedError, OutputError
from fedpart.evaluator import Evaluator
from fedpart.folder_lock import is_kept, kept, lock_run
from fedpart.program import Program
from fedpart.run_files import check_free, ended_well, read_lines
from fedpart.run_folder import RunFolder
from fedpart.server import ServerState, initial_state

COMMAND = ["sim.py"]
SETTINGS = {
    "rounds": 5,
    "eval_every": 2,
    "checkpoint_every": 2,
    "clients_per_round": 2,
    "batch_size": 64,
}


class Killed(BaseException):
    """``kill -9``, as far as the disk can tell."""


class File:
    """An open file whose writes are operations of the disk."""

    def __init__(self, file, disk: "Disk") -> None:
        self.file, self.disk = file, disk

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        try:
            self.disk.operation()
        except BaseException:
            self.file.write(data[: len(data) // 2])
            self.file.flush()
            raise
        return self.file.write(data)


class Disk:
    """Every operation on paths and files, counted; the one numbered ``ends_at`` raises.

    Attributes:
        count: operations so far.
        synced: file -> its size when it was last synced.
    """

    def __init__(self, patch: pytest.MonkeyPatch, ends_at: int, end: type[BaseException]) -> None:
        self.count, self.ends_at, self.end = 0, ends_at, end
        self.synced: dict[Path, int] = {}
        for name in ("replace", "unlink", "mkdir", "touch"):
            patch.setattr(Path, name, self._counted(getattr(Path, name)))
        open_, sync = Path.open, files.sync

        def opened(path, mode="r", *args, **kwargs):
            if "r" in mode:
                return open_(path, mode, *args, **kwargs)
            self.operation()
            return File(open_(path, mode, *args, **kwargs), self)

        def synced(path):
            self.operation()
            sync(path)
            self.synced[path] = path.stat().st_size

        patch.setattr(Path, "open", opened)
        patch.setattr(files, "sync", synced)

    def operation(self) -> None:
        self.count += 1
        if self.count == self.ends_at or (self.ended and self.end is Killed):
            raise self.end

    @property
    def ended(self) -> bool:
        return self.count >= self.ends_at

    def _counted(self, call):
        def counted(*args, **kwargs):
            self.operation()
            return call(*args, **kwargs)

        return counted


_replies: dict[tuple, object] = {}


def remembered(program, task, images, labels):
    """``client_update``, computed once for the same settings, instruction, weights and psi."""
    state = (task.theta.numpy().tobytes(), task.hyper.numpy().tobytes())
    key = (program.config.config_hash, task.server_round, task.client_id, *state)
    if key not in _replies:
        _replies[key] = client_update(program, task, images, labels)
    return _replies[key]


def draw(folder: Path) -> None:
    """Drawing takes as long as the rest together; that a picture is there is all that counts."""
    (folder / "curves.png").write_bytes(b"x")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """These tests run the same rounds some hundred times: leave out what they are not about."""
    monkeypatch.setattr("fedpart.side_by_side.client_update", remembered)
    monkeypatch.setattr("fedpart.machine.commit", lambda: None)
    versions = machine.versions()
    monkeypatch.setattr("fedpart.machine.versions", lambda: versions)
    # The real one takes most of the time, and shows in a power cut only.
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def program() -> Program:
    return tiny.program(**SETTINGS)


def folder_of(path, program, data) -> RunFolder:
    return RunFolder(path, program, data, lambda record, evaluations: None)


def start(path, program, data) -> None:
    state = initial_state(program)
    work(path, program, data, lambda folder: folder.create(state, COMMAND) or state)


def resume(path, program, data) -> None:
    work(path, program, data, RunFolder.resume)


def work(path, program, data, begin) -> None:
    """A run from its beginning or from a checkpoint to its end, as ``sim.py`` goes about it."""
    folder = folder_of(path, program, data)
    try:
        algorithm.run(program, data, begin(folder), folder)
        folder.finish(draw)
    except KeyboardInterrupt:
        folder.close("interrupted", 130)
        raise
    finally:
        tiny.release(folder)


def outcome(path: Path) -> dict[str, object]:
    """All that two equal runs agree on, as it lies on the disk."""
    state, extra = checkpoint.load(path / "checkpoint.pt")
    model = torch.load(path / "model.pt", weights_only=True)
    info = json.loads((path / "run.json").read_text())
    return {
        "files": sorted(p.name for p in path.iterdir()),
        "rounds": timeless(read_lines(path / "rounds.jsonl")),
        "evaluations": timeless(read_lines(path / "evaluations.jsonl")),
        "summary": timeless(json.loads((path / "summary.json").read_text())),
        "state": {f.name: plain(getattr(state, f.name)) for f in fields(ServerState)},
        "bytes": extra["bytes"],
        "origin": extra["origin"],
        "model": {n: plain(t) for n, t in model["model"].items()},
        "psi": plain(model["hyper"]),
        "exit": (info["exit"], info["exit_code"], info["data_hash"]),
    }


def plain(value):
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


@pytest.fixture(scope="module")
def whole(program, small_data, tmp_path_factory) -> dict[str, object]:
    """The outcome of a run without a break."""
    path = tmp_path_factory.mktemp("whole") / "run"
    start(path, program, small_data)
    return outcome(path)


def ended(action, ends_at: int, end: type[BaseException], *args) -> tuple[bool, dict[Path, int]]:
    """Whether ``action`` ended at its ``ends_at``-th operation, and file sizes as last synced."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, ends_at, end)
        with contextlib.suppress(end):
            action(*args)
        return disk.ended, disk.synced


def take_up(path, program, data) -> None:
    """As a user would: start where nothing has begun, else resume."""
    if (path / "config.toml").exists():
        with pytest.raises(OutputError, match="go on with it by --resume"):
            check_free(path)
        resume(path, program, data)
    else:
        check_free(path)
        start(path, program, data)


def interrupted(path, program, data, rounds: int) -> None:
    """A run that stops after some rounds, with its last checkpoint where the settings put it."""
    folder = folder_of(path, program, data)

    def stop(record, evaluations):
        if record.round == rounds:
            raise KeyboardInterrupt

    folder.on_round = stop
    state = initial_state(program)
    folder.create(state, COMMAND)
    with pytest.raises(KeyboardInterrupt):
        algorithm.run(program, data, state, folder)
    tiny.release(folder)


def test_totals_are_sums_over_all_rounds(whole):
    """Of bytes, in every record of a round and in the summary."""
    for name in BYTES:
        sums = list(accumulate(r[name] for r in whole["rounds"]))
        assert 0 < sums[0] < sums[-1]
        assert [r[f"cumulative_{name}"] for r in whole["rounds"]] == sums
        assert whole["summary"][name] == sums[-1]


def test_time_and_memory_are_those_of_all_processes_of_a_run(program, small_data, tmp_path):
    """A resume adds its seconds to those of the checkpoint, and keeps a higher peak."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    state, extra = checkpoint.load(path / "checkpoint.pt")
    assert 0 < extra["seconds"] < 1000
    before = {"seconds": 1000.0, "peak_rss_bytes": 1 << 60}
    checkpoint.save(path / "checkpoint.pt", state, extra | before)
    resume(path, program, small_data)
    summary = json.loads((path / "summary.json").read_text())
    assert 1000 < summary["seconds"] < 2000
    assert summary["peak_rss_bytes"] == 1 << 60


def test_a_resume_with_other_settings_or_data_changes_nothing(program, small_data, tmp_path):
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    for built, data, words in (
        (tiny.program(**SETTINGS | {"client_lr": 0.5}), small_data, "other settings: client-lr"),
        (program, replace(small_data, labels=small_data.labels[::-1].copy()), "other data: the ha"),
    ):
        folder = folder_of(path, built, data)
        with pytest.raises(OutputError, match=f"began with {words}"):
            folder.resume()
        folder.close("error", 4)
        assert {p.name: p.read_bytes() for p in path.iterdir()} == before


class Struck(Evaluator):
    """Ctrl-C comes as an evaluation begins, before its round is wholly recorded."""

    def begin(self, pending):
        super().begin(pending)
        raise KeyboardInterrupt


def test_an_evaluation_of_a_round_that_is_not_recorded_comes_again_with_it(
    program, small_data, whole, tmp_path, monkeypatch
):
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("fedpart.run_folder.Evaluator", Struck)
        with pytest.raises(KeyboardInterrupt):
            start(path, program, small_data)
    assert checkpoint.load(path / "checkpoint.pt")[0].server_round == 1
    resume(path, program, small_data)
    assert outcome(path) == whole


class Late(Evaluator):
    """Beside the rounds, and done only when somebody waits: as late as can be, with no thread."""

    def record(self, wait: bool):
        return super().record(wait) if wait else None


@pytest.mark.parametrize("evaluator", [Evaluator, Late])
@pytest.mark.parametrize("how", ["kill", "power cut", "Ctrl-C"])
def test_ended_at_any_operation_a_run_becomes_what_it_would_have_been(
    program, small_data, whole, tmp_path, monkeypatch, how, evaluator
):
    """From the making of the folder to its last file.

    A power cut also takes what is not synced; after Ctrl-C, the folder is closed in order.
    """
    monkeypatch.setattr("fedpart.run_folder.Evaluator", evaluator)
    # Of no outcome, and half the time: it walks the pages of all processes.
    monkeypatch.setattr("fedpart.machine.peak_rss", lambda: 1)
    end = KeyboardInterrupt if how == "Ctrl-C" else Killed
    ends_at, again = 0, True
    while again:
        ends_at += 1
        path = tmp_path / str(ends_at)
        again, synced = ended(start, ends_at, end, path, program, small_data)
        if how == "power cut":
            for file in path.glob("*.jsonl"):
                os.truncate(file, synced.get(file, 0))
        if again and not ended_well(path):
            take_up(path, program, small_data)
        assert outcome(path) == whole, f"ended at operation {ends_at}"
    assert ends_at > 50


def test_killed_again_while_it_is_taken_up(program, small_data, whole, tmp_path):
    """At any operation of the resume, which cuts the records back before it goes on."""
    ends_at, again = 0, True
    while again:
        ends_at += 1
        path = tmp_path / str(ends_at)
        # While the checkpoint of round 4 is written, with that of round 2 beside it.
        assert ended(start, 50, Killed, path, program, small_data)[0]
        assert checkpoint.load(path / "checkpoint.pt")[0].server_round == 2
        assert len(read_lines(path / "rounds.jsonl")) == 4
        again, _ = ended(resume, ends_at, Killed, path, program, small_data)
        if again and not ended_well(path):
            resume(path, program, small_data)
        assert outcome(path) == whole, f"ended at operation {ends_at}"
    assert ends_at > 20


def test_what_follows_the_checkpoint_may_be_damaged(program, small_data, whole, tmp_path):
    """Also by half a character, which is no UTF-8: only lines up to the checkpoint are read."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    for name in ("rounds", "evaluations"):
        with (path / f"{name}.jsonl").open("ab") as file:
            file.write(b'\0\0\0\n{"round": 4, "reason": "caf\xc3')
    resume(path, program, small_data)
    assert outcome(path) == whole


@pytest.mark.parametrize("name", ["rounds", "evaluations"])
def test_records_that_a_checkpoint_builds_on_must_be_there(program, small_data, tmp_path, name):
    """A line that is missing, and one that is damaged; nothing is changed."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 4)
    file = path / f"{name}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for content, words in (
        (lines[1:], "lacks records"),
        ([b"{\n", *lines[1:]], "is damaged in line 1"),
        ([b'{"round": 1}\n', *lines[1:]], r"is damaged in line 1 \("),
    ):
        file.write_bytes(b"".join(content))
        before = {p.name: p.read_bytes() for p in path.iterdir()}
        folder = folder_of(path, program, small_data)
        with pytest.raises(OutputError, match=f"{file} {words}"):
            folder.resume()
        assert folder.close("error", 4) is None
        assert {p.name: p.read_bytes() for p in path.iterdir()} == before


def test_a_damaged_run_json_is_named(program, small_data, tmp_path):
    """Cut, or of no run."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    for text in ('{"name": ', "{}"):
        (path / "run.json").write_text(text)
        folder = folder_of(path, program, small_data)
        with pytest.raises(OutputError, match=rf"{path / 'run.json'} is damaged \("):
            folder.resume()
        folder.close("error", 4)
        assert (path / "run.json").read_text() == text


def test_a_lost_checkpoint_does_not_throw_rounds_away(program, small_data, tmp_path):
    """Where rounds are on record, their absence of a checkpoint is an error and no new start."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    (path / "checkpoint.pt").unlink()
    folder = folder_of(path, program, small_data)
    with pytest.raises(OutputError, match=r"cannot read checkpoint .*checkpoint\.pt"):
        folder.resume()
    folder.close("error", 4)
    assert len(read_lines(path / "rounds.jsonl")) == 3


def test_one_process_at_a_time(program, small_data, whole, tmp_path):
    """A second resume is refused while the first works, and changes nothing."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    other = lock_run(path)
    folder = folder_of(path, program, small_data)
    with pytest.raises(OutputError, match="another process is working on"):
        folder.resume()
    folder.close("error", 4)
    os.close(other)
    resume(path, program, small_data)
    assert outcome(path) == whole


@pytest.mark.parametrize("ended_already", [False, True])
def test_of_two_that_start_at_once_one_is_refused_and_changes_nothing(
    program, small_data, whole, tmp_path, monkeypatch, ended_already
):
    """Both have found the folder empty; the other is at work in it, or has come to its end."""
    path = tmp_path / "run"
    lock, state = run_files.lock_run, initial_state(program)
    first, second = (folder_of(path, program, small_data) for _ in range(2))

    def overtaken(folder):
        monkeypatch.setattr(run_files, "lock_run", lock)
        first.create(state, COMMAND)
        if ended_already:
            algorithm.run(program, small_data, state, first)
            first.finish(draw)
        return lock(folder)

    monkeypatch.setattr(run_files, "lock_run", overtaken)
    with pytest.raises(OutputError, match="is not empty" if ended_already else "another process"):
        second.create(state, COMMAND)
    assert second.close("error", 4) is None
    if not ended_already:
        algorithm.run(program, small_data, state, first)
        first.finish(draw)
    assert outcome(path) == whole


def test_an_empty_folder_that_another_process_keeps_is_its_own(tmp_path):
    with kept(tmp_path), pytest.raises(BusyError, match="wait for its end, or stop it"):
        run_files.claim_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_who_only_asks_for_a_folder_refuses_nobody(tmp_path, monkeypatch):
    """A resume outlasts the moment for which another process keeps the folder to see."""
    monkeypatch.setattr(folder_lock, "_LOOK", 0)
    asking, looks = [lock_run(tmp_path)], []

    def look(_):
        assert is_kept(tmp_path)
        looks.append(asking.pop())
        os.close(looks[-1])

    monkeypatch.setattr(folder_lock.time, "sleep", look)
    os.close(lock_run(tmp_path))
    assert len(looks) == 1
    asking.append(lock_run(tmp_path))
    with kept(tmp_path):
        assert is_kept(tmp_path)
    assert not is_kept(tmp_path)
    # Nor do two that ask see each other.
    handle = lock_run(tmp_path, shared=True)
    assert not is_kept(tmp_path)
    os.close(handle)
    assert not is_kept(tmp_path / "none")


def test_a_folder_that_is_refused_is_free_for_others(tmp_path, monkeypatch):
    """Whoever came too late does not keep it."""
    lock = run_files.lock_run

    def late(path):
        (path / "config.toml").touch()
        return lock(path)

    monkeypatch.setattr(run_files, "lock_run", late)
    with pytest.raises(OutputError, match="is not empty"):
        run_files.claim_folder(tmp_path / "run")
    os.close(lock(tmp_path / "run"))


def test_a_file_system_without_locks_will_do(program, small_data, whole, tmp_path, monkeypatch):
    """Some network file systems have none; a folder without settings cannot be kept at all."""

    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    start(tmp_path / "run", program, small_data)
    assert outcome(tmp_path / "run") == whole
    with pytest.raises(OutputError, match=r"cannot read .*nowhere"):
        lock_run(tmp_path / "nowhere")


def test_records_that_do_not_add_up_to_the_checkpoints_bytes_are_refused(
    program, small_data, tmp_path
):
    """A total that somebody has changed, and a line that is no round; nothing is overwritten."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    file = path / "rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    number = json.loads(lines[1])["cumulative_upload_wire_bytes"]
    changed = lines[1].replace(f'wire_bytes":{number}', f'wire_bytes":{number + 1}')
    for line, words in ((changed, "bytes recorded are not those"), ('{"round":2}\n', "damaged")):
        text = "".join([lines[0], line, *lines[2:]])
        file.write_text(text)
        folder = folder_of(path, program, small_data)
        with pytest.raises(OutputError, match=words):
            folder.resume()
        folder.close("error", 4)
        assert file.read_text() == text


def test_other_versions_are_a_warning(program, small_data, whole, tmp_path, monkeypatch):
    """They are named with both numbers, and the run goes on."""
    path = tmp_path / "run"
    interrupted(path, program, small_data, 3)
    now = machine.versions() | {"torch": "99.0"}
    with monkeypatch.context() as patch:
        patch.setattr(machine, "versions", lambda: now)
        folder = folder_of(path, program, small_data)
        folder.resume()
        folder.close("interrupted", 130)
    (warning,) = folder.warnings
    before = whole["origin"]["versions"]["torch"]
    assert warning.startswith(f"torch was {before} and is 99.0 now: numbers may differ")


def fail_in(monkeypatch, rounds: set[int]) -> None:
    """Make every client of these rounds raise."""

    def failing(program, task, images, labels):
        if task.server_round in rounds:
            raise ArithmeticError("too hot")
        return client_update(program, task, images, labels)

    monkeypatch.setattr("fedpart.side_by_side.client_update", failing)


def test_empty_rounds_are_counted_over_a_resume(program, small_data, tmp_path, monkeypatch):
    """Two before a break and one after it are three in a row; a good round starts anew."""
    built = tiny.program(**SETTINGS | {"rounds": 8})
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_in(patch, {1, 3, 4, 5})
        interrupted(path, built, small_data, 4)
        folder = folder_of(path, built, small_data)
        state = folder.resume()
        words = r"in 3 rounds in a row; in round 5, client \d+: ArithmeticError: too hot \("
        with pytest.raises(ClientFailure, match=words):
            algorithm.run(built, small_data, state, folder)
        assert folder.close("failed", 5) == 5
    rounds = read_lines(path / "rounds.jsonl")
    assert [r["upload_fraction"] is None for r in rounds] == [True, False, True, True, True]
    # The cause is mended: it goes on after the empty rounds, which stay on record.
    resume(path, built, small_data)
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["failures"], summary["empty_rounds"]) == (8, 4)
    assert [r["round"] for r in read_lines(path / "rounds.jsonl")] == list(range(1, 9))


@pytest.mark.parametrize(
    ("psi", "says"),
    [
        (float("nan"), "psi is nan after round 1 with hyper-lr 0.003: start anew with a smaller"),
        (-32.0, r"rotation in natural units is -101 after round 1 with hyper-lr"),
    ],
)
def test_a_psi_that_ran_away_ends_the_run_before_it_is_recorded(
    program, small_data, tmp_path, psi, says
):
    folder, state = folder_of(tmp_path / "run", program, small_data), initial_state(program)
    folder.create(state, COMMAND)
    hyper = state.hyper.clone()
    hyper[0] = 31.0
    state = replace(state, server_round=1, hyper=hyper)
    folder.after_round(state, [], [], {}, 0.1)
    hyper[0] = psi
    with pytest.raises(DivergedError, match=says):
        folder.after_round(state, [], [], {}, 0.1)
    assert len(read_lines(tmp_path / "run/rounds.jsonl")) == 1
    tiny.release(folder)


def test_a_run_without_any_reply_fails_and_stays_so(small_data, tmp_path, monkeypatch):
    """However patient the user is: nothing was learned, and a resume has no round left to do so."""
    built = tiny.program(**SETTINGS | {"max_empty_rounds": 9})
    path = tmp_path / "run"
    folder, state = folder_of(path, built, small_data), initial_state(built)
    with monkeypatch.context() as patch:
        fail_in(patch, set(range(1, 6)))
        folder.create(state, COMMAND)
        with pytest.raises(ClientFailure, match="no reply counted in 5 rounds in a row"):
            algorithm.run(built, small_data, state, folder)
    assert folder.close("failed", 5) == 5
    tiny.release(folder)
    with pytest.raises(ClientFailure, match="no reply counted in any of 5 rounds"):
        resume(path, built, small_data)
    assert not (path / "summary.json").exists()
    state, _ = checkpoint.load(path / "checkpoint.pt")
    assert torch.equal(state.theta, built.initial)


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ("evaluations.jsonl", r"cannot read checkpoint .*checkpoint\.pt"),
        ("summary.json", "is finished, all 5 rounds of it"),
        ("rounds.jsonl", r"cannot read checkpoint .*checkpoint\.pt"),
    ],
)
def test_results_without_their_checkpoint_are_not_begun_anew(
    program, small_data, tmp_path, kept, says
):
    """A folder that holds what a run gave, and no more, is refused and stays as it is."""
    start(tmp_path / "run", program, small_data)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.toml", kept):
        (copy / name).write_bytes((tmp_path / "run" / name).read_bytes())
    before = {p.name: p.read_bytes() for p in copy.iterdir()}
    folder = folder_of(copy, program, small_data)
    with pytest.raises(OutputError, match=says):
        folder.resume()
    tiny.release(folder)
    assert {p.name: p.read_bytes() for p in copy.iterdir() if p.name in before} == before
