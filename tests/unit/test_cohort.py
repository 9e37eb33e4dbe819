"""Who is asked, who drops out, and whose reply counts."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from fedpart.cohort import Cohort, Failure, availability, draw_cohort, settle
from fedpart.errors import DROPPED, ConfigError
from fedpart.streams import numpy_rng

CHUNKS = [0] * 10


def reply(client_id: int, value: float = 1.0, gradient: float | None = None, chunk: int = 0):
    """Partition 0 and 1 (or 1 alone, in chunk 1) full of one value, and a gradient of psi."""
    deltas = {j: torch.full((3,), value) for j in range(chunk, 2)}
    psi = {} if gradient is None else {"hyper_gradient": torch.full((2,), gradient)}
    return tiny.reply(client_id, chunk, deltas, **psi)


def settled(config, order, answers, dropped=frozenset()):
    return settle(config, Cohort(tuple(order), frozenset(dropped)), CHUNKS, answers)


def ids(found) -> list[int]:
    return [f.client_id for f in found]


def test_without_faults_the_cohort_is_what_it_always_was():
    """The draw of the first version: numbers of earlier runs stay as they are."""
    config = tiny.config(clients=100, clients_per_round=10)
    rng = numpy_rng(config.seed, "cohort", 7)
    drawn = [int(i) for i in rng.choice(100, 10, replace=False)]
    assert draw_cohort(config, 7) == Cohort(tuple(drawn), frozenset())
    assert draw_cohort(config, 7).clients == sorted(drawn)


@pytest.mark.parametrize(
    ("m", "factor", "size"),
    [(10, 1.0, 10), (10, 1.5, 15), (10, 1.1, 11), (3, 1.5, 5), (10, 50.0, 100)],
)
def test_so_many_are_asked(m, factor, size):
    config = tiny.config(clients=100, clients_per_round=m, over_select=factor)
    assert config.cohort_size == size
    assert len(set(draw_cohort(config, 1).order)) == size


def test_ten_percent_failures_and_half_as_many_again_fill_the_rounds():
    """1,000 rounds: ten replies in at least 99 of 100; one in ten drops out; each as often."""
    config = tiny.config(
        clients=100, clients_per_round=10, over_select=1.5, client_failure_rate=0.1
    )
    cohorts = [draw_cohort(config, r) for r in range(1, 1001)]
    lost = np.array([len(c.dropped) for c in cohorts])
    full = [len(settled_round(config, cohort)[0]) == config.clients_per_round for cohort in cohorts]
    assert np.mean(full) >= 0.99
    # Five standard errors of a binomial share.
    assert abs(lost.sum() / 15_000 - 0.1) < 5 * (0.09 / 15_000) ** 0.5
    assert cohorts == [draw_cohort(config, r) for r in range(1, 1001)]
    other = config.model_copy(update={"seed": 1})
    assert cohorts[:20] != [draw_cohort(other, r) for r in range(1, 21)]


def settled_round(config, cohort):
    answers = {i: tiny.reply(i, 0, {}) for i in cohort.order if i not in cohort.dropped}
    return settle(config, cohort, [0] * config.clients, answers)


def test_the_first_replies_in_the_order_of_the_draw_count():
    """Whatever the order in which they have come; all are told in client order."""
    config = tiny.config(clients_per_round=2)
    answers = {8: reply(8), 1: "raised", 5: reply(5), 3: reply(3)}
    for arrived in (answers, dict(reversed(answers.items()))):
        replies, failures = settled(config, [1, 5, 8, 3], arrived)
        assert ids(replies) == [5, 8]
        assert failures == [
            Failure(1, 0, "raised"),
            Failure(3, 0, "not needed: 2 replies were there before it", unused=True),
        ]


def test_who_drops_out_does_not_count_whatever_it_has_sent():
    config = tiny.config(clients_per_round=2)
    replies, failures = settled(config, [1, 2, 3], {i: reply(i) for i in (1, 2, 3)}, {1})
    assert ids(replies) == [2, 3]
    assert failures == [Failure(1, 0, DROPPED)]


@pytest.mark.parametrize(("there", "counted"), [(2, 0), (3, 3)])
def test_too_few_replies_change_nothing(there, counted):
    config = tiny.config(clients_per_round=4, min_replies=3)
    answers = {i: reply(i) if i < there else "raised" for i in range(4)}
    replies, failures = settled(config, range(4), answers)
    assert len(replies) == counted
    if not counted:
        assert [f.unused for f in failures] == [True, True, False, False]
        assert failures[0].reason == "only 2 of at least 3 replies (min-replies) came"


def test_an_update_far_longer_than_the_others_is_refused_and_the_next_client_counts():
    config = tiny.config(clients_per_round=3, max_update_norm=4.0)
    answers = {0: reply(0, 9.0), 1: reply(1, -1.0), 2: reply(2, 2.0), 3: reply(3, 2.0)}
    replies, failures = settled(config, [0, 1, 2, 3], answers)
    assert ids(replies) == [1, 2, 3]
    # 9 sqrt(3), 4.5 times the median of 1, 2, 2 and 9, which is 2.
    reason = "refused: partition-0 has norm 15.6, 4.5 times the cohort's median"
    assert failures == [Failure(0, 0, reason)]
    loose = config.model_copy(update={"max_update_norm": 4.6})
    assert ids(settled(loose, [0, 1, 2, 3], answers)[0]) == [0, 1, 2]
    off = config.model_copy(update={"max_update_norm": None})
    assert ids(settled(off, [0, 1, 2, 3], answers)[0]) == [0, 1, 2]


def test_each_partition_is_held_against_those_who_sent_it():
    """A client of the second chunk sends little, and is no measure for what it does not send."""
    config = tiny.config(clients_per_round=4, max_update_norm=3.0)
    small = [reply(i, 0.01, chunk=1) for i in (1, 2, 3)]
    answers = {r.client_id: r for r in small} | {0: reply(0, 1.0)}
    (failure,) = settled(config, range(4), answers)[1]
    assert failure.client_id == 0
    assert failure.reason.startswith("refused: partition-1 has norm ")


def test_a_long_gradient_of_psi_is_left_out_and_the_weights_count():
    config = tiny.config(clients_per_round=3, max_update_norm=5.0)
    answers = {i: reply(i, gradient=g) for i, g in enumerate((1.0, 10.0, 1.0))}
    replies, failures = settled(config, range(3), answers)
    assert (ids(replies), failures) == ([0, 1, 2], [])
    assert [r.hyper_gradient is None for r in replies] == [False, True, False]
    assert replies[1].hyper_fault == "hyper has norm 14.1, 10 times the cohort's median"
    both = answers | {1: reply(1, 10.0, gradient=10.0)}
    assert [f.reason[:20] for f in settled(config, range(3), both)[1]] == ["refused: partition-0"]


def test_where_most_updates_are_zero_none_is_too_long():
    config = tiny.config(clients_per_round=3, max_update_norm=2.0)
    answers = {i: reply(i, float(i == 0)) for i in range(3)}
    assert settled(config, range(3), answers)[1] == []


def write(path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_only_those_who_are_there_are_asked_and_the_table_starts_over(tmp_path):
    """Client by round: three clients, the third away in odd rounds, nobody there in round 2."""
    path = write(tmp_path / "seen.csv", "1,0,1", "1, 0,1", "0,0,1")
    config = tiny.config(clients=3, clients_per_round=2, chunks=(1.0,), availability=path)
    cohorts = [draw_cohort(config, r).clients for r in (1, 2, 4, 5)]
    assert cohorts == [[0, 1], [], [0, 1], []]
    seen = {i for r in range(3, 60, 3) for i in draw_cohort(config, r).clients}
    assert seen == {0, 1, 2}


def test_a_table_without_absences_changes_nothing(tmp_path):
    path = write(tmp_path / "all.csv", *["1"] * 10)
    config = tiny.config(clients_per_round=4, over_select=1.5, client_failure_rate=0.5)
    there = replace_availability(config, path)
    assert [draw_cohort(there, r) for r in range(1, 30)] == [
        draw_cohort(config, r) for r in range(1, 30)
    ]


def replace_availability(config, path):
    return config.model_copy(update={"availability": path})


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["1,0", "1,2"], r"line 2: '2' is neither 0 nor 1"),
        (["1,0", "1"], r"line 2: 1 rounds, where line 1 has 2"),
        (["1,0"], r"has 1 lines; it must have one for each of 2 clients"),
        (["client,round", "1,0"], r"line 1: 'client' is neither 0 nor 1"),
        (["", "1"], r"line 1: '' is neither 0 nor 1"),
        (["", ""], r"has 0 lines"),
        ([], r"has 0 lines"),
    ],
)
def test_a_table_that_cannot_be_used_is_explained(tmp_path, lines, words):
    path = write(tmp_path / "seen.csv", *lines)
    with pytest.raises(ConfigError, match=words):
        availability(path, 2)


def test_a_table_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read availability .*none\.csv: No such file"):
        availability(str(tmp_path / "none.csv"), 2)
    with pytest.raises(ConfigError, match=r"binary is UTF-16 text; save it as UTF-8$"):
        availability(str(tmp_path / "binary"), 2)


def test_a_table_as_spreadsheets_write_it(tmp_path):
    """With a mark at the beginning, other ends of lines, and an empty line at the end."""
    (tmp_path / "seen.csv").write_bytes(b"\xef\xbb\xbf1,0\r\n0,1\r\n\r\n")
    assert availability(str(tmp_path / "seen.csv"), 2).tolist() == [[True, False], [False, True]]


def test_a_reply_without_its_gradient_keeps_its_weights():
    from fedpart.client import without_hyper

    whole = reply(1, gradient=3.0)
    left = without_hyper(whole, "why")
    assert left.deltas is whole.deltas
    assert (left.hyper_gradient, left.hyper_examples, left.hyper_fault) == (None, 0, "why")
    assert replace(left, hyper_fault=None).num_examples == whole.num_examples
