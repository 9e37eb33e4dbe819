"""The ServerApp, and the same program for callers in this process."""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpart.algorithm import Observer
from fedpart.config import make_config
from fedpart.data import load_federated
from fedpart.errors import FedpartError
from fedpart.model_file import starting_state
from fedpart.plan import check_chunks
from fedpart.program import Program, build_program
from fedpart.records import EvaluationRecord, RoundRecord
from fedpart.run_files import new_folder
from fedpart.run_folder import RunFolder
from fedpart.runtime import prepare_process
from fedpart.server import ServerState
from strategies.strategy import PartitionedStrategy

logger = logging.getLogger(__name__)

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


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Under Flower's own runtime: settings come from the run config, a run folder is written.

    Raises:
        FedpartError: settings, data or folder that cannot be used, or clients that failed.
    """
    prepare_process()
    config = make_config(context.run_config)
    check_chunks(config)
    data = load_federated(config)
    height, width = data.images.shape[2:]
    program = build_program(config, data.num_classes, data.in_channels, (height, width))
    state = starting_state(program)
    folder = RunFolder(Path(config.out or f"runs/{config.run_name}"), program, data, _report)
    new_folder(folder.path)
    folder.create(state, ["flwr", "run", "."])
    try:
        run(program, state, folder, grid)
        folder.finish()
    except FedpartError as error:
        folder.close(str(error), error.exit_code)
        raise
    except BaseException as error:
        folder.close(f"{type(error).__name__}: {error}", 1)
        raise


def _report(record: RoundRecord, evaluation: EvaluationRecord | None) -> None:
    for failure in record.failures:
        logger.warning("round %d: client %d: %s", record.round, failure.client_id, failure.reason)
    if evaluation is not None:
        logger.info("round %d: accuracy %.1f %%", record.round, 100 * evaluation.val_accuracy)
