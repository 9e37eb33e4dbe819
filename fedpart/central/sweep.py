"""Several central runs: their folders, and what they come to.

``OUT/config.toml`` holds the settings of all; what a run differs in names the folders down to it,
``OUT/.../seed-<s>``; a run that began when fewer settings had several values stays where it is,
and is found by its settings. ``OUT/sweep.json``, ``sweep.png`` and, of images, ``table.md`` hold
what is finished. Several processes may work on one sweep: a run that another has begun is passed
over, and so is one whose files are damaged.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from fedpart.central.config import (
    SEVERAL,
    CentralConfig,
    make_central_config,
    read_central_config,
)
from fedpart.central.experiments import EXPERIMENTS, Point
from fedpart.central.finished import Finished, finished, learned_psi
from fedpart.central.records import CentralSummary
from fedpart.errors import ConfigError, DamagedError, DivergedError, OutputError
from fedpart.files import write_atomic
from fedpart.records import Record
from fedpart.run_files import claim_folder

# What a plain network takes from another run, by field.
_FOUND = ("psi", "psi_chunks")


# What is wrong with runs that cannot be read, or have no end, by their folder.
Faults = dict[Path, DamagedError | DivergedError]


class Sweep(Record):
    """``sweep.json``: the summaries of all runs that are finished."""

    experiment: str
    runs: list[CentralSummary] = Field(description="in the order in which they ran")


def new_parent(path: Path, config: CentralConfig) -> None:
    """Make the folder of several runs, and write what each of them goes by.

    Raises:
        BusyError, TakenError, OutputError: see ``run_files.claim_folder``.
    """
    handle = claim_folder(path)
    try:
        write_atomic(path / "config.toml", config.to_toml().encode())
    finally:
        os.close(handle)


def folders(parent: Path, config: CentralConfig) -> list[tuple[Path, Point]]:
    """Folder of each run, and what it sets, in order."""
    points = list(EXPERIMENTS[config.experiment].points(config))
    named = [parent.joinpath(*point.words) for point in points]
    begun = [file.parent for file in sorted(parent.glob("*/**/config.toml"))]
    if earlier := set(begun) - set(named):
        place = {_identity(path, config): path for path in begun if path in earlier}
        of_all = _of_all(config)
        for i, point in enumerate(points):
            if named[i] not in begun:
                same = CentralConfig.model_validate(of_all | point.update).config_hash
                named[i] = place.get(same, named[i])
    return list(zip(named, points, strict=True))


def _identity(folder: Path, config: CentralConfig) -> str | None:
    """What tells a run from others of its sweep, or None where it cannot be read."""
    try:
        theirs = read_central_config(folder)
    except OutputError:
        return None
    if theirs.several:
        return None
    found = theirs.method == "retrain" and config.psi is None
    return theirs.model_copy(update=dict.fromkeys(_FOUND) if found else {}).config_hash


def _of_all(config: CentralConfig) -> dict[str, object]:
    return config.model_dump(by_alias=True, exclude={*SEVERAL.values(), "seeds"})


def single_runs(
    parent: Path, config: CentralConfig, faults: Faults
) -> Iterator[tuple[Path, CentralConfig]]:
    """Folder and settings of each run, made only when its turn has come.

    A plain network takes its psi from the partitioned run with the same other settings, and is
    passed over until that has ended; a run whose settings are damaged is put into ``faults``.

    Raises:
        ConfigError: settings that do not fit; a plain network without such a run before it.
        OutputError: a folder that began with other settings.
    """
    of_all = _of_all(config)
    places = folders(parent, config)
    at = {point.words: folder for folder, point in places}
    for folder, point in places:
        update = {**point.update, "out": str(folder)}
        if (of_all | update)["method"] == "retrain" and config.psi is None:
            twin = at.get(tuple("partitioned" if w == "retrain" else w for w in point.words))
            if twin is None or twin == folder:
                raise ConfigError(
                    "method retrain takes the psi of a partitioned run: put partitioned before it "
                    "in methods, or give psi"
                )
            try:
                found = finished(twin)
                psi = () if found is None else learned_psi(found)
            except DamagedError as error:
                faults[twin] = error
                continue
            if found is None:
                if isinstance(faults.get(twin), DivergedError):
                    faults[folder] = DivergedError(f"{twin} has no psi")
                continue
            update |= {"psi": psi, "psi-chunks": found.summary.chunks}
        one = make_central_config(of_all | update)
        if (folder / "config.toml").is_file():
            try:
                theirs = read_central_config(folder)
            except DamagedError as error:
                faults[folder] = error
                continue
            if theirs.config_hash != one.config_hash:
                raise OutputError(
                    f"{folder} began with other settings than {parent / 'config.toml'}: set "
                    "them back, or start a new run"
                )
        yield folder, one


def all_finished(parent: Path, config: CentralConfig, faults: Faults) -> list[Finished]:
    """Every run that has ended, in order; one that is damaged is put into ``faults``."""
    runs = [_whole(folder, faults) for folder, _ in folders(parent, config) if folder not in faults]
    return [run for run in runs if run is not None]


def _whole(folder: Path, faults: Faults) -> Finished | None:
    try:
        run = finished(folder)
        if run is not None:
            run.evaluations()
    except DamagedError as error:
        faults[folder] = error
        return None
    return run


def write_sweep(
    parent: Path, config: CentralConfig, faults: Faults
) -> tuple[list[Finished], list[str]]:
    """Write ``sweep.json``, ``sweep.png`` and, of images, ``table.md``; nothing without a run.

    Returns:
        the runs that are finished, see ``all_finished``, and what they say, in lines.
    Raises:
        OutputError: a place that cannot be written.
    """
    runs = all_finished(parent, config, faults)
    if not runs:
        return [], []
    experiment = EXPERIMENTS[config.experiment]
    sweep = Sweep(experiment=config.experiment, runs=[run.summary for run in runs])
    write_atomic(parent / "sweep.json", (sweep.model_dump_json(indent=1) + "\n").encode())
    lines = experiment.text(runs)
    if not config.toy:
        write_atomic(parent / "table.md", ("\n".join(lines) + "\n").encode())
    experiment.draw(runs, parent / "sweep.png")
    return runs, lines
