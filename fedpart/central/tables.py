"""What several runs come to: Markdown, the paper's numbers beside their own."""

from collections.abc import Iterable, Sequence

from fedpart.central import paper
from fedpart.central.finished import Finished, accuracy, of_method, ratio, rotation

INFORMATIVE = 15
NAMES = {
    "partitioned": "partitioned",
    "networks": "networks that share nothing (upper bound)",
    "augerino": "Augerino",
    "none": "no augmentation",
    "validation": "validation set",
    "finetuned": "validation set, fine-tuned on all",
    "retrain": "plain network, psi held fixed",
    "random-search": "plain network, psi drawn",
}
_HEAD = "Test accuracy [%], mean ± standard error (number of seeds)."
_FIGURE = "The paper shows a figure here; its text gives no numbers."


def _cell(runs: Sequence[Finished]) -> str:
    if not runs:
        return ""
    mean, error = accuracy(runs)
    return f"{mean:.2f}" + ("" if error is None else f" ± {error:.2f}") + f" ({len(runs)})"


def _pair(pair: paper.Pair | None, crashed: bool = False) -> str:
    if pair is None:
        return "crashed" if crashed else ""
    return f"{pair[0]} ± {pair[1]}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    line = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return line + ["| " + " | ".join(row) + " |" for row in rows]


def _methods(runs: Sequence[Finished]) -> list[str]:
    return [name for name in NAMES if of_method(runs, name)]


def inputs(runs: Sequence[Finished]) -> list[str]:
    """Where L_ML is highest, a sentence a seed."""
    lines = []
    for seed in sorted({run.summary.seed for run in runs}):
        found = [run.summary for run in runs if run.summary.seed == seed]
        best = max(found, key=lambda s: s.l_ml if s.l_ml is not None else float("-inf"))
        name = "L_ML" if best.method == "partitioned" else "Laplace's evidence"
        lines.append(f"seed {seed}: {name} highest at K = {best.inputs} of {len(found)} runs")
    return lines


def masks(runs: Sequence[Finished]) -> list[str]:
    """Which inputs are on their side of 1/2, a sentence a seed."""
    lines = []
    for run in sorted(runs, key=lambda run: run.summary.seed):
        mask = list(run.summary.hyper_readable.values())
        shut, open_ = max(mask[INFORMATIVE:]), min(mask[:INFORMATIVE])
        right = sum((p > 0.5) == (i < INFORMATIVE) for i, p in enumerate(mask))
        lines.append(
            f"seed {run.summary.seed}: {right} of {len(mask)} inputs right; open, at least "
            f"{open_:.3f} of the informative, at most {shut:.3f} of the others"
        )
    return lines


def sizes(runs: Sequence[Finished]) -> list[str]:
    """Methods by data set and size; beneath, the rotation that was learned.

    Source: section 5, figure of digits by data size, table of test accuracies by method.
    """
    columns = sorted({(s.dataset, s.model, s.train_size) for s in (r.summary for r in runs)})
    head = [f"{dataset} {size:,}, {model}" for dataset, model, size in columns]
    rows, turned = [], []
    for method in _methods(runs):
        cells = [
            [
                run
                for run in of_method(runs, method)
                if (run.summary.dataset, run.summary.model, run.summary.train_size) == column
            ]
            for column in columns
        ]
        rows.append([NAMES[method], *map(_cell, cells)])
        printed = [paper.AFFINE.get((str(c[0]), str(c[1])), {}).get(method) for c in columns]
        if any(printed):
            rows.append([f"  paper, all training images: {NAMES[method]}", *map(_pair, printed)])
        widths = [[w for run in cell if (w := rotation(run)) is not None] for cell in cells]
        if any(widths):
            turned.append([NAMES[method], *(", ".join(f"{w:.0f}" for w in c) for c in widths)])
    lines = [_HEAD, "", *markdown(["method", *head], rows), ""]
    if any(str(dataset).endswith("mnist") for dataset, *_ in columns):
        lines += [f"Digits: {_FIGURE[0].lower()}{_FIGURE[1:]}", ""]
    if turned:
        lines += ["Rotation at the end, ± [degrees], a number a seed.", ""]
        lines += markdown(["method", *head], turned)
    return lines


