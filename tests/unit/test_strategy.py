import json
import traceback
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from torch import nn

from clients.grid import InlineExecutor, LocalGrid, inline_grid
from fedpart import checkpoint
from fedpart.cohort import draw_cohort
from fedpart.config import Config, make_config
from fedpart.data import FederatedData
from fedpart.errors import ClientFailure, ConfigError, OutputError, cause
from fedpart.machine import code_id
from fedpart.program import Program, build_program
from fedpart.server import assign_chunks, initial_state
from fedpart.wire import decode, wire_bytes
from strategies.app import app, run
from strategies.nodes import Roster
from strategies.strategy import PartitionedStrategy, message_bytes

CLIENTS = 6


def tiny(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(
        nn.MaxPool2d(7), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16 * in_channels, num_classes)
    )


def configure(**changes: object) -> Config:
    values = {
        "model": f"{__name__}:tiny",
        "clients": CLIENTS,
        "clients_per_round": 4,
        "chunks": "0.5,0.3,0.2",
        "samples": 2,
        "rounds": 3,
    }
    return make_config(values | changes)


def federation(config: Config) -> FederatedData:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4 * config.clients, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, len(images))
    return FederatedData(
        *("synthetic", 10, 1, images, labels, None),
        client_indices=tuple(np.arange(4 * i, 4 * i + 4) for i in range(config.clients)),
        val_images=images[:4],
        val_labels=labels[:4],
        test_images=None,
        test_labels=None,
        source="noise",
    )


class Recorder:
    def __init__(self) -> None:
        self.rounds: list[tuple] = []

    def after_round(self, state, replies, failures, wire, seconds):
        self.rounds.append((state, replies, failures, wire))
        assert seconds >= 0


@pytest.fixture(scope="module")
def program() -> Program:
    return build_program(configure(), 10, 1)


@pytest.fixture
def grid(program) -> LocalGrid:
    return inline_grid(program, federation(program.config))


def strategy_of(program: Program, **options: object) -> PartitionedStrategy:
    return PartitionedStrategy(program, initial_state(program), Recorder(), **options)


class Crowd(LocalGrid):
    """Some of the nodes, and answers to ``query`` as told."""

    def __init__(self, config: Config, answers: dict[int, object]) -> None:
        super().__init__(InlineExecutor(None), config)
        self.answers, self.asked = answers, []

    def get_node_ids(self) -> Iterable[int]:
        return set(self.answers)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            answer = self.answers[node]
            if isinstance(answer, Error):
                replies.append(Message(answer, reply_to=message))
            elif answer is not None:
                content = RecordDict({"metrics": MetricRecord({"code": code_id(), **answer})})
                replies.append(Message(content, reply_to=message))
        return replies


def test_who_the_clients_are_is_asked_in_handfuls_and_never_of_a_worker(monkeypatch):
    """However many there are, few messages are in memory; a round later, nobody is asked again."""
    monkeypatch.setattr("strategies.nodes._ASKED_AT_ONCE", 3)
    crowd = Crowd(configure(), {node: {"client-id": node - 2} for node in range(2, 10)})
    handfuls, send = [], crowd.send_and_receive
    crowd.send_and_receive = lambda m, timeout=None: handfuls.append(len(m)) or send(m)
    roster = Roster()
    roster.refresh(crowd, 1)
    roster.refresh(crowd, 1)
    assert handfuls == [3, 3, 2]
    assert roster.nodes == {node - 2: node for node in range(2, 10)}
    # An executor without an app: a worker would have no answer.
    roster = Roster()
    roster.refresh(LocalGrid(InlineExecutor(None), configure()), 1)
    assert len(roster.nodes) == CLIENTS


