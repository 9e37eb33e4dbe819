"""Train federated partitioned networks over simulated clients: ``python sim.py --help``."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from fedpart.arguments import Request, check_picture, parse_compare, parse_run, parse_table
from fedpart.config import Config
from fedpart.errors import ConfigError, FedpartError, OutputError
from fedpart.progress import Progress, make_progress, table
from fedpart.records import Summary
from fedpart.run_files import check_free, check_packages, choose_folder, read_config
from fedpart.seeds import check_unfinished, new_parent, over_seeds, seed_runs

if TYPE_CHECKING:
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
    commands: dict[str, Callable[[list[str]], None]] = {
        "compare": _compare,
        "split": _split,
        "table": _table,
    }
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
        config = read_config(request.resume).model_copy(update={"out": str(request.resume)})
        with contextlib.closing(make_progress(config.json_summary)) as progress:
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
    with contextlib.closing(make_progress(config.json_summary)) as progress:
        if config.seeds > 1:
            _several_seeds(config, argv, progress)
        else:
            _one_run(config, argv, progress, None)


def _several_seeds(
    config: Config, argv: list[str], progress: Progress, resume: bool = False
) -> None:
    assert config.out is not None
    parent = Path(config.out)
    if resume:
        check_unfinished(parent, config)
    else:
        check_free(parent)
    data: FederatedData | None = None
    summaries = []
    for run in seed_runs(parent, config):
        summary = run.summary
        if summary is not None:
            progress.skip(summary)
        else:
            begun = run.state == "begun"
            summary, data = _one_run(run.config, argv, progress, data, begun, whole=config)
        summaries.append(summary)
    if not config.json_summary:
        sys.stdout.write("\n" + table(over_seeds(summaries)) + "\n")


def _one_run(
    config: Config,
    argv: list[str],
    progress: Progress,
    data: "FederatedData | None",
    resume: bool = False,
    whole: Config | None = None,
) -> "tuple[Summary, FederatedData]":
    assert config.out is not None
    out = Path(config.out)
    # What a user goes on with: the folder of all seeds, where there are several.
    top = Path(whole.out) if whole is not None and whole.out is not None else out
    if not resume:
        check_free(out)
    progress.begin(config)
    from fedpart.run_folder import RunFolder

    data, program, state = _prepare(config, data)
    folder = RunFolder(out, program, data, progress.round)
    if resume:
        state = folder.resume()
    else:
        if whole is not None and not (top / "config.toml").exists():
            new_parent(top, whole)
        folder.create(state, ["sim.py", *argv])
    progress.data(data.source, folder.rounds)
    with _ending(folder, progress, top):
        _backend(config, program, data, state, folder)
        summary = folder.finish()
    progress.end(summary, out)
    return summary, data


def _prepare(
    config: Config, data: "FederatedData | None"
) -> "tuple[FederatedData, Program, ServerState]":
    """Everything that can be wrong with settings, data and model shows here, before any file."""
    check_packages(config)
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


def _backend(
    config: Config,
    program: "Program",
    data: "FederatedData",
    state: "ServerState",
    folder: "RunFolder",
) -> None:
    if config.backend == "algorithm":
        from fedpart.algorithm import run as run_algorithm

        run_algorithm(program, data, state, folder)
        return
    # The two adapters do not know each other: this is where they meet.
    from clients.grid import inline_grid
    from strategies.app import run as run_strategy

    run_strategy(program, state, folder, inline_grid(program, data))


@contextlib.contextmanager
def _ending(folder: "RunFolder", progress: Progress, top: Path) -> Iterator[None]:
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
                f"stopped after round {done}; go on with: python sim.py --resume {top}\n"
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


def _dry_run(request: Request, config: Config) -> None:
    from fedpart.plan import make_plan

    if request.resume is not None:
        raise ConfigError("--resume and --dry-run do not go together; leave one out")
    check_free(choose_folder(config))
    data, program, _ = _prepare(config, None)
    plan = make_plan(config, program, data)
    text = json.dumps(plan.as_dict()) if config.json_summary else table(plan.rows())
    sys.stdout.write(text + "\n")


def _compare(argv: list[str]) -> None:
    folders, out, target = parse_compare(argv)
    from fedpart.compare import compare

    comparison = compare(folders, out, target)
    sys.stderr.write("".join(f"{note}\n" for note in comparison.notes))
    sys.stdout.write(f"{comparison.text()}\n\n{out} and {out.with_suffix('.csv')}\n")


def _table(argv: list[str]) -> None:
    folders, latex, out = parse_table(argv)
    from fedpart.results import collect
    from fedpart.results_text import write_table

    results = collect(folders)
    sys.stderr.write("".join(f"{line}\n" for line in results.skipped))
    sys.stdout.write(write_table(results, latex, out))


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


if __name__ == "__main__":
    sys.exit(main())
