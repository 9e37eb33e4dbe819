"""Ray's workers give the bits of the plain loop, whoever dies, is late or answers first."""

import contextlib
import functools
import json
import os
import random
import signal
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from test_inline import (
    Recorder,
    assert_same_rounds,
    assert_same_state,
    build,
    federation,
    without,
)

from clients.grid import LocalGrid, inline_grid
from clients.ray_executor import RayExecutor
from clients.ray_grid import ray_grid
from clients.ray_session import RaySession
from clients.ray_worker import Worker
from fedpart import algorithm
from fedpart.cohort import draw_cohort
from fedpart.errors import ConfigError
from fedpart.run_folder import RunFolder
from fedpart.server import initial_state
from strategies.app import run

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def session():
    with RaySession(cpus=4) as ray:
        yield ray


@pytest.fixture(scope="module")
def data():
    return federation()


@pytest.fixture(scope="module")
def program():
    return build()


@pytest.fixture(scope="module")
def reference(program, data):
    recorder = Recorder()
    algorithm.run(program, data, initial_state(program), recorder)
    return recorder.rounds


@pytest.fixture(scope="module")
def workers(session):
    """Two workers that most tests share: another program needs no new process."""
    with contextlib.closing(RayExecutor(session, 2)) as executor:
        yield executor


@pytest.fixture
def pair(workers, program, data):
    """A grid over two workers whose clients do what they should."""
    return over(workers, program, data)


def over(executor: RayExecutor, program, data) -> LocalGrid:
    """A grid for another program, over workers that run already."""
    executor.start(program, data)
    in_clients(executor, lambda task: None)
    return LocalGrid(executor, program.config)


def in_clients(executor, action) -> None:
    """Have workers call ``action(task)`` before a client trains; a new worker does not."""

    def patch(worker: Worker) -> None:
        from fedpart import side_by_side
        from fedpart.client import client_update

        def update(program, task, images, labels):
            action(task)
            return client_update(program, task, images, labels)

        side_by_side.client_update = update

    executor.everywhere(patch)


