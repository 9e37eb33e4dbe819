"""``sim.py central``: one run or several, what a user sees of them, and how they end."""

import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedpart.central.arguments import parse_central
from fedpart.central.config import (
    SEVERAL,
    CentralConfig,
    make_central_config,
    read_central_config,
)
from fedpart.central.records import CentralEvaluation, CentralSummary
from fedpart.errors import (
    BusyError,
    DamagedError,
    DivergedError,
    FedpartError,
    OutputError,
    TakenError,
)
from fedpart.folder_lock import kept
from fedpart.interrupts import INTERRUPTS, Terminated
from fedpart.output import closing_on_error, stopped
from fedpart.run_files import (
    check_free,
    check_packages,
    check_shape,
    choose_folder,
    ended_well,
)
from fedpart.unused_settings import first_warnings
from fedpart.wording import duration, table

if TYPE_CHECKING:
    from fedpart.central.run_folder import CentralRun
    from fedpart.central.sweep import Faults

# Seconds until what a sweep comes to is given up, while another process writes it.
_PATIENCE = 60.0
# Seconds between two lines of one run.
_LINE_EVERY = 10.0


def central(argv: Sequence[str]) -> None:
    """Run ``sim.py central``.

    Raises:
        FedpartError: see ``fedpart.errors``; a run that had begun can be resumed.
    """
    request = parse_central(argv)
    if request.resume is None:
        config = request.config()
        check_packages(config.logger)
        out = choose_folder(config)
        check_free(out)
    else:
        out = request.resume
        values = read_central_config(out).model_dump(by_alias=True) | request.values
        config = make_central_config(values)
        check_packages(config.logger)
    # Of several methods, random search draws as many trials as trials says.
    plurals = (SEVERAL | {"trial": "methods"}).items()
    ignored = {one: f"{many} is given" for one, many in plurals if getattr(config, many)}
    for text in first_warnings(config, request.typed, ignored):
        sys.stderr.write(f"warning: {text}\n")
    config = config.model_copy(update={"out": str(out)})
    command = ["sim.py", "central", *argv]
    # After all that a user may have mistyped: these take seconds.
    from fedpart.runtime import prepare_process

    prepare_process()
    if request.resume is not None:
        check_shape(out, config.several)
    resume = request.resume is not None
    try:
        with INTERRUPTS.working():
            if config.several:
                _several(out, config, command, resume)
            else:
                _end(_one(out, config, command, resume, out), config, out)
    except (KeyboardInterrupt, Terminated) as error:
        if (out / "config.toml").is_file():
            raise stopped(error, _again(out)) from error
        raise


def _several(out: Path, config: CentralConfig, command: list[str], resume: bool) -> None:
    from fedpart.central.experiments import EXPERIMENTS
    from fedpart.central.run_folder import CentralRun
    from fedpart.central.sweep import (
        folders,
        new_parent,
        single_runs,
        write_sweep,
    )

    if not resume:
        # Whatever is wrong shows here, before any folder and not after hours.
        by_size = sorted(single_runs(out, config, {}), key=lambda run: run[1].train_size)
        # The largest and the smallest of each data set.
        ends = {(one.dataset, "largest"): (folder, one) for folder, one in by_size}
        ends |= {(one.dataset, "smallest"): (folder, one) for folder, one in reversed(by_size)}
        for folder, one in ends.values():
            CentralRun(folder, one, EXPERIMENTS[one.experiment].task(one), lambda _: None)
        new_parent(out, config)
    faults: Faults = {}
    for folder, one in single_runs(out, config, faults):
        begun = (folder / "config.toml").is_file()
        if begun and ended_well(folder):
            continue
        try:
            _one(folder, one, command, begun, out)
        except BusyError:
            continue
        except (DamagedError, DivergedError) as error:
            faults[folder] = error
            continue
        except OutputError as error:
            # Another process was quicker: it has begun the run, or come to its end.
            begins = isinstance(error, TakenError) and (folder / "config.toml").is_file()
            if not begins and not ended_well(folder):
                raise
            continue
        with kept(out, _PATIENCE):
            write_sweep(out, config, faults)
    # One process at a time, so that the last one has seen all runs.
    with kept(out, _PATIENCE):
        done, lines = write_sweep(out, config, faults)
    if done:
        lines.append(f"{out}: sweep.json, sweep.png" + ("" if config.toy else ", table.md"))
    if config.json_summary:
        lines = [json.dumps(run.summary.model_dump(mode="json")) for run in done]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    count = len(folders(out, config))
    if left := count - len(done) - len(faults):
        sys.stdout.flush()
        sys.stderr.write(
            f"not done: {left} of {count} runs, another process's or waiting for one; "
            f"when that is done: {_again(out)}\n"
        )
    if faults:
        raise _left_out(faults, count, out)


