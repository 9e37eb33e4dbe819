"""``kill -9`` at many instants of a run of twelve rounds, resumed each time: nothing is lost."""

import random

import pytest
from processes import Process, begin, measure, outcome, resumed

from fedpart.run_files import ended_well

SEED = 0
# When each of ten is killed: at any time, when a further round is on record, or while a checkpoint
# is written.
KILLS = ("any", "round", "checkpoint") * 3 + ("round",)


def strike(process: Process, when: str, rng: random.Random, total: float) -> bool:
    """Kill a process; False if it reached its end before.

    Args:
        process: begun just now.
        when: see ``KILLS``.
        rng: chooses the instant.
        total: seconds that a whole run takes.
    """
    if when == "any":
        alive = process.wait_for(rng.uniform(0, total))
    elif when == "round":
        alive = process.wait_for_rounds(rng.randint(1, 3))
        alive = alive and process.wait_for(rng.uniform(0, 0.1))
    else:
        alive = process.stop_while((process.folder / "checkpoint.pt.tmp").exists)
    if alive:
        process.kill()
    return alive


@pytest.mark.slow
@pytest.mark.parametrize(("tens", "every"), [(1, 2), pytest.param(3, 1, marks=pytest.mark.full)])
def test_kills_cost_nothing(home, sim, wide_model, tens, every):
    """Weights, psi, moments, JSON lines, totals: equal to those of a run without a break.

    What is asserted does not depend on when the kills come: a run that ends before its kill is
    compared, and another one is begun. With a checkpoint after every round, a kill costs at most
    one, whose bytes are not counted twice.
    """
    total, _ = measure(home / "whole", every)
    expected = outcome(home / "whole")
    rng, kills, number = random.Random(SEED), list(KILLS) * tens, 0
    # Rounds on record when the last process of this run was killed.
    done = 0
    while kills:
        folder = home / f"run-{number}"
        process = begin(folder, every)
        if strike(process, kills[-1], rng, total):
            kills.pop()
            if process.recorded and done:
                assert resumed(folder)[-1] >= done - every
            done = process.rounds
        else:
            process.end_well()
        if ended_well(folder):
            assert outcome(folder) == expected
            number, done = number + 1, 0
    if not ended_well(folder):
        code, _, err = sim("--resume", folder)
        assert (code, err) == (0, "")
        assert outcome(folder) == expected
