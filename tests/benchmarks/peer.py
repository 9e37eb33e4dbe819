"""Each contestant in a process of its own: it does a round when told to, and says how long it took.

So contestants alternate round by round in one run, and none shares memory settings or caches with
another: the bare loop keeps PyTorch's own.
"""

import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.nn.functional as F

from fedpart.client import ClientReply, ClientTask, client_update
from fedpart.cohort import draw_cohort
from fedpart.data import to_float
from fedpart.evaluation import evaluate
from fedpart.program import Program
from fedpart.run_folder import RunFolder
from fedpart.runtime import prepare_process
from fedpart.server import ServerState, assign_chunks, initial_state
from tests.benchmarks.bare import BareLoop
from tests.benchmarks.same import SameLoop
from tests.benchmarks.workloads import synthetic, workload

Answer = dict[str, float]


class Stepping:
    """A run folder that waits for word after each round."""

    def __init__(self, program: Program, folder: RunFolder, connection: Connection) -> None:
        self.program, self.folder, self.connection = program, folder, connection
        self.mark, self.cpu_mark = time.perf_counter(), time.process_time()
        self.more: Callable[[], Answer] = dict

    def after_round(self, state: ServerState, replies: list[ClientReply], *rest: object) -> None:
        self.folder.after_round(state, replies, *rest)  # type: ignore[arg-type]
        seconds, cpu = time.perf_counter() - self.mark, time.process_time() - self.cpu_mark
        copies = self.program.config.samples
        passes = sum(r.num_examples * self.program.passes(r.chunk) for r in replies) * copies
        answer = {
            "seconds": seconds,
            "cpu": cpu,
            "clients": sum(r.seconds for r in replies),
            "passes": float(passes),
            **self.more(),
        }
        if self.program.config.device == "cuda":
            answer["GPU bytes"] = torch.cuda.max_memory_allocated()
        self.connection.send(answer)
        self.connection.recv()
        self.mark, self.cpu_mark = time.perf_counter(), time.process_time()


def product(connection: Connection, name: str, rounds: int, changes: dict[str, object]) -> None:
    """The whole product: Strategy, messages, ClientApp, server step, run folder."""
    from clients.grid import inline_grid
    from strategies.app import run

    prepare_process()
    # One more than anybody asks for, since the last round ends with an evaluation.
    program, data = workload(name, rounds + 1, **changes)
    with tempfile.TemporaryDirectory() as scratch:
        state = initial_state(program)
        folder = RunFolder(Path(scratch) / "run", program, data, lambda *_: None)
        folder.create(state, ["benchmark"])
        connection.recv()
        run(program, state, Stepping(program, folder, connection), inline_grid(program, data))


def loop(
    connection: Connection, kind: type[BareLoop] | type[SameLoop], name: str, rounds: int
) -> None:
    """A loop that is called with the number of the round."""
    if kind is SameLoop:
        prepare_process()
    torch.set_num_threads(1)
    rounds_of = kind(*workload(name, rounds))
    numbers = iter(range(1, rounds + 1))
    _timed(connection, rounds, lambda: rounds_of(next(numbers)))


def _timed(connection: Connection, rounds: int, function: Callable[[], object]) -> None:
    for _ in range(rounds):
        connection.recv()
        started, cpu = time.perf_counter(), time.process_time()
        function()
        seconds = time.perf_counter() - started
        connection.send({"seconds": seconds, "cpu": time.process_time() - cpu})


def evaluation(connection: Connection, rounds: int, images: int, precision: str | None) -> None:
    """Evaluations of so many images, S = 10: the product's in a precision, or the bare one's."""
    torch.set_num_threads(1)
    program, _ = workload("W3", 1, **({"precision": precision} if precision else {}))
    data = synthetic(held_out=images)
    if precision:
        prepare_process()
    bare, state = BareLoop(program, data), initial_state(program)

    def of_product() -> object:
        return evaluate(program, state.theta, state.hyper, data.val_images, data.val_labels, 0)

    _timed(connection, rounds, of_product if precision else bare.evaluate)


def forward_and_backward(connection: Connection, name: str, rounds: int, dropout: bool) -> None:
    """Nothing but the network, channels last, once for each client of a round, on one batch."""
    prepare_process()
    program, data = workload(name, rounds)
    model = SameLoop(program, data).model.train(dropout)
    weights = [p for n, p in model.named_parameters() if not n.endswith("logit")]
    images, labels = data.client(0)
    x, y = to_float(images), torch.from_numpy(labels)

    def of_all() -> None:
        for _ in range(program.config.clients_per_round):
            torch.autograd.grad(F.cross_entropy(model(x), y), weights)

    _timed(connection, rounds, of_all)


def clients_only(connection: Connection, name: str, rounds: int) -> None:
    """The clients of a round, without messages, server step or records."""
    prepare_process()
    program, data = workload(name, rounds)
    state, chunks = initial_state(program), assign_chunks(program.config)
    tasks = [
        ClientTask(1, i, int(chunks[i]), state.theta, state.hyper)
        for i in draw_cohort(program.config, 1).clients
    ]

    def of_all() -> None:
        for task in tasks:
            client_update(program, task, *data.client(task.client_id))

    _timed(connection, rounds, of_all)


def _until_told(target: Callable[..., None], *args: object) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    target(*args)


class Peer:
    """A contestant's process."""

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        """Start ``target(connection, *args)``."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(
            target=_until_told, args=(target, other, *args), daemon=True
        )
        self._process.start()

    def round(self) -> Answer:
        """Let it do one round."""
        self._pipe.send("go")
        return self.hear()

    def hear(self) -> Answer:
        """Wait for what it says next."""
        answer: Answer = self._pipe.recv()
        return answer

    def close(self) -> None:
        """End the process, which removes its files."""
        self._process.terminate()
        self._process.join(30)
        self._process.kill()
        self._process.join()


def alternate(peers: dict[str, Peer], rounds: int) -> dict[str, list[Answer]]:
    """Rounds of all peers in turn; the first of each warms up and is left out."""
    answers: dict[str, list[Answer]] = {name: [] for name in peers}
    try:
        for _ in range(rounds + 1):
            for name, peer in peers.items():
                answers[name].append(peer.round())
    finally:
        for peer in peers.values():
            peer.close()
    return {name: found[1:] for name, found in answers.items()}
