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
    ],
)
def test_bytes_and_rounds_without_psi_are_those_of_many_rounds(changes):
    """Drop-outs and over-selection included; within five standard errors of the mean."""
    program = tiny.program(**changes)
    config = program.config
    chunks = [int(c) for c in assign_chunks(config)]
    plan = make_plan(config, program, tiny.data())
    up, down, without = [], [], []
    for number in range(1, ROUNDS + 1):
        cohort = draw_cohort(config, number)
        there = [i for i in cohort.order if i not in cohort.dropped]
        counted, _ = settle(config, cohort, chunks, {i: tiny.reply(i, 0, {}) for i in there})
        up.append(sum(model_bytes(program, chunks[i])[0] for i in there))
        down.append(sum(model_bytes(program, chunks[i])[1] for i in cohort.order))
        without.append(all(chunks[r.client_id] == 0 for r in counted))
    for seen, foretold in (
        (up, plan.upload_model_bytes),
        (down, plan.download_model_bytes),
        (without, plan.no_hyper_update),
    ):
        error = np.std(seen) / ROUNDS**0.5
        assert abs(np.mean(seen) - foretold) <= 5 * error + 1e-9


def test_a_table_of_availability_is_checked_before_anything_slow(tmp_path):
    path = tmp_path / "seen.csv"
    path.write_text("1,0\n")
    with pytest.raises(ConfigError, match="has 1 lines; it must have one for each of 10 clients"):
        check_chunks(tiny.config(availability=str(path)))
