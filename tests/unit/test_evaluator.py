"""Evaluations beside the rounds: the same numbers, nothing waits, nothing is lost."""

import threading

import pytest
import tiny

from fedpart import algorithm, evaluator
from fedpart.evaluation import EvaluationStopped, evaluation_record
from fedpart.evaluator import Evaluator, Pending
from fedpart.plots_curves import draw_run
from fedpart.run_files import read_lines
from fedpart.run_folder import RunFolder
from fedpart.server import initial_state

SETTINGS = {"rounds": 6, "eval_every": 2, "checkpoint_every": 1}


@pytest.fixture
def program():
    return tiny.program(**SETTINGS)


def folder_of(path, data, beside: bool) -> RunFolder:
    # With a network of its own: the clients' is at work in this process too.
    return RunFolder(path, tiny.program(**SETTINGS), data, lambda *_: None, evaluate_beside=beside)


def run(program, data, folder, state) -> None:
    algorithm.run(program, data, state, folder)
    folder.finish(draw_run)


def lines(folder: RunFolder) -> list[dict[str, object]]:
    return read_lines(folder.path / "evaluations.jsonl")


def pending_of(program) -> Pending:
    state = initial_state(program)
    return Pending(1, state.theta, state.hyper, None)


@pytest.fixture
def whole(program, small_data, tmp_path):
    """Evaluations of a run that waits for each of them."""
    folder, state = folder_of(tmp_path / "whole", small_data, False), initial_state(program)
    folder.create(state, [])
    run(program, small_data, folder, state)
    return lines(folder)


def test_the_same_records_beside_as_at_once(program, small_data, tmp_path, whole):
    folder, state = folder_of(tmp_path / "run", small_data, True), initial_state(program)
    folder.create(state, [])
    run(program, small_data, folder, state)
    assert lines(folder) == whole
    assert [line["round"] for line in whole] == [2, 4, 6]


@pytest.mark.parametrize("how", ["killed", "closed"])
@pytest.mark.parametrize("beside", [True, False])
def test_rounds_go_on_and_a_checkpoint_keeps_what_is_not_evaluated(
    program, small_data, tmp_path, whole, monkeypatch, how, beside
):
    """The evaluation of round 2 never ends; the run is stopped after round 3 and taken up."""

    def endless(*args, stop, **kwargs):
        assert stop.wait(60)
        raise EvaluationStopped

    def interrupt(record, evaluations):
        assert evaluations == []
        if record.round == 3:
            raise KeyboardInterrupt

    folder, state = folder_of(tmp_path / "run", small_data, True), initial_state(program)
    folder.create(state, [])
    folder.on_round = interrupt
    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "evaluation_record", endless)
        with pytest.raises(KeyboardInterrupt):
            algorithm.run(program, small_data, state, folder)
        assert len(read_lines(folder.path / "rounds.jsonl")) == 3
        assert lines(folder) == []
        if how == "closed":
            assert folder.close("interrupted", 130) == 3
        else:
            tiny.release(folder)
            folder._evaluator.close()
    again = folder_of(folder.path, small_data, beside)
    run(program, small_data, again, again.resume())
    assert lines(again) == whole


def test_it_stops_between_two_handfuls_of_images(program, small_data):
    stop = threading.Event()
    stop.set()
    pending = pending_of(program)
    values = (pending.theta, pending.hyper, pending.round)
    with pytest.raises(EvaluationStopped):
        evaluation_record(program, small_data, *values, size=4, l_ml=None, stop=stop)


def test_what_goes_wrong_in_the_thread_is_raised_where_the_record_is_asked_for(
    program, small_data, monkeypatch
):
    def broken(*args, **kwargs):
        raise MemoryError("no room")

    monkeypatch.setattr(evaluator, "evaluation_record", broken)
    beside = Evaluator(program, small_data, beside=True)
    beside.begin(pending_of(program))
    with pytest.raises(MemoryError, match="no room"):
        beside.record(wait=True)
