"""Train federated partitioned networks over simulated clients: ``python sim.py --help``."""

from fedpart import output
from fedpart.interrupts import INTERRUPTS, Terminated

if __name__ == "__main__":
    # Before the imports that take long: a signal that comes with them would leave a traceback.
    INTERRUPTS.install()
    output.install()

import contextlib
import importlib
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, NoReturn

from fedpart.arguments import Request, parse_run, resumed_config
from fedpart.commands import COMMANDS
from fedpart.config import Config
from fedpart.errors import ClosedError, DivergedError, FedpartError, OutputError
from fedpart.folder_lock import kept
from fedpart.idle import first_warnings
from fedpart.progress import Progress, make_progress
from fedpart.records import EvaluationRecord, RoundRecord, Summary
from fedpart.run_files import check_free, check_packages, choose_folder, read_config
from fedpart.seeds import check_unfinished, claimed, over_seeds, seed_runs
from fedpart.wording import table

if TYPE_CHECKING:
    from clients.backend import Backend
    from fedpart.data import FederatedData
    from fedpart.program import Program
    from fedpart.run_folder import RunFolder
    from fedpart.server import ServerState

# 130 and 143, as shells count, and 141.
INTERRUPTED, TERMINATED, CLOSED = 128 + SIGINT, 128 + SIGTERM, ClosedError.exit_code


class Ended(BaseException):
    """A run ended early, and the user has been told why."""

    def __init__(self, exit_code: int) -> None:
        """Keep the exit code."""
        super().__init__(exit_code)
        self.exit_code = exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, see ``fedpart.errors``."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Flower reads these when it is imported, which happens later.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
    INTERRUPTS.advice, INTERRUPTS.told = "", False
    exit_code = 0
    try:
        if words and words[0] in COMMANDS:
            exit_code = COMMANDS[words[0]](words[1:]) or 0
        elif words and words[0] == "deploy":
            _deploy(words[1:])
        else:
            _run(words)
        sys.stdout.flush()
    except Ended as ended:
        return ended.exit_code
    except (Exception, KeyboardInterrupt, Terminated) as error:
        reason, exit_code = _why(error)
        if exit_code == 1:
            raise
        if exit_code not in (INTERRUPTED, TERMINATED, CLOSED):
            sys.stderr.write(f"error: {reason}\n")
        elif exit_code != CLOSED and not INTERRUPTS.told:
            sys.stderr.write(f"{INTERRUPTS.sentence}\n")
    return exit_code


def _why(error: BaseException) -> tuple[str, int]:
    """Why a command ended: a few words, and the exit code; 1 for a mistake of this program."""
    # Whatever has become of a signal on its way, an import that failed by it for one.
    if isinstance(error, KeyboardInterrupt) or INTERRUPTS.seen is SIGINT:
        return "interrupted", INTERRUPTED
    if isinstance(error, Terminated) or INTERRUPTS.seen is SIGTERM:
        return "terminated", TERMINATED
    if isinstance(error, FedpartError):
        return str(error), error.exit_code
    return f"{type(error).__name__}: {error}", 1


def _run(argv: list[str]) -> None:
    request = parse_run(argv)
    if request.resume is not None:
        config = resumed_config(request, read_config(request.resume))
        INTERRUPTS.advice = f"; {_again(request.resume)}"
        with _progress(config, first_warnings(config, request.typed)) as progress:
            if config.seeds > 1:
                _several_seeds(config, argv, progress, resume=True)
            else:
                _one_run(config, argv, progress, None, resume=True)
        return
    config = request.config()
    if request.dry_run:
        _dry_run(request, config)
        return
    config = config.model_copy(update={"out": str(choose_folder(config))})
    with _progress(config, first_warnings(config, request.typed)) as progress:
        if config.seeds > 1:
            _several_seeds(config, argv, progress)
        else:
            _one_run(config, argv, progress, None)


def _several_seeds(
    config: Config, argv: list[str], progress: Progress, resume: bool = False
) -> None:
    assert config.out is not None
    parent = Path(config.out)
    data: FederatedData | None = None
    summaries = []
    with contextlib.ExitStack() as held:
        claim: Callable[[], object] | None = None
        if resume:
            held.enter_context(kept(parent))
            check_unfinished(parent, config)
        else:
            check_free(parent)
            claim = partial(held.enter_context, claimed(parent, config))
        for run in seed_runs(parent, config):
            summary, begun = run.summary, run.state == "begun"
            try:
                if summary is not None:
                    progress.skip(summary)
                else:
                    summary, data = _one_run(run.config, argv, progress, data, begun, parent, claim)
            except ClosedError:
                # Between two runs: within one, it has been told.
                left = any(run.summary is None for run in seed_runs(parent, config))
                if left and (parent / "config.toml").is_file():
                    sys.stderr.write(f"stopped before the last seed; {_again(parent)}\n")
                raise
            claim = None
            INTERRUPTS.advice = f"; {_again(parent)}"
            summaries.append(summary)
    if not config.json_summary:
        sys.stdout.write("\n" + table(over_seeds(summaries)) + "\n")