def splits(runs: Sequence[Finished]) -> list[str]:
    """Partitioned, validation set, and that with fine-tuning, by shares of the chunks.

    Source: section 5, table of splits and fine-tuning.
    """
    columns = sorted({tuple(run.summary.chunks or ()) for run in runs})
    where = sorted({f"{r.summary.dataset} {r.summary.train_size:,}" for r in runs})
    rows = []
    for name, method in (
        ("partitioned", "partitioned"),
        ("validation", "validation"),
        ("finetuned", "validation"),
    ):
        cells = [
            [r for r in of_method(runs, method) if r.summary.chunks == list(c)] for c in columns
        ]
        if name == "finetuned":
            cells = [[r for r in cell if before(r) is not None] for cell in cells]
        elif name == "validation":
            cells = [[_before(r) for r in cell] for cell in cells]
        printed = [paper.CHUNKS[name].get(round(c[0], 3)) for c in columns]
        known = [round(c[0], 3) in paper.CHUNKS[name] for c in columns]
        rows.append([NAMES[name], *map(_cell, cells)])
        rows.append(
            [
                "  paper: CIFAR10 20,000, FixUp ResNet-14",
                *(_pair(p, crashed=k) for p, k in zip(printed, known, strict=True)),
            ]
        )
    won = []
    for column in columns:
        by_seed: dict[int, dict[str, float]] = {}
        for run in runs:
            if run.summary.chunks == list(column):
                of_seed = by_seed.setdefault(run.summary.seed, {})
                of_seed[run.summary.method] = _before(run).summary.test_accuracy
        both = [v for v in by_seed.values() if {"partitioned", "validation"} <= v.keys()]
        above = sum(v["partitioned"] > v["validation"] for v in both)
        won.append(f"{above} of {len(both)}" if both else "")
    rows.append(["seeds in which partitioned is above the validation set", *won])
    lines = [f"{_HEAD} {', '.join(where)}; columns: shares of the two chunks.", ""]
    return lines + markdown(["method", *map(ratio, columns)], rows)


def before(run: Finished) -> float | None:
    """Test accuracy before fine-tuning, where there was any."""
    return run.summary.test_accuracy_before_finetune


def _before(run: Finished) -> Finished:
    value = before(run)
    if value is None:
        return run
    return Finished(run.folder, run.summary.model_copy(update={"test_accuracy": value}))


def search(runs: Sequence[Finished]) -> list[str]:
    """What partitioned runs found beside the best of psi drawn at random.

    Source: Appendix G, "How good are the hyperparameters found?".
    """
    drawn = of_method(runs, "random-search")
    rows = [
        [NAMES[method], _cell(found), ", ".join(_degrees(run) for run in found)]
        for method in ("none", "partitioned", "retrain")
        if (found := of_method(runs, method))
    ]
    if drawn:
        chosen = max(drawn, key=lambda r: r.summary.validation_accuracy or 0)
        best = max(drawn, key=lambda r: r.summary.test_accuracy)
        rows += [
            [f"{name} of {len(drawn)} psi drawn", _cell([run]), _degrees(run)]
            for name, run in (("best by validation", chosen), ("best by test", best))
        ]
        rows.append(["all psi drawn, mean", _cell(drawn), ""])
    return [_HEAD, "", *markdown(["", "accuracy", "rotation, ± [degrees]"], rows), "", _FIGURE]


def _degrees(run: Finished) -> str:
    width = rotation(run)
    return "-" if width is None else f"{width:.0f}"


def grids(runs: Sequence[Finished]) -> list[str]:
    """Shares of the data by shares of the weights: the run's own accuracy, and retrained.

    Source: Appendix F, "Sensitivity to partitioning".
    """
    lines = [_HEAD + " Columns: shares of the data; rows: shares of the weights.", ""]
    for dataset, count in sorted({(str(r.summary.dataset), len(shares_of(r)[0])) for r in runs}):
        for method in _methods(runs):
            found = [
                r
                for r in of_method(runs, method)
                if (r.summary.dataset, len(shares_of(r)[0])) == (dataset, count)
            ]
            if not found:
                continue
            data = sorted({shares_of(r)[0] for r in found})
            weights = sorted({shares_of(r)[1] for r in found})
            rows = [
                [ratio(w), *(_cell([r for r in found if shares_of(r) == (d, w)]) for d in data)]
                for w in weights
            ]
            lines += [f"{dataset}, {count} chunks, {NAMES[method]}:", ""]
            lines += [*markdown(["weights", *map(ratio, data)], rows), ""]
    return [*lines, _FIGURE]


def shares_of(run: Finished) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Shares of data and weights; of a retrained network, of the run that found its psi."""
    return tuple(run.summary.chunks or ()), tuple(run.summary.weights or ())


def extractors(runs: Sequence[Finished]) -> list[str]:
    """The first stages of a network as psi.

    Source: section 5, table of the feature extractor.
    """
    rows = []
    for method in _methods(runs):
        found = of_method(runs, method)
        printed = paper.EXTRACTOR.get(method)
        told = "" if printed is None else f"{_pair(printed[1])}, chunks {ratio(printed[0])}"
        rows.append([NAMES[method], ratio(found[0].summary.chunks), _cell(found), told])
    size = runs[0].summary.train_size
    head = ["method", "chunks", "accuracy", "paper: CIFAR10, 50,000"]
    return [f"{_HEAD} {size:,} training images.", "", *markdown(head, rows)]
