"""A run that is watched through its folder shows each round once, with its evaluation."""

import tiny

from clients.deployment.watch import Watch, records_behind
from fedpart import algorithm
from fedpart.model_file import starting_state
from fedpart.run_folder import RunFolder


def watched(tmp_path, on_round=lambda watch: None):
    """A finished run of three rounds, the first and third of them checkpointed, and its watch."""
    config = tiny.config(eval_every=2, checkpoint_every=2, clients_per_round=3)
    program, data = tiny.program(eval_every=2, checkpoint_every=2, clients_per_round=3), tiny.data()
    out = tmp_path / "run"
    watch = Watch(config, out, [])
    assert not watch.begun
    assert not watch.busy
    folder = RunFolder(out, program, data, lambda *_: on_round(watch))
    state = starting_state(program)
    folder.create(state, ["test"])
    assert watch.begun
    assert watch.busy
    assert list(watch.rounds()) == []
    algorithm.run(program, data, state, folder)
    folder.close("ok", 0)
    assert not watch.busy
    return config, out, watch


def test_rounds_come_once_and_with_their_evaluations(tmp_path):
    seen = []
    watched(tmp_path, lambda watch: seen.append(list(watch.rounds())))
    numbers = [[(r.round, [e.round for e in found]) for r, found in some] for some in seen]
    assert numbers == [[(1, [])], [(2, [2])], [(3, [3])]]


def test_how_a_run_ended_is_written_where_its_process_could_not(tmp_path):
    """A word of its own stays, but for that of a process stopped with others; so does the end."""
    _, out, watch = watched(tmp_path)

    def ended(before, sure):
        info = watch.info().model_copy(update={"exit": before, "exit_code": None})
        (out / "run.json").write_text(info.model_dump_json())
        watch.close("interrupted", 130, sure)
        return watch.info().exit

    assert ended(None, False) == "interrupted"
    assert watch.info().exit_code == 130
    assert ended("no reply counted", False) == "no reply counted"
    assert ended("terminated", True) == "interrupted"
    assert ended("ok", True) == "ok"


def test_a_round_waits_for_its_evaluation(tmp_path):
    config, out, _ = watched(tmp_path)
    fresh = Watch(config, out, [])
    # What is there already belongs to an earlier process.
    assert list(fresh.rounds()) == []
    (out / "run.json").write_text((out / "run.json").read_text() + "\n")
    lines = (out / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (out / "evaluations.jsonl").write_text(lines[0])
    assert [r.round for r, _ in fresh.rounds()] == [1, 2]
    assert list(fresh.rounds()) == []
    (out / "evaluations.jsonl").write_text("".join(lines))
    assert [(r.round, e.round) for r, (e,) in fresh.rounds()] == [(3, 3)]


def test_a_resume_goes_on_from_the_checkpoint(tmp_path):
    config, out, _ = watched(tmp_path)
    assert records_behind(tmp_path / "none") == []
    behind = records_behind(out)
    assert [r.round for r in behind] == [1, 2, 3]
    later = Watch(config, out, behind[:2])
    (out / "run.json").write_text((out / "run.json").read_text() + "\n")
    assert [r.round for r, _ in later.rounds()] == [3]