def test_one_message_for_each_client_of_the_cohort(program, grid):
    strategy = strategy_of(program)
    arrays = strategy.arrays()
    messages = strategy.configure_train(2, arrays, ConfigRecord(), grid)
    assert isinstance(messages, list)
    cohort = draw_cohort(program.config, 2).clients
    assert [m.content["config"]["client-id"] for m in messages] == cohort
    chunks = assign_chunks(program.config)
    for message, client_id in zip(messages, cohort, strict=True):
        config = message.content["config"]
        assert (config["server-round"], config["chunk"]) == (2, chunks[client_id])
        assert message.metadata.message_type == "train"
        # The weights are encoded once, whatever the number of clients.
        assert message.content["arrays"] is arrays
    assert len({id(m.content) for m in messages}) == len(messages)


def test_the_arrays_are_theta_and_psi(program):
    strategy = strategy_of(program)
    arrays = strategy.arrays()
    theta = decode(arrays["theta"].data, program.layout.num_parameters)
    assert torch.equal(theta, strategy.state.theta)
    assert torch.equal(decode(arrays["hyper"].data, program.hyper.size), strategy.state.hyper)
    assert np.array_equal(arrays["theta"].numpy(), strategy.state.theta.numpy())


def test_flowers_own_byte_count_is_the_one_that_the_loop_reports(program, grid):
    strategy = strategy_of(program)
    messages = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    replies = {r.content["metrics"]["client-id"]: r for r in grid.send_and_receive(messages)}
    seen = set()
    for message in messages:
        client_id, chunk = (message.content["config"][n] for n in ("client-id", "chunk"))
        expected = wire_bytes(program, chunk)
        assert (message_bytes(replies[client_id]), message_bytes(message)) == expected
        seen.add(chunk)
    assert len(seen) > 1


def test_clients_are_asked_for_nothing_in_evaluation(program, grid):
    strategy = strategy_of(program)
    assert strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), grid) == []
    assert strategy.aggregate_evaluate(1, []) is None


def test_metrics_are_scalars(program, grid):
    strategy = strategy_of(program)
    result = strategy.start(grid, num_rounds=2)
    assert set(result.train_metrics_clientapp) == {1, 2}
    for record in result.train_metrics_clientapp.values():
        assert set(record) == {"replies", "failures", "left-out", "train-loss"}
        assert all(isinstance(value, int | float) for value in record.values())
    assert np.array_equal(result.arrays["theta"].numpy(), strategy.state.theta.numpy())


def test_evaluate_fn_is_called_after_each_round(program, grid):
    strategy = strategy_of(program)
    calls = []

    def evaluate(server_round, arrays):
        calls.append(server_round)
        return MetricRecord({"norm": float(np.linalg.norm(arrays["theta"].numpy()))})

    result = strategy.start(grid, evaluate_fn=evaluate)
    assert calls == [1, 2, 3] == list(result.evaluate_metrics_serverapp)


def test_start_takes_its_weights_from_the_state(program, grid):
    strategy = strategy_of(program)
    with pytest.raises(ValueError, match="state"):
        strategy.start(grid, initial_arrays=strategy.arrays())


def test_an_error_about_a_dead_node_counts_for_the_client_that_was_asked(program, grid):
    """Flower's server answers for it, in its own name."""
    strategy = strategy_of(program)
    messages = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    lost = Message(Error(5, "Node unavailable"), reply_to=messages[1])
    lost.metadata.__dict__["_src_node_id"] = 1
    replies[1] = lost
    strategy.aggregate_train(1, replies)
    cohort = draw_cohort(program.config, 1).clients
    assert [(f.client_id, f.reason) for f in strategy.failures] == [(cohort[1], "Node unavailable")]
    assert [r.client_id for r in strategy.replies] == [c for c in cohort if c != cohort[1]]
    assert strategy.wire[cohort[1]] == (0, wire_bytes(program, 0)[1])


def test_missing_second_and_foreign_replies_cost_nothing_else(program, grid, caplog):
    strategy = strategy_of(program)
    messages = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    late = strategy_of(program).configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    foreign = next(iter(grid.send_and_receive(late[:1])))
    strategy.aggregate_train(1, [foreign, replies[0], replies[0], replies[2], replies[3]])
    cohort = draw_cohort(program.config, 1).clients
    assert [r.client_id for r in strategy.replies] == [cohort[0], cohort[2], cohort[3]]
    assert [f.client_id for f in strategy.failures] == [cohort[1]]
    assert "no reply within 3600 s" in strategy.failures[0].reason
    assert len(caplog.records) == 2


