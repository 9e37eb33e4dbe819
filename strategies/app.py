"""The ServerApp, and the same program for callers in this process."""

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from signal import SIGTERM

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpart.algorithm import Observer
from fedpart.arguments import with_absolute_paths
from fedpart.config import Config, make_config
from fedpart.curves import check_columns
from fedpart.data import load_federated
from fedpart.errors import ConfigError, FedpartError, OutputError
from fedpart.machine import COMMAND
from fedpart.model_file import starting_state
from fedpart.plan import check_chunks
from fedpart.program import Program, program_for
from fedpart.records import EvaluationRecord, RoundRecord
from fedpart.run_config import given_settings, is_resumed, typed_settings
from fedpart.run_files import check_free, check_packages, choose_folder
from fedpart.run_folder import RunFolder
from fedpart.runtime import prepare_process
from fedpart.server import ServerState
from fedpart.unused_settings import ON_NODES, first_warnings
from strategies.strategy import PartitionedStrategy

# Below Flower's own logger, whose lines `flwr run --stream` and `flwr log` show.
logger = logging.getLogger("flwr.fedpart")

# Seconds to wait for nodes: to say who it is, each starts a process, and 20 may share two cores.
_JOIN_SECONDS = 300.0

app = ServerApp()


def run(program: Program, state: ServerState, observer: Observer, grid: Grid) -> ServerState:
    """Train over ``grid``, from ``state`` to the last round.

    Args:
        program: shared by all.
        state: before the next round.
        observer: told of every round.
        grid: where the clients are.

    Returns:
        the state after ``config.rounds`` rounds.

    Raises:
        ClientFailure: see ``PartitionedStrategy.start``.
    """
    strategy = PartitionedStrategy(program, state, observer)
    strategy.start(grid)
    return strategy.state


def settings(run_config: Mapping[str, object]) -> Config:
    """Settings of a run under Flower.

    Args:
        run_config: ``[tool.flwr.app.config]`` of ``pyproject.toml`` with what the user has set.

    Raises:
        ConfigError: see ``given_settings`` and ``make_config``; or more than one seed, or client
            at once.
    """
    config = make_config(with_absolute_paths(given_settings(run_config)))
    if config.seeds > 1:
        raise ConfigError(
            f"seeds is {config.seeds}; under Flower a run has one: start a run for each seed"
        )
    if config.clients_at_once > 1:
        raise ConfigError(
            f"clients-at-once is {config.clients_at_once}; Flower starts each client on its own: "
            "leave it out"
        )
    return config


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Under Flower's own runtime: settings come from the run config, a run folder is written.

    Paths are seen from where SuperLink was started, and so is ``runs/<name>``, the default.

    Raises:
        FedpartError: settings, data or folder that cannot be used, or clients that failed.
    """
    prepare_process()
    config, resume = settings(context.run_config), is_resumed(context.run_config)
    check_packages(config.logger)
    check_chunks(config)
    data = load_federated(config)
    program = program_for(config, data)
    check_columns(program.hyper_names)
    state = starting_state(program)
    report = partial(_report, config.rounds)
    folder = RunFolder(choose_folder(config), program, data, report, evaluate_beside=True)
    if not resume:
        check_free(folder.path)
    for text in first_warnings(config, typed_settings(context.run_config), ON_NODES):
        logger.warning(text)
    logger.info("data: %s", data.description)
    logger.info("memory format: %s", program.memory_format)
    strategy = PartitionedStrategy(program, state, folder, _JOIN_SECONDS)
    # Before any file is written: too few nodes is the mistake that is easiest to make.
    strategy.join(grid)
    try:
        if resume:
            strategy.state = folder.resume(_command(context.run_config))
            logger.info("resuming after round %d", strategy.state.server_round)
        else:
            folder.create(state, _command(context.run_config))
        folder.runs_on("flower", None)
        logger.info("run folder: %s", folder.path.resolve())
        for text in folder.warnings:
            logger.warning(text)
        strategy.start(grid)
        from fedpart.plots_curves import draw_run

        summary = folder.finish(draw_run)
        logger.info("final accuracy %.2f %%", 100 * summary.final_accuracy)
    except BaseException as error:
        reason, code = f"{type(error).__name__}: {error}", 1
        # Flower's answer to SIGTERM, which also comes where SuperLink ends.
        if isinstance(error, SystemExit):
            reason, code = "terminated", 128 + SIGTERM
        elif isinstance(error, FedpartError):
            reason, code = str(error), error.exit_code
        # A full disk, say: the first error is the one to show.
        with contextlib.suppress(OutputError):
            done, place = folder.close(reason, code), folder.path.resolve()
            logger.info("stopped after round %s; go on with resume=true out=%s", done, place)
        raise


def _command(run_config: Mapping[str, object]) -> list[str]:
    """What the user typed: a rehearsal tells; otherwise as far as Flower passes it on."""
    if told := os.environ.get(COMMAND):
        return list(json.loads(told))
    # A JSON string, number or boolean is spelled the same in TOML.
    given = [f"{key}={json.dumps(value)}" for key, value in run_config.items() if value != ""]
    return ["flwr", "run", ".", *(["--run-config", " ".join(given)] if given else [])]


def _report(rounds: int, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
    done = f"round {record.round}/{rounds}"
    for failure in record.failures:
        logger.warning("%s: client %d: %s", done, failure.client_id, failure.reason)
    text = f"{done}: {record.counted} of {len(record.clients)} clients, {record.seconds:.1f} s"
    for evaluation in evaluations:
        text += f", accuracy {100 * evaluation.val_accuracy:.2f} %"
        if evaluation.round != record.round:
            text += f" after round {evaluation.round}"
    logger.info(text)
