"""Train federated partitioned networks over simulated clients: ``python sim.py --help``."""

from fedpart.interrupts import INTERRUPTS, Terminated

if __name__ == "__main__":
    # Before the imports that take long: a signal that comes with them would leave a traceback.
    INTERRUPTS.install()

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
from typing import TYPE_CHECKING, NoReturn

from fedpart.arguments import Request, parse_run, resumed_config
from fedpart.commands import COMMANDS
from fedpart.config import Config
from fedpart.folder_lock import kept
from fedpart.output import closing_on_error, run_command, stopped
from fedpart.progress import Progress, make_progress
from fedpart.records import Summary
from fedpart.run_files import check_free, check_packages, choose_folder, read_config
from fedpart.seeds import check_unfinished, claimed, over_seeds, seed_runs
from fedpart.unused_settings import ON_NODES, first_warnings
from fedpart.wording import table

if TYPE_CHECKING:
    from clients.backend import Backend
    from fedpart.data import FederatedData
    from fedpart.program import Program
    from fedpart.run_folder import RunFolder
    from fedpart.server import ServerState


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, see ``fedpart.output``."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Flower reads these when it is imported, which happens later.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    os.environ.setdefault("FLWR_LOG_LEVEL", "ERROR")
    commands = {**COMMANDS, "deploy": _deploy}
    if words and words[0] in commands:
        return run_command(partial(commands[words[0]], words[1:]))
    return run_command(partial(_run, words))


def _run(argv: list[str]) -> None:
    request = parse_run(argv)
    if request.resume is not None:
        config = resumed_config(request, read_config(request.resume))
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
            except (BrokenPipeError, KeyboardInterrupt, Terminated) as error:
                # Between two runs: within one, it has been told.
                left = any(run.summary is None for run in seed_runs(parent, config))
                if left and (parent / "config.toml").is_file():
                    raise stopped(error, _again(parent)) from error
                raise
            claim = None
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
    from fedpart.plots_curves import draw_run
    from fedpart.run_folder import RunFolder

    # Workers end last: what a run leaves on disk is safe before they are waited for, and their
    # memory still counts.
    with INTERRUPTS.working(), contextlib.ExitStack() as workers:
        data, program = _prepare(config, data)
        state = None if resume else starting_state(program)
        beside = backend.name == "ray"
        folder = RunFolder(out, program, data, progress.round, evaluate_beside=beside)
        with closing_on_error(folder.close, "round", _again(top)), contextlib.closing(progress):
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
            summary = folder.finish(draw_run)
    progress.end(summary, out)
    return summary, data


@contextlib.contextmanager
def _progress(config: Config, warnings: Sequence[str]) -> Iterator[Progress]:
    with contextlib.closing(make_progress(config.json_summary)) as progress:
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
    check_columns(program.hyper_names)
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


def _again(folder: Path) -> str:
    # Slashes do on Windows too, and need no quotes.
    return f"python sim.py --resume {shlex.quote(folder.as_posix())}"


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
    warnings = first_warnings(config, request.typed, ON_NODES if nodes else {})
    for text in [*warnings, *known_warnings(program, data)]:
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
    if any(thread.name == "ray" for thread in threading.enumerate()):
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    _leave(main())