def _left_out(faults: "Faults", count: int, out: Path) -> FedpartError:
    """What ends a sweep of which some runs do not count."""
    head = f"{len(faults)} of {count} runs left out: "
    lost = {at: fault for at, fault in faults.items() if isinstance(fault, DamagedError)}
    told = [f"{at}: {fault}" for at, fault in faults.items() if at not in lost]
    if not lost:
        return DivergedError(head + "; ".join(told))
    told += [f"{fault}; to start anew, delete {at}" for at, fault in lost.items()]
    return DamagedError(f"{head}{'; '.join(told)}; then {_again(out)}")


def _one(
    folder: Path, config: CentralConfig, command: list[str], resume: bool, top: Path
) -> CentralSummary:
    """One run, from its start or from where it stopped.

    Args:
        folder: its own.
        config: its settings.
        command: what the user typed.
        resume: whether it has begun already.
        top: what the user goes on with after an interruption.
    """
    from fedpart.central.experiments import EXPERIMENTS
    from fedpart.central.plots import draw_run
    from fedpart.central.run_folder import CentralRun

    show = _Lines(config)
    task = EXPERIMENTS[config.experiment].task(config)
    run = CentralRun(folder, config, task, show.evaluation)
    with closing_on_error(run.close, "iteration", _again(top)):
        if resume:
            run.resume()
        else:
            run.create(command)
        show.head(run)
        for text in run.warnings:
            sys.stderr.write(f"warning: {text}\n")
        run.run()
        return run.finish(draw_run)


def _again(folder: Path) -> str:
    # Slashes do on Windows too, and need no quotes.
    return f"python sim.py central --resume {shlex.quote(folder.as_posix())}"


def _about(config: CentralConfig) -> str:
    if not config.toy:
        trial = f" {config.trial}" if config.method == "random-search" else ""
        return f", {config.method}{trial} on {config.dataset}"
    return f", K = {config.inputs[0]}" if config.experiment == "input-selection" else ""


class _Lines:
    """A line at the start of a run, and one every ten seconds."""

    def __init__(self, config: CentralConfig) -> None:
        self._config, self._last = config, float("-inf")

    def head(self, run: "CentralRun") -> None:
        """What is trained, on what; not before it is this process's."""
        config = self._config
        if not config.json_summary:
            chunks = len(config.chunks)
            words = f"{chunks} chunks" if chunks > 1 else "one chunk"
            sys.stdout.write(
                f"{config.experiment}{_about(config)}, seed {config.seed}: "
                f"{config.train_size:,} examples in {words}, up to {config.updates:,} iterations\n"
                f"data: {run.task.source}; inputs of shape {tuple(run.task.train[0].shape[1:])}\n"
                f"memory format {run.training.program.memory_format}\n"
            )
            sys.stdout.flush()

    def evaluation(self, record: CentralEvaluation) -> None:
        now = time.monotonic()
        if self._config.json_summary or now - self._last < _LINE_EVERY:
            return
        self._last = now
        name = "Laplace" if self._config.method == "laplace" else "L_ML"
        l_ml = "" if record.l_ml is None else f"{name} {record.l_ml:.4f}, "
        sys.stdout.write(
            f"  {record.iteration:>7,}  {l_ml}test {100 * record.test_accuracy:.1f} %, "
            f"{duration(record.seconds)}\n"
        )
        sys.stdout.flush()


def _end(summary: CentralSummary, config: CentralConfig, out: Path) -> None:
    if config.json_summary:
        sys.stdout.write(json.dumps(summary.model_dump(mode="json")) + "\n")
        return
    rows = [
        ("iterations", f"{summary.iterations:,}, of which number {summary.iteration:,} counts"),
        ("L_ML", "none, with one chunk" if summary.l_ml is None else f"{summary.l_ml:.4f} nats"),
        ("test accuracy", f"{100 * summary.test_accuracy:.2f} %"),
        ("test log-likelihood", f"{summary.test_log_likelihood:.4f} nats"),
        ("took", duration(summary.seconds)),
        ("folder", str(out)),
    ]
    lines: list[str] = []
    if config.experiment == "mask-learning":
        from fedpart.central.experiments import EXPERIMENTS
        from fedpart.central.finished import Finished

        lines = EXPERIMENTS[config.experiment].text([Finished(out, summary)])
    elif not config.toy:
        rows[3:3] = [(n.replace("_", " "), f"{v:.4g}") for n, v in summary.hyper_readable.items()]
    sys.stdout.write("\n".join([table(rows), *lines]) + "\n")