def test_a_reply_of_other_records_is_refused(program, grid):
    strategy = strategy_of(program)
    messages = strategy.configure_train(1, strategy.arrays(), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    replies[0] = Message(RecordDict({"arrays": ConfigRecord({"x": 1})}), reply_to=messages[0])
    replies[1].content["more"] = MetricRecord({"x": 1})
    strategy.aggregate_train(1, replies)
    assert [f.reason for f in strategy.failures] == [
        "refused: message holds arrays, not arrays and metrics",
        "refused: message holds arrays, metrics, more, not arrays and metrics",
    ]


def test_a_client_that_is_not_connected_fails_alone(program, grid, monkeypatch):
    cohort = draw_cohort(program.config, 1).clients
    present = [n for n in grid.get_node_ids() if n - 2 != cohort[0]]
    monkeypatch.setattr(grid, "get_node_ids", lambda: present)
    strategy = strategy_of(program, join_timeout=0.01)
    strategy.start(grid, num_rounds=1)
    assert [(f.client_id, f.reason) for f in strategy.failures] == [(cohort[0], "is not connected")]
    assert set(strategy.wire) == set(cohort[1:])


def test_nodes_are_mapped_by_what_they_say(program):
    crowd = Crowd(program.config, {70: {"client-id": 1}, 50: {"client-id": 0}})
    roster = Roster()
    roster.refresh(crowd, 1)
    assert roster.nodes == {0: 50, 1: 70}


def test_only_new_nodes_are_asked_and_gone_ones_are_forgotten(program):
    crowd = Crowd(program.config, {50: {"client-id": 0}, 70: None})
    roster = Roster()
    roster.refresh(crowd, 1)
    assert roster.nodes == {0: 50}
    crowd.answers = {70: {"client-id": 1}}
    roster.refresh(crowd, 1)
    assert roster.nodes == {1: 70}
    assert crowd.asked == [50, 70, 70]


def test_of_two_nodes_with_one_identity_the_same_is_believed_each_time(program, caplog):
    """The other is named once, cannot take a client over, and takes its turn when that one goes."""
    crowd = Crowd(program.config, {90: {"client-id": 0}, 50: {"client-id": 0}})
    roster = Roster()
    for _ in range(2):
        roster.refresh(crowd, 1)
        assert roster.nodes == {0: 50}
    crowd.answers[10] = {"client-id": 0}
    roster.refresh(crowd, 1)
    assert roster.nodes == {0: 50}
    assert [line.partition(" (")[0] for line in caplog.messages] == [
        "nodes 50 and 90 both say that they are client 0",
        "nodes 50 and 10 both say that they are client 0",
    ]
    del crowd.answers[50]
    roster.refresh(crowd, 1)
    assert roster.nodes == {0: 10}


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({}, "none of 6 clients is connected after 0.01 s: "),
        ({50: Error(2, "boom")}, r"\(boom\)"),
        ({50: {"client-id": 0.5}}, r"\(node 50 does not say"),
        ({50: {"other": 1}}, r"\(node 50 does not say"),
    ],
)
def test_the_wait_for_clients_has_a_limit(program, answers, why):
    strategy = strategy_of(program, join_timeout=0.01)
    with pytest.raises(ClientFailure, match=why):
        strategy.start(Crowd(program.config, answers))


def test_too_few_nodes_are_explained_without_a_wait(program):
    two = {50: {"client-id": 0, "num-clients": 2}, 70: {"client-id": 1, "num-clients": 2}}
    with pytest.raises(ConfigError) as error:
        Roster().wait(Crowd(program.config, two), 100, timeout=3600)
    assert str(error.value) == (
        "clients is 100, but nodes were started for 2: give flwr run --federation-config "
        "num-supernodes=100, or set clients=2"
    )