def _one_run(
    config: Config,
    argv: list[str],
    progress: Progress,
    data: "FederatedData | None",
    resume: bool = False,
    top: Path | None = None,
    claim: Callable[[], object] | None = None,
) -> "tuple[Summary, FederatedData]":
    assert config.out is not None
    out = Path(config.out)
    # What a user goes on with: the folder of all seeds, where there are several.
    top = top or out
    if not resume:
        check_free(out)
    progress.begin(config)
    from clients.backend import choose_backend

    backend = choose_backend(config)
    _import(backend)
    from fedpart.model_file import starting_state
    from fedpart.run_folder import RunFolder

    def on_round(record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        progress.round(record, evaluations)
        INTERRUPTS.check()

    # Workers end last: what a run leaves on disk is safe before they are waited for, and their
    # memory still counts.
    with INTERRUPTS.working(), contextlib.ExitStack() as workers:
        data, program = _prepare(config, data)
        state = None if resume else starting_state(program)
        folder = RunFolder(out, program, data, on_round, evaluate_beside=backend.name == "ray")
        with _ending(folder, progress, top):
            with INTERRUPTS.held():
                if state is None:
                    state = folder.resume()
                else:
                    if claim is not None:
                        claim()
                    folder.create(state, ["sim.py", *argv])
                folder.runs_on(backend.name, backend.workers)
            progress.data(data.description, folder.rounds)
            progress.backend(f"{backend.text}; memory format {program.memory_format}")
            for text in folder.warnings:
                progress.warn(text)
            _train(backend, program, data, state, folder, workers)
            with INTERRUPTS.held():
                from fedpart.plots_curves import draw_run

                importlib.import_module("matplotlib.figure")
            summary = folder.finish(draw_run)
    progress.end(summary, out)
    return summary, data


@contextlib.contextmanager
def _progress(config: Config, warnings: Sequence[str]) -> Iterator[Progress]:
    with contextlib.closing(make_progress(config.json_summary)) as progress:
        INTERRUPTS.before_quit = progress.close
        for text in warnings:
            progress.warn(text)
        yield progress


def _import(backend: "Backend") -> None:
    """Load at once what a run needs and takes seconds; no signal comes in the midst of it."""
    names = ["fedpart.run_folder", "fedpart.plan"]
    if backend.name != "algorithm":
        names += ["clients.grid", "strategies.app"]
    if backend.name == "ray":
        names += ["clients.ray_grid", "ray"]
    for name in names:
        importlib.import_module(name)


def _prepare(config: Config, data: "FederatedData | None") -> "tuple[FederatedData, Program]":
    """Everything that can be wrong with settings, data and model shows here, before any file."""
    check_packages(config.logger)
    from fedpart.curves import check_columns
    from fedpart.data import load_federated
    from fedpart.plan import check_chunks
    from fedpart.program import program_for
    from fedpart.runtime import prepare_process
    from fedpart.side_by_side import check_side_by_side

    prepare_process()
    check_chunks(config)
    if data is None:
        data = load_federated(config)
    program = program_for(config, data)
    check_columns(program.readable(program.hyper.initial()))
    if config.clients_at_once > 1:
        check_side_by_side(program, data)
    return data, program


def _train(
    backend: "Backend",
    program: "Program",
    data: "FederatedData",
    state: "ServerState",
    folder: "RunFolder",
    workers: contextlib.ExitStack,
) -> None:
    if backend.name == "algorithm":
        from fedpart.algorithm import run as run_algorithm

        run_algorithm(program, data, state, folder)
        return
    # The two adapters do not know each other: this is where they meet.
    from strategies.app import run as run_strategy

    if backend.name == "ray":
        from clients.ray_grid import ray_grid

        grid = workers.enter_context(ray_grid(program, data, backend.workers))
        folder.runs_on("ray", grid.executor.workers)
    else:
        from clients.grid import inline_grid

        grid = inline_grid(program, data)
    run_strategy(program, state, folder, grid)


@contextlib.contextmanager
def _ending(folder: "RunFolder", progress: Progress, top: Path) -> Iterator[None]:
    """Record how a run ended that did not end well, and say how to go on."""
    try:
        yield
    except BaseException as error:
        with INTERRUPTS.ending():
            progress.close()
            reason, code = _why(error)
            if code not in (1, INTERRUPTED, TERMINATED, CLOSED):
                sys.stderr.write(f"error: {reason}\n")
            # A full disk, say: the first error is the one to show.
            with contextlib.suppress(OutputError):
                done = folder.close(reason, code)
                # One that diverged would do so again.
                if done is not None and not isinstance(error, DivergedError):
                    sys.stderr.write(f"stopped after round {done}; {_again(top)}\n")
                elif code in (INTERRUPTED, TERMINATED):
                    sys.stderr.write(f"{INTERRUPTS.sentence}\n")
        if code != 1:
            raise Ended(code) from error
        raise


def _again(folder: Path) -> str:
    return f"go on with: python sim.py --resume {shlex.quote(str(folder))}"


def _dry_run(request: Request, config: Config, nodes: bool = False) -> None:
    from fedpart.model_file import starting_state
    from fedpart.plan import make_plan
    from fedpart.run_folder import known_warnings

    check_free(choose_folder(config))
    if not nodes:
        from clients.backend import choose_backend

        _import(choose_backend(config))
    with INTERRUPTS.working():
        data, program = _prepare(config, None)
        starting_state(program)
    plan = make_plan(config, program, data)
    told = first_warnings(config, request.typed, nodes)
    for text in [*told, *known_warnings(program, data)]:
        sys.stderr.write(f"warning: {text}\n")
    text = json.dumps(plan.as_dict()) if config.json_summary else table(plan.rows())
    sys.stdout.write(text + "\n")


def _deploy(argv: list[str]) -> None:
    from clients.deployment.rehearsal import deploy

    def ready(config: Config) -> "FederatedData":
        from fedpart.model_file import starting_state

        data, program = _prepare(config, None)
        starting_state(program)
        return data

    deploy(argv, _progress, ready, partial(_dry_run, nodes=True))


def _leave(exit_code: int) -> NoReturn:
    """End this process, at once where Ray was interrupted as it started.

    Its thread is then still inside Ray's library, where an interpreter that shuts down crashes.
    """
    output.flush()
    if any(thread.name == "ray" for thread in threading.enumerate()):
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    INTERRUPTS.exit_code = main()
    _leave(INTERRUPTS.exit_code)