def is_first(path: Path) -> bool:
    """Whether nobody has asked before, in any process."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def pids(executor) -> list[int]:
    return executor.everywhere(lambda worker: os.getpid())


@pytest.mark.parametrize("number", [1, 3])
def test_same_bits_and_records_with_any_number_of_workers(
    session, program, data, reference, number
):
    recorder = Recorder()
    with ray_grid(program, data, number, session) as grid:
        assert len(set(pids(grid.executor))) == number
        run(program, initial_state(program), recorder, grid)
    assert_same_rounds(recorder.rounds, reference)


@pytest.mark.parametrize("changes", [{"method": "fedavg"}, {"scheme": "node"}])
def test_same_bits_with_other_methods_and_networks(workers, data, changes):
    program = build(**changes)
    loop, over_ray = Recorder(), Recorder()
    algorithm.run(program, data, initial_state(program), loop)
    run(program, initial_state(program), over_ray, over(workers, program, data))
    assert_same_rounds(over_ray.rounds, loop.rounds)


def test_same_bits_whatever_the_order_of_replies(pair, program, reference, monkeypatch):
    rng, run_all, recorder = random.Random(0), pair.executor.run, Recorder()

    def shuffled(work, deadline):
        replies = list(run_all(work, deadline))
        return rng.sample(replies, len(replies))

    monkeypatch.setattr(pair.executor, "run", shuffled)
    run(program, initial_state(program), recorder, pair)
    assert_same_rounds(recorder.rounds, reference)


def test_rounds_jsonl_is_the_same_on_every_back_end(pair, program, data, tmp_path):
    def lines(name, train):
        folder = RunFolder(
            tmp_path / name, program, data, lambda *_: None, evaluate_beside=name == "ray"
        )
        state = initial_state(program)
        folder.create(state, [])
        train(state, folder)
        text = "".join((tmp_path / name / f"{f}.jsonl").read_text() for f in files)
        drop = lambda d: {k: v for k, v in d.items() if k != "seconds"}  # noqa: E731
        return [json.loads(line, object_hook=drop) for line in text.splitlines()]

    files = ("rounds", "evaluations")
    loop = lines("algorithm", lambda s, f: algorithm.run(program, data, s, f))
    inline = lines("inline", lambda s, f: run(program, s, f, inline_grid(program, data)))
    over_ray = lines("ray", lambda s, f: run(program, s, f, pair))
    assert loop == inline == over_ray
    assert len(loop) == 4


def test_a_killed_worker_costs_nobody_anything(workers, data, tmp_path, caplog):
    """SIGKILL in round 2 of 5: all ten clients of every round are there, with the same bits."""
    program = build(clients_per_round=10, rounds=5)
    undisturbed, recorder = Recorder(), Recorder()
    algorithm.run(program, data, initial_state(program), undisturbed)

    def die(mark, task) -> None:
        if (task.server_round, task.client_id) == (2, 4) and is_first(mark):
            os.kill(os.getpid(), signal.SIGKILL)

    grid = over(workers, program, data)
    before = pids(workers)
    in_clients(workers, functools.partial(die, tmp_path / "died"))
    run(program, initial_state(program), recorder, grid)
    after = pids(workers)
    assert_same_rounds(recorder.rounds, undisturbed.rounds)
    assert [len(replies) for _, replies, _, _ in recorder.rounds] == [10] * 5
    assert len(set(after)) == 2
    assert len(set(after) - set(before)) == 1
    (message,) = [r.getMessage() for r in caplog.records]
    assert message.startswith("client 4 runs again: ")
    assert "worker process has died" in message


def test_a_client_that_kills_two_workers_is_the_only_one_to_fail(
    pair, program, data, tmp_path, monkeypatch
):
    client_id = draw_cohort(program.config, 2).clients[1]
    recorder = Recorder()
    tries = tmp_path / "tries"

    def die(task) -> None:
        if (task.server_round, task.client_id) == (2, client_id):
            with tries.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)

    free = pair.executor._free

    def free_and_patch(seat, done):
        job = free(seat, done)
        # A worker that replaces another is a new process: it must die too.
        if job is None:
            in_clients(pair.executor, die)
        return job

    monkeypatch.setattr(pair.executor, "_free", free_and_patch)
    in_clients(pair.executor, die)
    state = run(program, initial_state(program), recorder, pair)
    assert_same_state(state, without(program, data, {2: {client_id}}))
    (failure,) = recorder.rounds[1][2]
    assert failure.client_id == client_id
    assert failure.reason.startswith("its worker died 2 times; at last: ")
    assert tries.read_text() == "xx"


def test_a_client_that_raises_is_not_tried_again(pair, program, data, tmp_path, capfd):
    client_id = draw_cohort(program.config, 2).clients[1]
    tries = tmp_path / "tries"

    def fail(task) -> None:
        if (task.server_round, task.client_id) == (2, client_id):
            with tries.open("a") as file:
                file.write("x")
            raise ArithmeticError("too hot\nreally")

    in_clients(pair.executor, fail)
    recorder = Recorder()
    state = run(program, initial_state(program), recorder, pair)
    assert_same_state(state, without(program, data, {2: {client_id}}))
    (failure,) = recorder.rounds[1][2]
    assert failure.client_id == client_id
    assert failure.reason.startswith("ArithmeticError: too hot (test_ray.py, line ")
    assert tries.read_text() == "x"
    assert capfd.readouterr() == ("", "")


def test_who_is_late_is_missing_and_the_next_round_is_whole(workers, data, tmp_path):
    program = build(round_timeout=2.0)
    client_id = draw_cohort(program.config, 1).clients[0]
    release = tmp_path / "release"

    def wait(task) -> None:
        if (task.server_round, task.client_id) == (1, client_id):
            while not release.exists():
                time.sleep(0.02)

    class Release(Recorder):
        def after_round(self, *told) -> None:
            super().after_round(*told)
            release.touch()

    recorder = Release()
    grid = over(workers, program, data)
    in_clients(workers, wait)
    state = run(program, initial_state(program), recorder, grid)
    assert_same_state(state, without(program, data, {1: {client_id}}))
    failures = [[(f.client_id, f.reason) for f in r[2]] for r in recorder.rounds]
    assert failures == [[(client_id, "no reply within 2 s")], [], []]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_share_one_copy_of_the_images(workers):
    big = np.random.default_rng(0).integers(0, 256, (20_000, 1, 28, 28), dtype=np.uint8)
    data = replace(federation(), val_images=big)
    expected = data.data_hash

    def where(worker: Worker) -> tuple[bool, str, int]:
        from clients.app import _built

        ((_, mine),) = _built.values()
        assert type(mine)(**{f.name: getattr(mine, f.name) for f in fields(mine)}).data_hash == (
            expected
        )
        address = mine.val_images.__array_interface__["data"][0]
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(x, 16) for x in line.split()[0].split("-"))
            if first <= address < last:
                return mine.val_images.flags.writeable, line.split()[1], int(line.split()[4])
        raise AssertionError("not mapped")

    workers.start(build(), data)
    (writeable, mode, inode), other = workers.everywhere(where)
    assert other == (writeable, mode, inode)
    assert not writeable
    assert mode.endswith("s")
    assert inode


def test_more_workers_than_ray_has_cpus_are_refused(session, program, data):
    with (
        pytest.raises(ConfigError, match="workers is 5, but Ray has 4 CPUs"),
        ray_grid(program, data, 5, session),
    ):
        pass


def test_a_model_that_workers_cannot_find_is_explained(session, program, data):
    lost = build(model="mnist-cnn")
    lost = replace(lost, config=lost.config.model_copy(update={"model": "no_such_module:cnn"}))
    with (
        pytest.raises(ConfigError, match=r"workers cannot get ready: model 'no_such_module:cnn'"),
        ray_grid(lost, data, 1, session),
    ):
        pass