def test_nodes_that_are_still_to_come_are_waited_for(program, monkeypatch):
    crowd = Crowd(program.config, {50: {"client-id": 0, "num-clients": 2}})

    def arrive(seconds):
        crowd.answers[70] = {"client-id": 1, "num-clients": 2}

    monkeypatch.setattr("strategies.nodes.time.sleep", arrive)
    roster = Roster()
    roster.wait(crowd, 2, timeout=3600)
    assert roster.nodes == {0: 50, 1: 70}


def test_more_nodes_than_clients_are_no_fault(program):
    three = {50 + i: {"client-id": i, "num-clients": 3} for i in range(3)}
    roster = Roster()
    roster.wait(Crowd(program.config, three), 2, timeout=3600)
    assert {0, 1} <= set(roster.nodes)


def test_a_node_with_other_code_takes_no_part_and_is_asked_once(program, caplog):
    crowd = Crowd(program.config, {50: {"client-id": 0}, 70: {"client-id": 1, "code": 1}})
    roster = Roster()
    for _ in range(2):
        roster.refresh(crowd, 1)
        assert roster.nodes == {0: 50}
    assert crowd.asked == [50, 70]
    assert ["client 1 runs other code" in line for line in caplog.messages] == [True]


def test_a_simulation_of_other_code_ends_without_a_wait(program):
    stale = {50 + i: {"client-id": i, "code": 1} for i in range(6)}
    with pytest.raises(ConfigError, match=r"runs other code than the server: a SuperLink that was"):
        Roster().wait(Crowd(program.config, stale), 6, timeout=3600)


def test_clients_are_waited_for_once(program, grid, monkeypatch):
    strategy = strategy_of(program, join_timeout=0.01)
    strategy.join(grid)
    monkeypatch.setattr(Roster, "wait", None)
    strategy.start(grid, num_rounds=1)
    assert strategy.state.server_round == 1


def test_cause_of_a_traceback_names_exception_and_innermost_frame():
    try:
        try:
            [][1]
        except IndexError:
            raise ValueError("first\nsecond") from None
    except ValueError:
        text = traceback.format_exc()
    line = cause(text)
    assert line.startswith("ValueError: first (test_strategy.py, line ")
    assert line.endswith("in test_cause_of_a_traceback_names_exception_and_innermost_frame)")


