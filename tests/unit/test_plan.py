"""A dry run says what the run then does."""

import numpy as np
import pytest
import tiny

from fedpart import algorithm
from fedpart.accounting import BYTES, round_record
from fedpart.errors import ConfigError
from fedpart.plan import check_chunks, make_plan, rounds_drawn
from fedpart.server import initial_state


@pytest.mark.parametrize(
    "changes",
    [
        {"client_failure_rate": 0.4},
        {"clients_per_round": 2, "client_failure_rate": 0.4, "over_select": 2.0},
        {"clients_per_round": 3, "client_failure_rate": 0.4, "min_replies": 2},
        {"clients_per_round": 3, "availability": "seen.csv", "over_select": 1.4, "min_replies": 2},
        {"clients_per_round": 2, "method": "augerino", "client_failure_rate": 0.4},
        {"clients_per_round": 2, "method": "fedavg"},
    ],
)
def test_a_plan_is_what_the_records_of_the_run_show(changes, tmp_path, monkeypatch):
    """Drop-outs, over-selection, availability, too few replies; exactly.

    In the rounds of the table nine, two, none and four of the ten clients can be asked.
    """
    monkeypatch.chdir(tmp_path)
    there = np.arange(10)[:, None] >= [1, 8, 10, 6]
    rows = [",".join(str(int(cell)) for cell in row) for row in there]
    (tmp_path / "seen.csv").write_text("\n".join(rows))
    program = tiny.program(rounds=6, **changes)
    seen = tiny.Silent()
    algorithm.run(program, tiny.data(), initial_state(program), seen)
    plan = make_plan(program.config, program, tiny.data())
    records = [round_record(program, *told, None) for told in seen.rounds]
    for name in BYTES:
        assert getattr(plan, name) == sum(getattr(record, name) for record in records) / 6
    clients = [client for record in records for client in record.clients]
    answered = sum(client.upload_model_bytes > 0 for client in clients)
    assert (plan.clients_asked, plan.clients_answering) == (len(clients) / 6, answered / 6)
    assert plan.empty_rounds == sum(not replies for _, replies, *_ in seen.rounds) / 6
    gradients = [[r.hyper_gradient for r in replies] for _, replies, *_ in seen.rounds]
    without = sum(all(g is None for g in of_round) for of_round in gradients) / 6
    assert plan.no_hyper_update == (without if program.hyper.size else None)


def test_a_run_in_which_nobody_answers_has_a_plan(tmp_path):
    path = tmp_path / "nobody.csv"
    path.write_text("0\n" * 10)
    program = tiny.program(availability=str(path))
    plan = make_plan(program.config, program, tiny.data())
    assert (plan.upload_share, plan.empty_rounds, plan.no_hyper_update) == (0, 1, 1)


def test_of_many_rounds_or_clients_the_first_rounds_are_drawn():
    program = tiny.program(rounds=1_000_000, client_failure_rate=0.1)
    plan = make_plan(program.config, program, tiny.data())
    assert plan.rounds_drawn == 1000
    row = dict(plan.rows())["upload of 1,000,000 rounds"]
    assert row.endswith(" MB (by the first 1,000 rounds)")
    assert rounds_drawn(tiny.config(rounds=100, clients=10_000_000)) == 19
    assert rounds_drawn(tiny.config(rounds=9, clients=50_000, clients_per_round=50_000)) == 1


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
