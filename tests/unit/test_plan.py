"""What a dry run foretells, held against many rounds as they are drawn and settled."""

import numpy as np
import pytest
import tiny

from fedpart.cohort import draw_cohort, settle
from fedpart.errors import ConfigError
from fedpart.plan import check_chunks, make_plan
from fedpart.server import assign_chunks
from fedpart.wire import model_bytes

ROUNDS = 4000


@pytest.mark.parametrize(
    "changes",
    [
        {"clients_per_round": 2},
        {"clients_per_round": 2, "client_failure_rate": 0.4},
        {"clients_per_round": 2, "client_failure_rate": 0.4, "over_select": 2.0},
        {"clients_per_round": 3, "client_failure_rate": 0.4, "min_replies": 2},
        {"clients_per_round": 3, "availability": "seen.csv", "over_select": 1.4, "min_replies": 2},
        {"clients_per_round": 3, "availability": "seen.csv", "client_failure_rate": 0.2},
    ],
)
def test_what_is_foretold_is_what_many_rounds_do(changes, tmp_path, monkeypatch):
    """Drop-outs, over-selection, availability and too few replies; within five standard errors.

    In the rounds of the table nine, two, none and four of the ten clients can be asked.
    """
    monkeypatch.chdir(tmp_path)
    there = np.arange(10)[:, None] >= [1, 8, 10, 6]
    rows = [",".join(str(int(cell)) for cell in row) for row in there]
    (tmp_path / "seen.csv").write_text("\n".join(rows))
    program = tiny.program(rounds=ROUNDS, **changes)
    config = program.config
    chunks = [int(c) for c in assign_chunks(config)]
    plan = make_plan(config, program, tiny.data())
    up, down, asked, answered, empty, without = ([] for _ in range(6))
    for number in range(1, ROUNDS + 1):
        cohort = draw_cohort(config, number)
        there = [i for i in cohort.order if i not in cohort.dropped]
        counted, _ = settle(config, cohort, chunks, {i: tiny.reply(i, 0, {}) for i in there})
        up.append(sum(model_bytes(program, chunks[i])[0] for i in there))
        down.append(sum(model_bytes(program, chunks[i])[1] for i in cohort.order))
        asked.append(len(cohort.order))
        answered.append(len(there))
        empty.append(len(counted) < config.min_replies)
        without.append(all(chunks[r.client_id] == 0 for r in counted))
    for seen, foretold in (
        (up, plan.upload_model_bytes),
        (down, plan.download_model_bytes),
        (asked, plan.clients_asked),
        (answered, plan.clients_answering),
        (empty, plan.empty_rounds),
        (without, plan.no_hyper_update),
    ):
        error = np.std(seen) / ROUNDS**0.5
        assert abs(np.mean(seen) - foretold) <= 5 * error + 1e-9


def test_a_table_shorter_and_longer_than_the_run(tmp_path):
    """Only the columns of the run's rounds count, each as often as it comes."""
    path = tmp_path / "seen.csv"
    path.write_text("1,0,0\n" * 10)
    for rounds, asked in ((1, 4), (2, 2), (3, 4 / 3), (4, 2)):
        program = tiny.program(clients_per_round=4, availability=str(path), rounds=rounds)
        plan = make_plan(program.config, program, tiny.data())
        assert plan.clients_asked == pytest.approx(asked)
        assert plan.empty_rounds == pytest.approx(1 - asked / 4)
    path = tmp_path / "nobody.csv"
    path.write_text("0\n" * 10)
    program = tiny.program(availability=str(path))
    plan = make_plan(program.config, program, tiny.data())
    assert (plan.upload_share, plan.empty_rounds, plan.no_hyper_update) == (0, 1, 1)


def test_a_table_of_availability_is_checked_before_anything_slow(tmp_path):
    path = tmp_path / "seen.csv"
    path.write_text("1,0\n")
    with pytest.raises(ConfigError, match="has 1 lines; it must have one for each of 10 clients"):
        check_chunks(tiny.config(availability=str(path)))


def test_a_run_in_which_nobody_is_ever_available_is_refused(tmp_path):
    """The rounds of the run count, not those of the file."""
    path = tmp_path / "seen.csv"
    path.write_text("0,0,1\n" + "0,0,0\n" * 9)
    check_chunks(tiny.config(availability=str(path), rounds=3))
    with pytest.raises(ConfigError, match="has no 1 in the 2 rounds of this run, so that nobody"):
        check_chunks(tiny.config(availability=str(path), rounds=2))
