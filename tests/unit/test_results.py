import shutil
from pathlib import Path

import pytest
from made_runs import change_summary, make_run

from fedpart.errors import OutputError
from fedpart.results import Key, collect, thousands
from fedpart.results_text import to_latex, to_markdown, write_table

ROOT = Path(__file__).parents[2]
TEN = tuple(0.7 + 0.01 * i for i in range(10))


def run(folder, accuracy=0.8, rounds=600, **settings):
    """A run as long as asked, whose last ten evaluations are all ``accuracy``."""
    count = rounds // 60
    given = {"eval_every": 10, **settings}
    return make_run(folder, accuracies=(accuracy,) * count, every=60, **given)


def rows(text):
    """Markdown table -> list of rows, each a list of cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def cell(text, method, column, rounds="600"):
    head, _, *body = rows(text)
    (line,) = [row for row in body if row[:2] == [method, rounds]]
    return line[head.index(column)]


def test_mean_and_standard_error_over_seeds_by_hand(tmp_path):
    # 78, 80, 85: mean 81, deviations -3, -1, 4, sum of squares 26, sample variance 13, standard
    # error sqrt(13 / 3) = 2.0817.
    for seed, accuracy in enumerate((0.78, 0.80, 0.85)):
        run(tmp_path / f"seed-{seed}", accuracy, seed=seed)
    results = collect([tmp_path])
    key = Key("rotmnist", 1250, "rotation", 0.1, "partitioned", 600)
    assert results.cells[key].accuracy == pytest.approx((81, 2.081666), abs=1e-6)
    assert results.skipped == ()
    text = to_markdown(results)
    assert cell(text, "FedAvg + Partitioned", "RotMNIST 1.25k") == "81.0 ± 2.1 (3)"


def test_a_single_seed_has_no_error(tmp_path):
    run(tmp_path / "a", 0.7771)
    text = to_markdown(collect([tmp_path]))
    assert cell(text, "FedAvg + Partitioned", "RotMNIST 1.25k") == "77.7 (1)"


def test_the_layout_is_the_papers(tmp_path):
    run(tmp_path / "p")
    run(tmp_path / "f", method="fedavg", dataset="mnist", train_size=5000)
    head, rule, *body = rows(to_markdown(collect([tmp_path])))
    assert head == [
        *("method", "rounds", "MNIST 1.25k", "MNIST 5k", "MNIST 50k"),
        *("RotMNIST 1.25k", "RotMNIST 5k", "RotMNIST 50k", "upload [%]"),
    ]
    assert all(set(cell) <= {"-", ":"} for cell in rule)
    assert [row[:2] for row in body] == [
        ["FedAvg", "600"],
        ["FedAvg, paper", "2,000"],
        ["FedAvg + Augerino", "—"],
        ["FedAvg + Augerino, paper", "2,000"],
        ["FedAvg + Partitioned", "600"],
        ["FedAvg + Partitioned, paper", "2,000"],
    ]
    # What nobody has run is shown as missing, the paper's numbers beside it.
    assert body[0][2:] == ["—", "80.0 (1)", "—", "—", "—", "—", "50.0"]
    assert body[2][2:] == ["—"] * 7
    assert body[4][2:] == ["—", "—", "—", "80.0 (1)", "—", "—", "50.0"]
    assert body[5][2:] == [
        *("97.0 ± 0.1 (4)", "98.3 ± 0.0 (4)", "99.2 ± 0.1 (4)"),
        *("85.7 ± 0.9 (4)", "93.5 ± 0.6 (4)", "97.8 ± 0.1 (4)", "77"),
    ]


def test_runs_of_other_lengths_never_meet_in_a_line(tmp_path):
    run(tmp_path / "short", 0.8)
    run(tmp_path / "long", 0.9, rounds=2040, seed=1)
    text = to_markdown(collect([tmp_path]))
    assert cell(text, "FedAvg + Partitioned", "RotMNIST 1.25k", "600") == "80.0 (1)"
    assert cell(text, "FedAvg + Partitioned", "RotMNIST 1.25k", "2,040") == "90.0 (1)"


def test_upload_is_measured_over_all_runs_of_a_line(tmp_path):
    a, b = run(tmp_path / "a"), run(tmp_path / "b", seed=1)
    change_summary(a, upload_fraction=0.76)
    change_summary(b, upload_fraction=0.79)
    text = to_markdown(collect([tmp_path]))
    assert cell(text, "FedAvg + Partitioned", "upload [%]") == "77.5"


def test_another_split_has_a_line_of_its_own_below_the_papers(tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b", skew="label")
    run(tmp_path / "c", alpha=1.0)
    run(tmp_path / "d", skew="iid", seed=1)
    body = rows(to_markdown(collect([tmp_path])))[2:]
    assert [row[0] for row in body[4:]] == [
        "FedAvg + Partitioned",
        "FedAvg + Partitioned, paper",
        "FedAvg + Partitioned, iid, alpha 0.1",
        "FedAvg + Partitioned, label skew, alpha 0.1",
        "FedAvg + Partitioned, rotation skew, alpha 1",
    ]


def test_sizes_and_data_sets_that_the_paper_has_not(tmp_path):
    run(tmp_path / "a", train_size=100)
    photos = run(tmp_path / "b", seed=1)
    change_summary(photos, dataset="my_photos", method="mine")
    text = to_markdown(collect([tmp_path]))
    assert "RotMNIST 100" in rows(text)[0]
    assert "my_photos 1.25k" in text
    assert "| mine, rotation skew, alpha 0.1 |" in text
    assert "my\\_photos" in to_latex(collect([tmp_path]))


def test_runs_are_found_wherever_they_are_and_once(tmp_path):
    for seed in (0, 1, 10, 2):
        run(tmp_path / "deep" / "er" / f"seed-{seed}", seed=seed)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    (tmp_path / "deep" / "back").symlink_to(tmp_path)
    (tmp_path / ".hidden").mkdir()
    one = tmp_path / "deep" / "er" / "seed-1"
    results = collect([tmp_path, tmp_path / "deep", one])
    (found,) = results.cells.values()
    assert [r.summary.seed for r in found.runs] == [0, 1, 2, 10]
    assert results.skipped == ()


def test_what_is_left_out_is_named(tmp_path):
    run(tmp_path / "a")
    make_run(tmp_path / "b", seed=1, rounds=600, every=60, accuracies=(0.5,) * 10, done=60)
    run(tmp_path / "c")
    run(tmp_path / "d", samples=3)
    (run(tmp_path / "e", seed=5) / "summary.json").write_text("{")
    change_summary(run(tmp_path / "f", seed=6), kind="central")
    results = collect([tmp_path])
    (found,) = results.cells.values()
    assert [r.folder.name for r in found.runs] == ["a"]
    folder = f"skipped {tmp_path}"
    assert results.skipped == (
        f"{folder}/b: not finished, 60 rounds of 600 done",
        f"{folder}/c: seed 0 is taken from {tmp_path}/a",
        f"{folder}/d: seed 0 is taken from {tmp_path}/a, with other settings (samples 10 and 3)",
        f"{folder}/e: {tmp_path}/e/summary.json is damaged (Invalid JSON: EOF while parsing an "
        "object at line 1 column 1): put it back from a copy, or start anew",
        f"{folder}/f: a central run, not a federated one: see its summary.json",
    )


def test_damaged_records_are_named_and_never_counted_as_none(tmp_path):
    """Also where no number of the table comes from them."""
    run(tmp_path / "a")
    spoil(run(tmp_path / "b", seed=1) / "evaluations.jsonl", 3)
    spoil(make_run(tmp_path / "c", seed=2, done=2) / "rounds.jsonl", 1)
    results = collect([tmp_path])
    assert f"{tmp_path}/b/evaluations.jsonl is damaged in line 3" in results.notes[0]
    (skipped,) = results.skipped
    assert f"{tmp_path}/c/rounds.jsonl is damaged in line 1" in skipped


def test_damaged_settings_are_named_with_what_is_wrong(tmp_path):
    """Cut between two lines, they are still TOML; defaults must not stand for what is lost."""
    run(tmp_path / "a")
    path = run(tmp_path / "b", seed=1) / "config.toml"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    (note,) = collect([tmp_path]).notes
    assert f"{path} is damaged (it ends early, without the key json)" in note
    path.write_text("x")
    (note,) = collect([tmp_path]).notes
    assert f"{path} is not valid TOML: " in note


def spoil(path, number):
    """Damage one line."""
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1] = "[]\n"
    path.write_text("".join(lines))


def test_a_table_without_a_finished_run_is_refused(tmp_path):
    make_run(tmp_path / "a", done=1)
    with pytest.raises(OutputError, match=r"no finished federated run: .*not finished, 1 round of"):
        collect([tmp_path / "a"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(OutputError, match="holds no run"):
        collect([tmp_path / "empty"])
    with pytest.raises(OutputError, match="is no folder"):
        collect([tmp_path / "none"])


def test_other_data_within_a_cell_is_refused_and_the_difference_named(tmp_path):
    a = run(tmp_path / "a")
    run(tmp_path / "b", seed=1, data_seed=7, data_hash="b" * 64)
    with pytest.raises(OutputError, match=r"data-seed is 0 in one and 7 in the other"):
        collect([tmp_path])
    (a / "config.toml").unlink()
    with pytest.raises(OutputError, match=r"not on the same data: hash aaaaaaaaaaaa and bbbbb"):
        collect([tmp_path])


def test_other_data_in_another_cell_is_no_obstacle_but_said(tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b", method="fedavg", data_hash="b" * 64)
    run(tmp_path / "c", train_size=5000, data_hash="c" * 64)
    assert collect([tmp_path]).notes == (
        "not on the same data: fedavg on rotmnist 1.25k, 600 rounds / partitioned on rotmnist "
        "1.25k, 600 rounds",
    )


def test_the_papers_settings_need_no_note(tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b", method="fedavg")
    results = collect([tmp_path])
    assert results.notes == ()
    assert "Not as in the paper" not in to_markdown(results)


def test_what_is_unlike_the_paper_is_said_below(tmp_path):
    make_run(tmp_path / "a", accuracies=(0.5,), images=3750, clients=50, chunks=(0.6, 0.4))
    (run(tmp_path / "b", seed=1, dataset="mnist") / "config.toml").unlink()
    note, other = collect([tmp_path]).notes[::-1]
    assert note == (
        "partitioned on rotmnist 1.25k, 2 rounds: clients 50 (paper 100); eval-every 2 (paper 10); "
        "chunks 0.6,0.4 (paper 0.7,0.2,0.1); evaluations in the mean: 1 (paper 10); "
        "validation images: 3,750 (paper 10,000)"
    )
    assert other == (
        "partitioned on mnist 1.25k, 600 rounds: settings unknown for want of a readable "
        "config.toml"
    )
    assert f"- {note}\n" in to_markdown(collect([tmp_path]))
    assert f"% Not as in the paper: {note}\n" in to_latex(collect([tmp_path]))


def test_seeds_that_differ_in_more_are_averaged_and_that_is_said(tmp_path):
    run(tmp_path / "a", 0.7)
    run(tmp_path / "b", 0.9, seed=1, width_start=0.2)
    results = collect([tmp_path])
    assert [c.accuracy[0] for c in results.cells.values()] == pytest.approx([80])
    assert results.notes[0].endswith("seeds differ in more than the seed: width-start 0.1 and 0.2")


def test_summaries_of_other_versions_are_read(tmp_path):
    change_summary(run(tmp_path / "a"), something_new=[1, 2])
    assert len(collect([tmp_path]).cells) == 1


def test_latex_has_as_many_cells_in_each_row(tmp_path):
    run(tmp_path / "a")
    run(tmp_path / "b", seed=1)
    lines = to_latex(collect([tmp_path])).splitlines()
    assert all(line.startswith("%") for line in lines[:2])
    table = [line for line in lines if not line.startswith("%")]
    assert table[0] == r"\begin{tabular}{lrccccccr}"
    assert table[-1] == r"\end{tabular}"
    assert table.count(r"\toprule") == table.count(r"\midrule") == table.count(r"\bottomrule") == 1
    body = [line for line in table if line.endswith(r"\\")]
    assert [line.count("&") for line in body] == [4] + [8] * 7
    assert r"FedAvg + Partitioned & 600 & -- & -- & -- & $80.0_{\pm0.0}$ (2) &" in table[-4]
    assert r"& 2\,000 & $97.0_{\pm0.1}$ (4) &" in table[-3]
    assert all(line.count("{") == line.count("}") for line in lines)
    assert not any(character in "\n".join(table) for character in "±—")


def test_a_table_goes_to_a_file(tmp_path):
    run(tmp_path / "a")
    results = collect([tmp_path])
    out = tmp_path / "deep" / "t.md"
    assert write_table(results, False, out) == f"{out}\n"
    assert out.read_text(encoding="utf-8") == write_table(results, False, None)
    with pytest.raises(OutputError, match="cannot write"):
        write_table(results, False, out / "x.md")


def test_sizes_in_thousands():
    assert [thousands(n) for n in (100, 1250, 5000, 50_000)] == ["100", "1.25k", "5k", "50k"]


def test_committed_results_give_the_readmes_numbers(tmp_path):
    """A copy, since nothing above the folder may matter."""
    shutil.copytree(ROOT / "results" / "quick-rotmnist-1.25k", tmp_path / "copy")
    results = collect([tmp_path / "copy"])
    text, readme = to_markdown(results), (ROOT / "README.md").read_text(encoding="utf-8")
    assert results.skipped == results.notes == ()
    for method in ("FedAvg", "FedAvg + Partitioned"):
        number = cell(text, method, "RotMNIST 1.25k")
        assert number.endswith(" (3)")
        assert number.removesuffix(" (3)") in readme
