import pytest
from made_runs import make_run

from fedpart.curves import Group, cut, moving_average, reached, read_curve, write_csv
from fedpart.errors import OutputError
from fedpart.plots_curves import draw_run


def test_moving_average_uses_what_is_there():
    assert moving_average([1, 2, 3, 4], window=3) == [1, 1.5, 2, 3]


def test_moving_average_is_over_ten_evaluations():
    values = [0.0] * 10 + [1.0] * 10
    assert moving_average(values)[9:] == pytest.approx([i / 10 for i in range(11)])


def test_a_curve_is_read_as_recorded(tmp_path):
    curve = read_curve(make_run(tmp_path / "a"))
    assert curve.rounds == [2, 4]
    assert curve.accuracy == [0.4, 0.8]
    assert curve.smooth == pytest.approx([0.4, 0.6])
    assert curve.megabytes == {"upload": [10, 20], "download": [20, 40], "total": [30, 60]}
    assert curve.chunks == [[8, 2], [16, 4]]
    assert curve.upload_share == pytest.approx([0.5, 0.5])
    assert [psi["rotation_degrees"] for psi in curve.hyper] == [18, 36]


def test_a_finished_run_keeps_its_curve_in_a_small_file(tmp_path):
    run = make_run(tmp_path / "a")
    curve = read_curve(run)
    draw_run(run)
    assert (run / "curves.png").stat().st_size > 1000
    (run / "rounds.jsonl").unlink()
    assert read_curve(run) == curve


def test_a_curve_without_anything_learned_survives_the_file(tmp_path):
    run = make_run(tmp_path / "a", chunk_mb=(10,), hyper=False, method="fedavg")
    curve = read_curve(run)
    write_csv(curve, run / "curves.csv")
    (run / "rounds.jsonl").unlink()
    assert read_curve(run) == curve
    assert curve.hyper == [{}, {}]


@pytest.mark.parametrize("text", ["", "round\n2\n", "a,b\n1,2\n", "round,val_accuracy\n2,x\n"])
def test_a_damaged_file_of_a_curve_is_refused(tmp_path, text):
    run = make_run(tmp_path / "a")
    (run / "rounds.jsonl").unlink()
    (run / "curves.csv").write_text(text)
    with pytest.raises(OutputError, match=r"curves\.csv is damaged"):
        read_curve(run)


def test_a_run_without_any_curve_is_refused(tmp_path):
    run = make_run(tmp_path / "a", done=1)
    with pytest.raises(OutputError, match="no evaluation yet"):
        read_curve(run)
    (run / "rounds.jsonl").unlink()
    with pytest.raises(OutputError, match="cannot read"):
        read_curve(run)


def test_the_first_evaluation_that_reaches_a_target_counts(tmp_path):
    # Moving averages: 0.4, 0.6, 0.7, 0.65; single evaluations reach 0.8 and 0.9 earlier.
    curve = read_curve(make_run(tmp_path / "a", accuracies=(0.4, 0.8, 0.9, 0.5)))
    assert curve.smooth == pytest.approx([0.4, 0.6, 0.7, 0.65])
    assert reached(curve, 0.4) == 0
    assert reached(curve, 0.61) == 2
    assert reached(curve, 0.71) is None


def test_mean_and_standard_error_over_seeds_by_hand(tmp_path):
    # Last moving averages: 0.5, 0.6, 0.85. Mean 0.65; deviations -0.15, -0.05, 0.2; sum of
    # squares 0.065; sample variance 0.0325; standard error sqrt(0.0325 / 3) = 0.104083.
    curves = [
        read_curve(make_run(tmp_path / str(i), accuracies=(0.4, b)))
        for i, b in enumerate((0.6, 0.8, 1.3))
    ]
    group = Group("g", curves)
    assert group.smooth.mean == pytest.approx([0.4, 0.65])
    assert group.smooth.error == pytest.approx([0, 0.104083], abs=1e-6)
    assert group.megabytes("total") == [30, 60]
    assert group.hyper("rotation_degrees").mean == [18, 36]
    assert group.chunks() == [[8, 16], [2, 4]]


def test_one_seed_has_no_spread(tmp_path):
    assert Group("g", [read_curve(make_run(tmp_path / "a"))]).smooth.error == [0, 0]


def test_a_seed_that_has_not_met_the_last_chunk_counts_as_zero_there(tmp_path):
    curves = [
        read_curve(make_run(tmp_path / "a", chunk_mb=(4, 2))),
        read_curve(make_run(tmp_path / "b", chunk_mb=(4,))),
    ]
    assert Group("g", curves).chunks() == [[8, 16], [2, 4]]


def test_a_curve_can_be_cut_to_some_rounds(tmp_path):
    curve = read_curve(make_run(tmp_path / "a", accuracies=(0.1, 0.2, 0.3)))
    short = cut(curve, [2, 4])
    assert short.rounds == [2, 4]
    assert short.accuracy == [0.1, 0.2]
    assert short.megabytes["upload"] == [10, 20]
    assert len(short.chunks) == len(short.hyper) == len(short.upload_share) == 2
