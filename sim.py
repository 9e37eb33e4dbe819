"""Train federated partitioned networks over simulated clients: ``python sim.py --help``."""

import contextlib
import importlib.util
import json
import os
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from fedpart.arguments import Request, check_picture, parse_compare, parse_run, resumed_config
from fedpart.config import Config
from fedpart.errors import ConfigError, FedpartError, OutputError
from fedpart.progress import Progress, make_progress, table
from fedpart.records import Summary
from fedpart.run_files import check_free, new_folder, read_config

if TYPE_CHECKING:
    from clients.backend import Backend
    from fedpart.data import FederatedData
    from fedpart.program import Program
    from fedpart.run_folder import RunFolder
    from fedpart.server import ServerState

INTERRUPTED, TERMINATED = 130, 143


class Terminated(BaseException):
    """SIGTERM has come; no ``except Exception`` on the way may keep it."""


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
    commands: dict[str, Callable[[list[str]], None]] = {"compare": _compare, "split": _split}
    with _terminable():
        try:
            if words and words[0] in commands:
                commands[words[0]](words[1:])
            else:
                _run(words)
        except FedpartError as error:
            sys.stderr.write(f"error: {error}\n")
            return error.exit_code
        except Ended as ended:
            return ended.exit_code
        except KeyboardInterrupt:
            return INTERRUPTED
        except Terminated:
            return TERMINATED
    return 0


def _run(argv: list[str]) -> None:
    request = parse_run(argv)
    if request.resume is not None and not request.dry_run:
        config = resumed_config(request, read_config(request.resume))
        with contextlib.closing(make_progress(config.json_summary)) as progress:
            _one_run(config, argv, progress, None, resume=True)
        return
    config = request.config()
    if request.dry_run:
        _dry_run(request, config)
        return
    out = _out(config)
    seeds = range(config.seed, config.seed + config.seeds)
    several = config.seeds > 1
    folders = [out / f"seed-{seed}" for seed in seeds] if several else [out]
    data: FederatedData | None = None
    summaries = []
    with contextlib.closing(make_progress(config.json_summary)) as progress:
        for seed, folder in zip(seeds, folders, strict=True):
            update = {"seed": seed, "seeds": 1, "out": str(folder)}
            one = config.model_copy(update=update)
            # The parent is new or empty; the folder of each further seed is checked with it.
            parent = out if several and seed == config.seed else None
            summary, data = _one_run(one, argv, progress, data, parent=parent)
            summaries.append(summary)
    if several and not config.json_summary:
        sys.stdout.write("\n" + table(_over_seeds(summaries)) + "\n")


def _one_run(
    config: Config,
    argv: list[str],
    progress: Progress,
    data: "FederatedData | None",
    resume: bool = False,
    parent: Path | None = None,
) -> "tuple[Summary, FederatedData]":
    assert config.out is not None
    out = Path(config.out)
    if not resume:
        check_free(parent or out)
    progress.begin(config)
    from clients.backend import choose_backend
    from fedpart.run_folder import RunFolder

    backend = choose_backend(config)
    data, program, state = _prepare(config, data)
    folder = RunFolder(out, program, data, progress.round)
    if resume:
        state = folder.resume()
    else:
        if parent is not None:
            new_folder(parent)
        folder.create(state, ["sim.py", *argv])
    progress.data(data.source, folder.rounds)
    progress.backend(backend.text)
    folder.runs_on(backend.name, backend.workers)
    # Workers end last: what a run leaves on disk is safe before they are waited for, and their
    # memory still counts.
    with contextlib.ExitStack() as workers, _ending(folder, progress):
        _train(backend, program, data, state, folder, workers)
        summary = folder.finish()
    progress.end(summary, out)
    return summary, data


