"""How clients are handed out to workers, with a Ray that answers at once or when it is told to."""

import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import Future

import numpy as np
import pytest
import tiny
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from clients.grid import CLIENT_APP_RAISED, LocalGrid
from clients.ray_executor import CLIENT_APP_CRASHED, RayExecutor, _death
from clients.ray_grid import expected_work
from clients.ray_worker import Worker
from fedpart.errors import ClientFailure, ConfigError
from fedpart.machine import code_id
from fedpart.server import assign_chunks, initial_state
from strategies.strategy import PartitionedStrategy

pytest.importorskip("ray")


class FakeRay:
    """As much of Ray as an executor uses; ``script`` answers what workers are asked.

    Attributes:
        log: ("put", record), ("start", worker), ("hold", worker, number), ("kill", worker) or
            ("ask", worker, client).
        held: answers that wait for the test.
    """

    class exceptions:  # noqa: N801
        RayError = type("RayError", (Exception,), {})
        RayTaskError = type("RayTaskError", (RayError,), {})

    def __init__(self, script) -> None:
        self.script, self.log, self.held = script, [], {}
        self.ray, self.workers = self, 0

    def submit(self, function):
        done = Future()
        done.set_result(function())
        return done

    def call(self, function):
        return function()

    def put(self, thing):
        self.log.append(("put", thing))
        return thing

    def kill(self, actor):
        self.log.append(("kill", actor.number))
        for future in actor.busy:
            if not future.done():
                future.set_exception(self.exceptions.RayError("killed"))

    def remote(self, cls):
        return self

    def options(self, **options):
        ray = self

        class ActorClass:
            @staticmethod
            def remote():
                ray.workers += 1
                return FakeActor(ray, ray.workers)

        return ActorClass


class FakeActor:
    def __init__(self, ray, number) -> None:
        self.ray, self.number, self.busy = ray, number, []
        self.prepare, self.hold, self.answer = (
            type("Method", (), {"remote": staticmethod(f)})
            for f in (self._prepare, self._hold, self._answer)
        )

    def _prepare(self, path, settings, data, code):
        self.ray.log.append(("start", self.number))
        return self._result(lambda: self.ray.script(self.number, None))

    def _hold(self, batch, number, record):
        self.ray.log.append(("hold", self.number, number))

    def _answer(self, work, at_once):
        ((message, context, _),) = work
        client_id = context.node_config["partition-id"]
        self.ray.log.append(("ask", self.number, client_id))

        def work():
            answer = self.ray.script(self.number, client_id)
            if isinstance(answer, Future):
                return answer
            return [(Message(RecordDict(), reply_to=message), context.state)]

        return self._result(work)

    def _result(self, work):
        future = Future()
        try:
            answer = work()
            if isinstance(answer, Future):
                future = answer
            else:
                future.set_result(answer)
        except Exception as error:
            future.set_exception(error)
        self.busy.append(future)
        return type("Ref", (), {"future": lambda self: future})()


@pytest.fixture(scope="module")
def program():
    return tiny.program()


@pytest.fixture(scope="module")
def data():
    return tiny.data()


@pytest.fixture
def executor(program, data):
    """Make an executor over a fake Ray that follows a script."""

    def make(script=lambda worker, client_id: None, workers=1) -> RayExecutor:
        made = RayExecutor(FakeRay(script), workers, cost=expected_work(program, data))
        made.start(program, data)
        return made

    return make


def note(client_id: int, chunk: int = 0, **records) -> Message:
    config = ConfigRecord({"chunk": chunk})
    return Message(RecordDict({"config": config, **records}), client_id + 2, "train")


def asked(executor) -> list[int]:
    return [entry[2] for entry in executor.session.log if entry[0] == "ask"]


def grid(executor, program) -> LocalGrid:
    return LocalGrid(executor, program.config)


def clients(replies) -> list[int]:
    return [reply.metadata.src_node_id - 2 for reply in replies]


def test_the_longest_come_first(executor, program, data):
    made = executor()
    chunks = assign_chunks(program.config)
    grid(made, program).send_and_receive([note(i, int(chunks[i])) for i in range(10)])
    sizes = np.array([len(index) for index in data.client_indices])
    # Three partitions: a client of chunk 1 or 2 passes its images 2 or 1 times, and once for psi.
    passes = np.array([3, 3, 2])[chunks]
    assert asked(made) == list(np.argsort(-(sizes * passes), kind="stable"))


