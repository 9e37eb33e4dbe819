"""The table of results as Markdown or LaTeX, laid out as the paper's."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpart import paper
from fedpart.files import write_out
from fedpart.results import Cell, Key, Results, thousands
from fedpart.seeds import mean_and_error

Column = tuple[str, int]


@dataclass(frozen=True)
class Line:
    """One row of the table.

    Attributes:
        name: of the method.
        paper: whether it is a line of the paper.
        rounds: of every run in it, or None where there is no run.
        cells: column -> mean [%], standard error or None, number of seeds.
        upload: of FedAvg's, as text; empty where there is none.
    """

    name: str
    paper: bool
    rounds: int | None
    cells: Mapping[Column, tuple[float, float | None, int]]
    upload: str


@dataclass(frozen=True)
class Part:
    """A table over some data sets; the paper's has two of them.

    Attributes:
        datasets: setting -> name in print.
        columns: data set and training images of each.
        lines: from top to bottom.
    """

    datasets: Mapping[str, str]
    columns: Sequence[Column]
    lines: Sequence[Line]


def write_table(results: Results, latex: bool, out: Path | None) -> str:
    """Write the table to ``out``, if any.

    Returns:
        what to show: the table, or where it has been written.
    Raises:
        OutputError: the file cannot be written.
    """
    text = to_latex(results) if latex else to_markdown(results)
    if out is None:
        return text
    write_out(out, text.encode())
    return f"{out}\n"


def parts(results: Results) -> list[Part]:
    """The paper's tables that any run belongs to, with all their cells; then what it has not."""
    found = []
    known: set[str] = set()
    for block in paper.BLOCKS:
        known |= set(block.datasets)
        cells = {k: c for k, c in results.cells.items() if k.dataset in block.datasets}
        if cells:
            found.append(_part(block.datasets, cells, block))
    others = {k: c for k, c in results.cells.items() if k.dataset not in known}
    if others:
        found.append(_part({k.dataset: k.dataset for k in others}, others, None))
    return found


def _part(
    datasets: Mapping[str, str], cells: Mapping[Key, Cell], block: paper.Block | None
) -> Part:
    sizes = {(k.dataset, k.train_size) for k in cells} | set(block.columns if block else ())
    order = list(datasets)
    columns = sorted(sizes, key=lambda column: (order.index(column[0]), column[1]))
    rows = {row.method: row for row in block.rows} if block else {}
    methods = [*rows, *sorted({k.method for k in cells} - set(rows))]
    lines: list[Line] = []
    for method in methods:
        row = rows.get(method)
        name = row.name if row else method
        # The paper's line stands below what can be read against it.
        mine = _own_lines(name, {k: c for k, c in cells.items() if k.method == method})
        lines += mine[""] if "" in mine else [Line(name, False, None, {}, "")] if row else []
        if row and block:
            printed = {
                column: (mean, error, paper.SEEDS)
                for column, (mean, error) in zip(block.columns, row.accuracy, strict=True)
            }
            lines.append(Line(name, True, block.rounds, printed, str(row.upload)))
        lines += [line for split, some in mine.items() if split for line in some]
    return Part(datasets, columns, lines)


def _own_lines(name: str, cells: Mapping[Key, Cell]) -> dict[str, list[Line]]:
    """Split ("" for the paper's) -> a line for each number of rounds."""
    found: dict[str, list[Line]] = {}
    for split, rounds in sorted({(k.split, k.rounds) for k in cells}):
        some = {k: c for k, c in cells.items() if (k.split, k.rounds) == (split, rounds)}
        uploads = [100 * run.summary.upload_fraction for c in some.values() for run in c.runs]
        line = Line(
            f"{name}, {split}" if split else name,
            False,
            rounds,
            {(k.dataset, k.train_size): (*c.accuracy, len(c.runs)) for k, c in some.items()},
            f"{mean_and_error(uploads)[0]:.1f}",
        )
        found.setdefault(split, []).append(line)
    return found


_CAPTION = (
    "Validation accuracy [%], the mean of a run's last ten evaluations: mean ± standard error over "
    "seeds (number of seeds). Missing: {missing}. Upload: weights sent, of FedAvg's. Lines of the "
    "paper: Mlodozeniec et al. 2023, table of federated results."
)


def to_markdown(results: Results) -> str:
    """Tables, a caption, and a list of notes."""
    tables = []
    for part in parts(results):
        columns = [f"{part.datasets[d]} {thousands(size)}" for d, size in part.columns]
        head = ["method", "rounds", *columns, "upload [%]"]
        body = [
            [
                f"{line.name}, paper" if line.paper else line.name,
                "—" if line.rounds is None else f"{line.rounds:,}",
                *_cells(line, part.columns, _markdown_number),
                line.upload or "—",
            ]
            for line in part.lines
        ]
        tables.append(_pipes(head, body))
    notes = "".join(f"- {note}\n" for note in results.notes)
    text = "\n".join([*tables, _CAPTION.format(missing="—") + "\n"])
    return text + (f"\nNot as in the paper:\n\n{notes}" if notes else "")


def to_latex(results: Results) -> str:
    """A ``table`` environment (booktabs) for each part; caption and notes as comments above it."""
    about = [_CAPTION.format(missing="--"), *(f"Not as in the paper: {n}" for n in results.notes)]
    lines = [*(f"% {line}" for line in about), "% Needs \\usepackage{booktabs}."]
    for part in parts(results):
        counts = Counter(dataset for dataset, _ in part.columns)
        spans = [
            f"\\multicolumn{{{count}}}{{c}}{{{_escape(part.datasets[dataset])}}}"
            for dataset, count in counts.items()
        ]
        sizes = [thousands(size) for _, size in part.columns]
        lines += [
            f"\\begin{{tabular}}{{lr{'c' * len(part.columns)}r}}",
            "\\toprule",
            _row(["", "", *spans, "Upload"]),
            _row(["Method", "Rounds", *sizes, "[\\%]"]),
            "\\midrule",
        ]
        for line in part.lines:
            name = _escape(line.name)
            lines.append(
                _row(
                    [
                        f"\\quad {name}, paper" if line.paper else name,
                        "--" if line.rounds is None else f"{line.rounds:,}".replace(",", "\\,"),
                        *_cells(line, part.columns, _latex_number, "--"),
                        line.upload or "--",
                    ]
                )
            )
        lines += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join(lines) + "\n"


def _cells(
    line: Line,
    columns: Iterable[Column],
    number: Callable[[float, float | None, int], str],
    missing: str = "—",
) -> list[str]:
    return [number(*line.cells[c]) if c in line.cells else missing for c in columns]


def _markdown_number(mean: float, error: float | None, seeds: int) -> str:
    spread = "" if error is None else f" ± {error:.1f}"
    return f"{mean:.1f}{spread} ({seeds})"


def _latex_number(mean: float, error: float | None, seeds: int) -> str:
    spread = "" if error is None else f"_{{\\pm{error:.1f}}}"
    return f"${mean:.1f}{spread}$ ({seeds})"


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _escape(text: str) -> str:
    for character in "\\&%$#_{}":
        text = text.replace(character, f"\\{character}" if character != "\\" else "")
    return text


def _pipes(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    # Markdown: numbers to the right.
    rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "".join(
        "| "
        + " | ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |\n"
        for row in (head, rule, *body)
    )
