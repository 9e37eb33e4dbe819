import io
import json

from rich.console import Console

from fedpart.config import Config
from fedpart.errors import DROPPED
from fedpart.progress import JsonProgress, LiveProgress, PlainProgress, make_progress
from fedpart.records import ClientRecord, EvaluationRecord, FailureRecord, RoundRecord, Summary
from fedpart.wording import (
    UploadShare,
    describe,
    duration,
    failure_lines,
    mean_dropout,
    summary_rows,
)

BYTES = ("upload_model", "upload_wire", "download_model", "download_wire")


def record(number, share=0.5, failures=()):
    """A round of one client, whose reply counts where it uploads anything."""
    up, down = int(1_000_000 * share), 1_000_000
    each = dict(zip(BYTES, (up, up, down, down), strict=True))
    client = ClientRecord(
        client_id=0,
        chunk=0,
        num_examples=5,
        train_loss=1.0,
        seconds=1.0,
        **{f"{n}_bytes": v for n, v in each.items()},
        status="ok" if up else "failed",
    )
    return RoundRecord(
        round=number,
        clients=[client],
        **{f"{n}_bytes": v for n, v in each.items()},
        **{f"cumulative_{n}_bytes": v * number for n, v in each.items()},
        upload_fraction=share or None,
        hyper={},
        hyper_readable={"rotation_degrees": 45.0, "dropout_1": 0.1, "dropout_2": 0.3},
        seconds=1.0,
        failures=list(failures),
    )


EVALUATION = EvaluationRecord(
    round=2, num_images=5, val_accuracy=0.875, val_loss=1.0, subnetworks=[], l_ml=None
)
SUMMARY = Summary(
    kind="federated",
    method="partitioned",
    dataset="rotmnist",
    train_size=5,
    skew="iid",
    alpha=0.1,
    seed=0,
    config_hash="0" * 64,
    data_hash="0" * 64,
    rounds=2,
    final_accuracy=0.875,
    final_accuracy_n=1,
    test_accuracy=0.5,
    **{f"{n}_bytes": 2_000_000 for n in BYTES},
    upload_fraction=0.5,
    failures=1,
    hyper_readable=record(1).hyper_readable,
    seconds=3.0,
    seconds_per_round=1.0,
    peak_rss_bytes=10**8,
)
FAILURE = FailureRecord(client_id=7, chunk=0, reason="fell [over]")


def show(progress, tmp_path):
    progress.begin(Config(rounds=2))
    progress.data("digits [real]", [])
    progress.backend("inline (one [core])")
    progress.round(record(1, failures=[FAILURE]), [])
    progress.round(record(2), [EVALUATION])
    progress.end(SUMMARY, tmp_path)
    progress.close()