def test_arrays_are_put_once_for_all_clients(executor, program):
    made = executor()
    shared = ArrayRecord({"theta": Array(np.zeros(3, np.float32))})
    own = ArrayRecord({"theta": Array(np.ones(3, np.float32))})
    messages = [note(0, arrays=shared), note(1, arrays=shared), note(2, arrays=own)]
    made.session.log.clear()
    grid(made, program).send_and_receive(messages)
    put = [entry[1] for entry in made.session.log if entry[0] == "put"]
    assert [id(record) for record in put] == [id(shared), id(own)]
    # The worker is given each once, before the first client that needs it.
    assert [entry[0] for entry in made.session.log[2:]] == ["hold", "ask", "hold", "ask", "ask"]
    # What the server has sent stays whole: it is measured afterwards.
    assert all("arrays" in message.content for message in messages)


def test_a_client_whose_worker_dies_runs_once_more(executor, program, caplog):
    deaths = iter([True])

    def script(worker, client_id):
        if client_id == 3 and next(deaths, False):
            raise FakeRay.exceptions.RayError("gone\nThe actor is dead: Worker exit type: CRASH.")

    made = executor(script, workers=2)
    replies = grid(made, program).send_and_receive([note(i) for i in range(6)])
    assert sorted(clients(replies)) == list(range(6))
    assert not any(reply.has_error() for reply in replies)
    assert asked(made).count(3) == 2
    assert made.session.workers == 3
    assert [r.message for r in caplog.records] == [
        "client 3 runs again: The actor is dead: Worker exit type: CRASH."
    ]


def test_a_second_death_is_that_clients_failure_and_nobody_elses(executor, program):
    def script(worker, client_id):
        if client_id == 3:
            raise FakeRay.exceptions.RayError("Worker exit type: OUT_OF_MEMORY")

    made = executor(script, workers=2)
    replies = grid(made, program).send_and_receive([note(i) for i in range(6)])
    failed = [reply for reply in replies if reply.has_error()]
    assert clients(failed) == [3]
    assert failed[0].error.code == CLIENT_APP_CRASHED
    assert failed[0].error.reason == (
        "its worker died 2 times; at last: Worker exit type: OUT_OF_MEMORY"
    )
    assert sorted(clients(replies)) == list(range(6))
    assert asked(made).count(3) == 2
    # Both dead workers are replaced.
    assert made.session.workers == 4


def test_a_reply_that_cannot_be_sent_is_an_error_at_once(executor, program):
    def script(worker, client_id):
        if client_id == 3:
            raise FakeRay.exceptions.RayTaskError("TypeError: cannot pickle")

    made = executor(script)
    replies = grid(made, program).send_and_receive([note(i) for i in range(5)])
    (failed,) = [reply for reply in replies if reply.has_error()]
    assert (failed.error.code, failed.error.reason) == (
        CLIENT_APP_RAISED,
        "TypeError: cannot pickle",
    )
    assert asked(made).count(3) == 1
    assert made.session.workers == 1


def test_no_client_starts_after_the_deadline(executor, program):
    made = executor(lambda worker, client_id: None if client_id is None else time.sleep(0.05))
    replies = grid(made, program).send_and_receive([note(i) for i in range(5)], timeout=0.01)
    assert (replies, len(asked(made))) == ([], 1)


def test_who_is_late_is_not_heard_and_keeps_the_worker_for_one_more_deadline(executor, program):
    never = Future()
    made = executor(lambda worker, client_id: never if client_id == 9 else None, workers=2)
    over = grid(made, program)
    messages = [note(i) for i in range(10)]
    assert sorted(clients(over.send_and_receive(messages, timeout=0.2))) == list(range(9))
    # The other worker does all; the first is still at client 9.
    made.session.log.clear()
    assert sorted(clients(over.send_and_receive(messages[:3], timeout=5))) == [0, 1, 2]
    assert len({entry[1] for entry in made.session.log if entry[0] == "ask"}) == 1
    assert made.session.workers == 2
    # Not ready when another deadline passes: the worker is killed, and replaced in the next round.
    assert over.send_and_receive([note(9)], timeout=0.1) == []
    assert ("kill", 1) in made.session.log
    assert sorted(clients(over.send_and_receive(messages[:3], timeout=5))) == [0, 1, 2]
    assert made.session.workers > 2


def test_a_late_reply_is_thrown_away_and_its_state_too(executor, program):
    late = Future()
    made = executor(lambda worker, client_id: late if client_id == 9 else None, workers=2)
    over = grid(made, program)
    assert clients(over.send_and_receive([note(9), note(1)], timeout=0.2)) == [1]
    late.set_result([(Message(RecordDict(), reply_to=note(9)), RecordDict({"m": MetricRecord()}))])
    assert sorted(clients(over.send_and_receive([note(1), note(2)], timeout=5))) == [1, 2]
    assert over._states == {}