def test_cause_looks_through_what_flowers_simulation_adds():
    # As recorded from Flower 1.42, paths and object numbers apart.
    reason = """<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor
            ^^^^^^^^^^^^^^^^^^^^^^^^
  File "/app/mymodel.py", line 5, in cnn
    raise RuntimeError("no weights on this planet")
RuntimeError: no weights on this planet

The above exception was the direct cause of the following exception:

ray::ClientAppActor.run() (pid=1)
  File "/app/fedpart/models.py", line 168, in build_model
    raise ConfigError(text) from error
fedpart.errors.ConfigError: model 'mymodel:cnn': no weights

The above exception was the direct cause of the following exception:

ray::ClientAppActor.run() (pid=1)
           ^^^^^^^^^^^^^^^^^^^
  File "/venv/flwr/simulation/ray_transport/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:
Exception ClientAppException occurred. Message: model 'mymodel:cnn': no weights'>"""
    assert cause(reason) == (
        "fedpart.errors.ConfigError: model 'mymodel:cnn': no weights (models.py, line 168, in "
        "build_model)"
    )


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("", "no reason given"),
        ("<class 'ValueError'>:<'boom'>", "<class 'ValueError'>:<'boom'>"),
        ("one\n\n  two  \n\n", "two"),
        ("evil \x1b[2J", "evil  [2J"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_cause_of_anything_else_is_one_short_line(reason, line):
    assert cause(reason) == line


def test_under_flowers_runtime_a_run_folder_is_written(tmp_path, monkeypatch):
    data = federation(configure())
    monkeypatch.setattr("strategies.app.load_federated", lambda config: data)
    out = tmp_path / "run"
    run_config = {
        "model": f"{__name__}:tiny",
        "clients": CLIENTS,
        "clients-per-round": 4,
        "samples": 2,
        "chunks": "0.5,0.3,0.2",
        "rounds": 3,
        "eval-every": 1,
        "out": str(out),
    }
    recorder, program = Recorder(), build_program(make_config(run_config), 10, 1)
    expected = run(program, initial_state(program), recorder, inline_grid(program, data))
    app(inline_grid(program, data), Context(1, 1, {}, RecordDict(), run_config))
    state, _ = checkpoint.load(out / "checkpoint.pt")
    assert torch.equal(state.theta, expected.theta)
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [[c["client_id"] for c in r["clients"]] for r in rounds] == [
        draw_cohort(program.config, n).clients for n in (1, 2, 3)
    ]
    assert json.loads((out / "run.json").read_text())["exit_code"] == 0
    for number, record in enumerate(rounds):
        for client in record["clients"]:
            wire = recorder.rounds[number][3][client["client_id"]]
            assert (client["upload_wire_bytes"], client["download_wire_bytes"]) == wire


def test_under_flowers_runtime_empty_rounds_are_recorded_and_end_the_run(
    program, tmp_path, monkeypatch, caplog
):
    data = federation(program.config)
    monkeypatch.setattr("strategies.app.load_federated", lambda config: data)
    monkeypatch.setattr("fedpart.side_by_side.client_update", None)
    out = tmp_path / "run"
    run_config = {
        "model": f"{__name__}:tiny",
        "clients": CLIENTS,
        "clients-per-round": 4,
        "samples": 2,
        "chunks": "0.5,0.3,0.2",
        "rounds": 3,
        "max-empty-rounds": 2,
        "out": str(out),
    }
    with (
        caplog.at_level("INFO", logger="flwr.fedpart"),
        pytest.raises(ClientFailure, match="no reply counted in 2 rounds in a row"),
    ):
        app(inline_grid(program, data), Context(1, 1, {}, RecordDict(), run_config))
    assert caplog.messages[-1] == f"stopped after round 2; go on with resume=true out={out}"
    rounds = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [[c["status"] for c in r["clients"]] for r in rounds] == [["failed"] * 4] * 2
    assert json.loads((out / "run.json").read_text())["exit_code"] == 5


def test_under_flowers_runtime_a_run_is_taken_up_with_resume(program, tmp_path, monkeypatch):
    """SIGTERM, as Flower passes it on, ends a run in order; the same settings go on with it."""
    data = federation(program.config)
    monkeypatch.setattr("strategies.app.load_federated", lambda config: data)

    def start(out, **more):
        run_config = {
            "model": f"{__name__}:tiny",
            "clients": CLIENTS,
            "clients-per-round": 4,
            "samples": 2,
            "chunks": "0.5,0.3,0.2",
            "rounds": 3,
            "out": str(out),
            **more,
        }
        app(inline_grid(program, data), Context(1, 1, {}, RecordDict(), run_config))

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    start(whole)

    def stop(rounds, record, evaluation):
        if record.round == 2:
            raise SystemExit(0)

    with monkeypatch.context() as patch:
        patch.setattr("strategies.app._report", stop)
        with pytest.raises(SystemExit):
            start(broken)
    ended = json.loads((broken / "run.json").read_text())
    assert (ended["exit"], ended["exit_code"]) == ("terminated", 143)
    with pytest.raises(OutputError, match="rounds was 3 and is 4 now"):
        start(broken, resume=True, rounds=4)
    with pytest.raises(OutputError, match="is not empty"):
        start(broken)
    start(broken, resume=True)
    assert json.loads((broken / "run.json").read_text())["resumed_from"] == [2]
    assert (broken / "model.pt").read_bytes() == (whole / "model.pt").read_bytes()
    with pytest.raises(ConfigError, match="resume is 'yes'; it must be true or false"):
        start(broken, resume="yes")
    with pytest.raises(ConfigError, match="out does not say which run"):
        start("", resume=True)