def test_plain_lines(tmp_path, capsys):
    show(PlainProgress(), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "data: digits [real]"
    assert lines[2] == "back end: inline (one [core])"
    assert lines[3] == "round 1: client 7: fell [over]"
    assert lines[4].startswith(
        "round 2/2, accuracy 87.50 %, rotation ±45.0°, dropout 0.200, up 1 MB (50 %), 0:00:00"
    )
    assert any(line.split() == ["test", "accuracy", "50.00", "%"] for line in lines)
    assert lines[-1].endswith(str(tmp_path))


def test_an_evaluation_that_comes_late_is_shown_with_the_state_of_its_round(capsys):
    """Round 2 is evaluated beside round 3; rotation is that of round 2. Of round 1, which another
    process went through, only the accuracy is known."""
    progress = PlainProgress()
    progress.begin(Config(rounds=4))
    progress.data("digits", [record(1)])
    early = EVALUATION.model_copy(update={"round": 1})
    progress.round(record(2), [early])
    turned = record(3).model_copy(update={"hyper_readable": {"rotation_degrees": 90.0}})
    progress.round(turned, [EVALUATION])
    lines = capsys.readouterr().out.splitlines()[3:]
    assert lines[0].startswith("round 1/4, accuracy 87.50 %, 0:")
    assert lines[1].startswith("round 2/4, accuracy 87.50 %, rotation ±45.0°, ")


def test_a_run_that_diverges_says_so(capsys):
    progress = PlainProgress()
    progress.begin(Config(rounds=2))
    progress.data("digits", [])
    progress.round(record(2), [EVALUATION.model_copy(update={"val_loss": None})])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("round 2/2, accuracy 87.50 %, loss not finite, rotation")


def test_a_live_line_in_a_terminal(tmp_path):
    progress = LiveProgress()
    screen = io.StringIO()
    progress._console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    show(progress, tmp_path)
    text = screen.getvalue()
    for words in (
        "digits [real]",
        "inline (one [core])",
        "fell [over]",
        "2/2",
        "acc 87.5 %",
        "±45.0°",
        "(50 %)",
    ):
        assert words in text
    assert "curves.png" in text


def test_json_only(tmp_path, capsys):
    show(JsonProgress(), tmp_path)
    assert json.loads(capsys.readouterr().out) == SUMMARY.model_dump(mode="json")


def test_of_many_failures_a_few_are_shown_and_all_are_counted():
    """Three lines, and one for the rest; an empty round says that nothing has changed."""
    failures = [FailureRecord(client_id=i, chunk=0, reason=f"reason {i}") for i in range(5)]
    lines = failure_lines(record(4, failures=failures))
    assert lines == [
        *(f"round 4: client {i}: reason {i}" for i in range(3)),
        "round 4: 2 more failed, see rounds.jsonl",
    ]
    (_, empty) = failure_lines(record(4, share=0, failures=failures[:1]))
    assert empty.startswith("round 4: empty, no reply counted; ")
    assert failure_lines(record(4)) == []


def test_empty_rounds_are_in_the_table(tmp_path):
    rows = dict(summary_rows(SUMMARY.model_copy(update={"empty_rounds": 2}), tmp_path))
    assert rows["failed replies"] == "1, 2 rounds were empty"


def test_warnings_are_seen_and_leave_json_clean(tmp_path, capsys):
    for progress in (PlainProgress(), JsonProgress()):
        progress.warn("other [version]")
    progress.round(record(1, failures=[FAILURE]), [])
    out, err = capsys.readouterr()
    assert out == "warning: other [version]\n"
    assert err == "warning: other [version]\nround 1: client 7: fell [over]\n"
    live, screen = LiveProgress(), io.StringIO()
    live._console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    live.warn("other [version]")
    assert "warning: other [version]" in screen.getvalue()


def test_the_share_is_over_all_rounds_and_survives_a_resume():
    share = UploadShare([record(1, 1.0)])
    assert share.add(record(2, 0.5)) == 1_000_000 / 2_000_000
    assert UploadShare().add(record(1, 0.0)) == 0.0


def test_what_fits_the_output():
    assert isinstance(make_progress(True), JsonProgress)
    assert isinstance(make_progress(False), PlainProgress)


def test_words():
    assert duration(3725.4) == "1:02:05"
    assert mean_dropout({"rotation_degrees": 1.0}) is None


def test_those_who_drop_out_by_chance_are_counted_and_not_shown():
    dropped = FailureRecord(client_id=1, chunk=0, reason=DROPPED)
    assert failure_lines(record(3, failures=[dropped, FAILURE])) == [
        "round 3: client 7: fell [over]"
    ]


def test_hyperparameters_of_ones_own_are_told_as_they_are_learned_and_at_the_end(tmp_path):
    own = {"brightness": 0.123456} | {f"x{i}": float(i) for i in range(8)} | {"dropout_1": 0.1}
    words = describe(record(2).model_copy(update={"hyper_readable": own}), 0.5)
    assert words[:3] == ["brightness 0.123", "x0 0", "dropout 0.100"]
    learned = dict(summary_rows(SUMMARY.model_copy(update={"hyper_readable": own}), tmp_path))
    assert (
        learned["learned"]
        == "brightness 0.123, x0 0, x1 1, x2 2, x3 3, x4 4, x5 5, x6 6 and 1 more"
    )