def test_workers_that_cannot_get_ready_say_why(executor):
    def script(worker, client_id):
        raise FakeRay.exceptions.RayTaskError(
            'Traceback:\n  File "/x/mine.py", line 3, in cnn\n    x\nModuleNotFoundError: mine'
        )

    with pytest.raises(ConfigError) as caught:
        executor(script)
    assert str(caught.value) == (
        "workers cannot get ready: ModuleNotFoundError: mine (mine.py, line 3, in cnn)"
    )


def test_workers_that_die_as_they_start_end_the_run(executor):
    def script(worker, client_id):
        raise FakeRay.exceptions.RayError("no memory")

    with pytest.raises(ClientFailure, match="workers die before they are ready: no memory"):
        executor(script, workers=2)


def test_workers_that_do_not_come_are_not_waited_for_without_end(executor, monkeypatch):
    monkeypatch.setattr("clients.ray_executor._START_SECONDS", 0.05)
    with pytest.raises(ConfigError, match="workers is 2, but only 1 were ready after"):
        executor(lambda worker, client_id: Future() if worker == 2 else None, workers=2)


def test_ctrl_c_leaves_the_wait_at_once(executor, program):
    made = executor(lambda worker, client_id: None if client_id is None else Future())
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        grid(made, program).send_and_receive([note(1)], timeout=20)
    assert time.monotonic() - started < 5


def test_state_of_a_client_comes_back(program, data):
    class Stateful(FakeRay):
        pass

    def script(worker, client_id):
        if client_id is None:
            return None
        done = Future()
        state = RecordDict({"count": MetricRecord({"n": client_id})} if client_id % 2 else {})
        done.set_result([(Message(RecordDict(), reply_to=note(client_id)), state)])
        return done

    made = RayExecutor(Stateful(script), 1)
    made.start(program, data)
    over = grid(made, program)
    over.send_and_receive([note(i) for i in range(4)])
    assert {node: state["count"]["n"] for node, state in over._states.items()} == {3: 1, 5: 3}


def test_a_closed_executor_keeps_nothing_of_rays(program, data):
    """Ray's ids begin anew with every session: freeing an old one frees the new one's object."""
    kept: weakref.WeakSet = weakref.WeakSet()

    class Putting(FakeRay):
        def put(self, thing):
            reference = type("Reference", (), {})()
            kept.add(reference)
            return reference

    made = RayExecutor(Putting(lambda worker, client_id: None), 2)
    made.start(program, data)
    weights = ArrayRecord([np.zeros(3, np.float32)])
    grid(made, program).send_and_receive([note(i, arrays=weights) for i in range(4)])
    assert len(kept) == 2
    made.close()
    assert not kept


def test_a_worker_answers_as_this_process_does(data, monkeypatch):
    from clients import app, ray_worker
    from clients.grid import inline_grid

    monkeypatch.setattr(ray_worker, "register_arrays", lambda: None)
    monkeypatch.setattr(ray_worker, "_end_with_parent", lambda: None)
    monkeypatch.setattr(app, "_built", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    program = tiny.program()
    over = inline_grid(program, data)
    strategy = PartitionedStrategy(program, initial_state(program), tiny.Silent())
    strategy._roster.wait(over, 10, 1)
    messages = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), over)
    expected = over.send_and_receive(messages)
    worker = Worker()
    settings = program.config.model_dump(mode="json", by_alias=True)
    worker.prepare(["/one/more"], settings, data, code_id())
    assert sys.path[-1] == "/one/more"
    with pytest.raises(ConfigError, match="runs other code than the server: have the same version"):
        Worker().prepare([], settings, data, code_id() + 1)
    worker.hold(1, 6, ArrayRecord())
    worker.hold(2, 7, messages[0].content["arrays"])
    assert worker._held.keys() == {7}
    for message, reply in zip(messages, expected, strict=True):
        light = Message(
            RecordDict({"config": message.content["config"]}), message.metadata.dst_node_id, "train"
        )
        context = over._context(message.metadata.dst_node_id)
        ((answer, state),) = worker.answer([(light, context, {"arrays": 7})], 1)
        assert answer.content["arrays"] == reply.content["arrays"]
        assert state == {}


def test_a_death_in_one_line():
    error = RuntimeError(
        "The actor died unexpectedly.\n\tclass_name: W\nThe actor is dead because its worker "
        "process has died. Worker exit type: SYSTEM_ERROR Some common causes include: (1) moths"
    )
    assert _death(error) == (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
    )
    assert _death(RuntimeError()) == "RuntimeError()"


def test_messages_that_are_no_instructions_cost_nothing(program, data):
    cost = expected_work(program, data)
    context = Context(1, 4, {"partition-id": 2}, RecordDict(), {})
    assert cost(Message(RecordDict(), 4, "query"), context) == 0.0
    assert cost(note(2), context) == 3 * len(data.client_indices[2])
