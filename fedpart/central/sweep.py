"""Several central runs, which differ in K or in the seed: their folders, and what they come to.

``OUT/config.toml`` holds the settings of all; a run's folder is ``OUT/seed-<s>``, or
``OUT/inputs-<K>/seed-<s>`` where K differs too. ``OUT/sweep.json`` and ``sweep.png`` hold what is
finished.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from fedpart.central.config import CentralConfig, read_central_config
from fedpart.central.records import CentralEvaluation, CentralSummary
from fedpart.checkpoint import write_atomic
from fedpart.errors import OutputError
from fedpart.records import Record
from fedpart.run_files import ended_well, new_folder, read_lines

INFORMATIVE = 15


class Sweep(Record):
    """``sweep.json``: the summaries of all runs that are finished."""

    experiment: str
    runs: list[CentralSummary] = Field(description="in the order in which they ran")


def new_parent(path: Path, config: CentralConfig) -> None:
    """Make the folder of several runs, and write what each of them goes by.

    Raises:
        OutputError: it holds something already, or cannot be made.
    """
    new_folder(path)
    write_atomic(path / "config.toml", config.to_toml().encode())


def single_runs(parent: Path, config: CentralConfig) -> Iterator[tuple[Path, CentralConfig]]:
    """Folder and settings of each run: all K for one seed, then for the next.

    Raises:
        OutputError: a folder that began with other settings.
    """
    for seed in range(config.seed, config.seed + config.seeds):
        for kept in config.inputs:
            folder = parent / f"inputs-{kept}" if len(config.inputs) > 1 else parent
            folder = folder / f"seed-{seed}"
            update = {"seed": seed, "seeds": 1, "inputs": (kept,), "out": str(folder)}
            one = config.model_copy(update=update)
            if (folder / "config.toml").is_file():
                theirs = read_central_config(folder)
                if theirs.config_hash != one.config_hash:
                    raise OutputError(
                        f"{folder} began with other settings than {parent / 'config.toml'}: set "
                        "them back, or start a new run"
                    )
            yield folder, one


def summary_of(folder: Path) -> CentralSummary | None:
    """What a run came to; None where it is not finished.

    Raises:
        OutputError: a damaged file.
    """
    if not ended_well(folder):
        return None
    try:
        return CentralSummary.model_validate_json((folder / "summary.json").read_bytes())
    except (OSError, ValidationError):
        raise OutputError(f"{folder / 'summary.json'} is damaged: start that run anew") from None


def evaluations_of(folder: Path) -> list[CentralEvaluation]:
    """Every evaluation of a run.

    Raises:
        OutputError: a damaged file.
    """
    return [CentralEvaluation(**line) for line in read_lines(folder / "evaluations.jsonl")]


def write_sweep(parent: Path, config: CentralConfig, summaries: Sequence[CentralSummary]) -> None:
    """Write ``sweep.json`` and ``sweep.png``.

    Raises:
        OutputError: a place that cannot be written.
    """
    from fedpart.central.plots import draw_inputs, draw_masks

    sweep = Sweep(experiment=config.experiment, runs=list(summaries))
    text = sweep.model_dump_json(indent=1)
    write_atomic(parent / "sweep.json", (text + "\n").encode())
    if config.experiment == "input-selection":
        draw_inputs(summaries, parent / "sweep.png")
        return
    runs = [(f"seed {s.seed}", evaluations_of(parent / f"seed-{s.seed}")) for s in summaries]
    draw_masks(runs, parent / "sweep.png")


def verdict(summaries: Sequence[CentralSummary]) -> list[str]:
    """What each seed says about the inputs, a sentence each."""
    lines = []
    for seed in sorted({s.seed for s in summaries}):
        runs = [s for s in summaries if s.seed == seed]
        if runs[0].inputs is None:
            mask = list(runs[0].hyper_readable.values())
            shut, open_ = max(mask[INFORMATIVE:]), min(mask[:INFORMATIVE])
            right = sum((p > 0.5) == (i < INFORMATIVE) for i, p in enumerate(mask))
            lines.append(
                f"seed {seed}: {right} of {len(mask)} inputs right; open, at least {open_:.3f} of "
                f"the informative, at most {shut:.3f} of the others"
            )
        else:
            best = max(runs, key=lambda s: s.l_ml if s.l_ml is not None else float("-inf"))
            name = "L_ML" if best.method == "partitioned" else "Laplace's evidence"
            lines.append(f"seed {seed}: {name} highest at K = {best.inputs} of {len(runs)} runs")
    return lines