def _prepare(
    config: Config, data: "FederatedData | None"
) -> "tuple[FederatedData, Program, ServerState]":
    """Everything that can be wrong with settings, data and model shows here, before any file."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is not installed; pip install 'fedpart[sim]' brings it")
    if config.logger == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "logger is 'tensorboard', which is not installed; pip install 'fedpart[tensorboard]'"
        )
    from fedpart.data import load_federated
    from fedpart.model_file import starting_state
    from fedpart.plan import check_chunks
    from fedpart.program import build_program
    from fedpart.runtime import prepare_process

    prepare_process()
    check_chunks(config)
    if data is None:
        data = load_federated(config)
    program = build_program(config, data.num_classes, data.in_channels)
    return data, program, starting_state(program)


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
        from clients.ray_executor import ray_grid

        grid = workers.enter_context(ray_grid(program, data, backend.workers))
        folder.runs_on("ray", grid.executor.workers)
    else:
        from clients.grid import inline_grid

        grid = inline_grid(program, data)
    run_strategy(program, state, folder, grid)


@contextlib.contextmanager
def _ending(folder: "RunFolder", progress: Progress) -> Iterator[None]:
    """Record how a run ended that did not end well, and say how to go on."""
    try:
        yield
    except BaseException as error:
        progress.close()
        reason, code = f"{type(error).__name__}: {error}", 1
        if isinstance(error, FedpartError):
            reason, code = str(error), error.exit_code
            sys.stderr.write(f"error: {error}\n")
        elif isinstance(error, KeyboardInterrupt):
            reason, code = "interrupted", INTERRUPTED
        elif isinstance(error, Terminated):
            reason, code = "terminated", TERMINATED
        # A full disk, say: the first error is the one to show.
        with contextlib.suppress(OutputError):
            done = folder.close(reason, code)
            sys.stderr.write(
                f"stopped after round {done}; go on with: python sim.py --resume {folder.path}\n"
            )
        if code != 1:
            raise Ended(code) from error
        raise


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that a run ends as it does on Ctrl-C."""

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, raise_terminated)
    except ValueError:  # not the main thread: somebody else's process
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _out(config: Config) -> Path:
    if config.out is not None:
        return Path(config.out)
    path = Path("runs") / config.run_name
    taken = 1
    # Only a name that nobody chose gives way; a chosen one that is taken is refused.
    while config.name is None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        taken += 1
        path = path.with_name(f"{config.run_name}-{taken}")
    return path


def _dry_run(request: Request, config: Config) -> None:
    from fedpart.plan import make_plan

    if request.resume is not None:
        raise ConfigError("--resume and --dry-run do not go together; leave one out")
    check_free(_out(config))
    from clients.backend import choose_backend

    choose_backend(config)
    data, program, _ = _prepare(config, None)
    plan = make_plan(config, program, data)
    text = json.dumps(plan.as_dict()) if config.json_summary else table(plan.rows())
    sys.stdout.write(text + "\n")


def _over_seeds(summaries: list[Summary]) -> list[tuple[str, str]]:
    rows = []
    for name in ("final_accuracy", "test_accuracy", "upload_fraction"):
        values = [100 * v for s in summaries if (v := getattr(s, name)) is not None]
        if len(values) < 2:
            continue
        mean, error = statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5
        rows.append((name.replace("_", " "), f"{mean:.2f} ± {error:.2f} % (standard error)"))
    return [("seeds", ", ".join(str(s.seed) for s in summaries)), *rows]


def _compare(argv: list[str]) -> None:
    folders, out = parse_compare(argv)
    from fedpart.compare import compare, compare_table

    curves = compare(folders, out)
    sys.stdout.write(f"{compare_table(curves)}\n\n{out} and {out.with_suffix('.csv')}\n")


def _split(argv: list[str]) -> None:
    request = parse_run(argv)
    if request.dry_run or request.resume is not None:
        raise ConfigError("split draws the client split only; leave --dry-run and --resume out")
    config = request.config()
    from fedpart.data import load_federated
    from fedpart.plots_split import draw_split, split_json, split_table

    out = Path(config.out or f"{config.dataset}-split.png")
    check_picture(out)
    data = load_federated(config)
    draw_split(data, config, out)
    if config.json_summary:
        sys.stdout.write(json.dumps(split_json(data, config)) + "\n")
    else:
        sys.stdout.write(f"{split_table(data, config)}\npicture  {out}\n")


def _leave(exit_code: int) -> NoReturn:
    """End this process, at once where Ray was interrupted as it started.

    Its thread is then still inside Ray's library, where an interpreter that shuts down crashes.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.name == "ray" for thread in threading.enumerate()):
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    _leave(main())
