"""The measurements; each returns what goes into the JSON."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from fedpart.client import ClientReply, ClientTask, client_update
from fedpart.cohort import draw_cohort, settle
from fedpart.runtime import prepare_process
from fedpart.server import assign_chunks, initial_state, server_update
from fedpart.wire import encode, reply_arrays, reply_fields, validate
from tests.benchmarks.bare import BareLoop
from tests.benchmarks.central import cost
from tests.benchmarks.growth import grow
from tests.benchmarks.node import node
from tests.benchmarks.peer import (
    Answer,
    Peer,
    alternate,
    clients_only,
    evaluation,
    forward_and_backward,
    loop,
    product,
)
from tests.benchmarks.ray_round import evaluation_beside, ray_against_inline
from tests.benchmarks.same import SameLoop
from tests.benchmarks.workloads import spread, workload

Record = dict[str, object]
ROOT = Path(__file__).parents[2]
MEASURES: dict[str, Callable[[bool], Record]] = {}


def measure(function: Callable[[bool], Record]) -> Callable[[bool], Record]:
    """Put a measurement on the list under its own name."""
    MEASURES[function.__name__.replace("_", "-")] = function
    return function


measure(cost)
measure(node)


def _compare(answers: dict[str, list[Answer]], base: str) -> Record:
    seconds = {name: [a["seconds"] for a in found] for name, found in answers.items()}
    below = statistics.median(seconds[base])
    record: Record = {name: spread(values) for name, values in seconds.items()}
    return record | {
        f"{name} / {base}": statistics.median(values) / below
        for name, values in seconds.items()
        if name != base
    }


def _machinery(answers: list[Answer]) -> float:
    """Share of a round outside the clients' own work: messages, server step, records."""
    return statistics.median(1 - a["clients"] / a["seconds"] for a in answers)


def _per_pass(answers: list[Answer]) -> float:
    return 1e6 * statistics.median(a["seconds"] / a["passes"] for a in answers)


def _against_bare(name: str, rounds: int) -> Record:
    peers = {"bare": Peer(loop, BareLoop, name, rounds + 1)}
    peers |= {p: Peer(product, name, rounds + 1, {"precision": p}) for p in ("fp32", "bf16")}
    answers = alternate(peers, rounds)
    return _compare(answers, "bare") | {
        "machinery share, fp32": _machinery(answers["fp32"]),
        "machinery share, bf16": _machinery(answers["bf16"]),
    }


@measure
def w1(quick: bool) -> Record:
    """FedAvg, 50 images a client: product against the bare loop."""
    return _against_bare("W1", 3 if quick else 31)


@measure
def w3(quick: bool) -> Record:
    """Ten warped copies of every image: product against the bare loop."""
    return _against_bare("W3", 2 if quick else 9)


@measure
def resnet9(quick: bool) -> Record:
    """FedAvg with the narrow ResNet-9, 12 colour images a client: product against the bare loop.

    Both in channels_last; also in processor seconds, which other work on the machine disturbs less.
    """
    rounds = 2 if quick else 9
    peers = {
        "bare": Peer(loop, BareLoop, "R9", rounds + 1),
        "fp32": Peer(product, "R9", rounds + 1, {}),
    }
    answers = alternate(peers, rounds)
    cpu = {n: [{"seconds": a["cpu"]} for a in found] for n, found in answers.items()}
    return _compare(answers, "bare") | {
        "processor seconds": _compare(cpu, "bare"),
        "machinery share, fp32": _machinery(answers["fp32"]),
    }


@measure
def partitioned(quick: bool) -> Record:
    """The paper's method at 1.25k and 5k: microseconds an image pass, beside W3's."""
    record: Record = {}
    rounds = 2 if quick else 7
    for precision in ("fp32", "bf16"):
        names = ["W3", "partitioned-1.25k", *([] if quick else ["partitioned-5k"])]
        peers = {n: Peer(product, n, rounds + 1, {"precision": precision}) for n in names}
        answers = alternate(peers, rounds)
        passes = {name: _per_pass(found) for name, found in answers.items()}
        record[precision] = {
            "rounds": {n: spread([a["seconds"] for a in found]) for n, found in answers.items()},
            "microseconds an image pass": passes,
            "of W3": {n: value / passes["W3"] for n, value in passes.items() if n != "W3"},
            "machinery share": {n: _machinery(found) for n, found in answers.items()},
        }
    return record


@measure
def same_arithmetic(quick: bool) -> Record:
    """Product against a loop with the same micro-batches and formats and nothing around it."""
    record: Record = {}
    for name in ("partitioned-1.25k", "fedavg-1.25k"):
        rounds = 3 if quick else 11
        peers = {
            "same loop": Peer(loop, SameLoop, name, rounds + 1),
            "product": Peer(product, name, rounds + 1, {}),
        }
        record[name] = _compare(alternate(peers, rounds), "same loop")
    return record


@measure
def ray(quick: bool) -> Record:
    """Two workers of Ray against one process on one thread, partitioned, 1.25k, S = 10."""
    return ray_against_inline(2, 3 if quick else 15)


@measure
def ray_evaluation(quick: bool) -> Record:
    """A Ray run that evaluates 2,000 images every five rounds: beside the next rounds, or not."""
    return evaluation_beside(2, 1 if quick else 5)


@measure
def evaluate(quick: bool) -> Record:
    """10,000 images (quick: 500), S = 10: product in both precisions against the bare loop."""
    rounds, images = (2, 500) if quick else (3, 10_000)
    peers = {"bare": Peer(evaluation, rounds + 1, images, None)}
    peers |= {p: Peer(evaluation, rounds + 1, images, p) for p in ("fp32", "bf16")}
    return {"images": images} | _compare(alternate(peers, rounds), "bare")


@measure
def w1_ladder(quick: bool) -> Record:
    """Where a round of W1 goes: each rung does what the one before it does, and more."""
    rounds = 3 if quick else 21
    peers = {
        "bare": Peer(loop, BareLoop, "W1", rounds + 1),
        "forward and backward, dropout off": Peer(forward_and_backward, "W1", rounds + 1, False),
        "with dropout": Peer(forward_and_backward, "W1", rounds + 1, True),
        "clients": Peer(clients_only, "W1", rounds + 1),
        "product": Peer(product, "W1", rounds + 1, {}),
    }
    return _compare(alternate(peers, rounds), "bare")


@measure
def side_by_side(quick: bool) -> Record:
    """The clients of a round batched into one against one by one; on a GPU where there is one."""
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    record: Record = {"device": torch.cuda.get_device_name() if gpu else "cpu"}
    rounds = 2 if quick else 7
    small = ["W1"] if quick else ["W1", "partitioned-1.25k"]
    for name in [*small, "W3", "partitioned-5k"] if gpu and not quick else small:
        for precision in ("fp32", "tf32", "bf16") if gpu else ("fp32",):
            how = {"device": device, "precision": precision}
            peers = {
                "one by one": Peer(product, name, rounds + 1, how),
                "ten at once": Peer(product, name, rounds + 1, how | {"clients-at-once": 10}),
            }
            answers = alternate(peers, rounds)
            found = _compare(answers, "one by one")
            if gpu:
                found["GPU bytes"] = {n: max(x["GPU bytes"] for x in a) for n, a in answers.items()}
            record[f"{name}, {precision}"] = found
    return record


@measure
def growth(quick: bool) -> Record:
    """Ever more clients, and ever more of them in a round: seconds, memory, start-up."""
    rounds = 2 if quick else 15
    return {
        f"{grown}, {where}": grow(rounds, workers, grown == "cohort", ends=quick)
        for grown in ("clients", "cohort")
        for where, workers in (("inline", None), ("ray", 2))
    }


def _repeated(function: Callable[[], object], times: int) -> Record:
    function()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return spread(seconds)


@measure
def server_and_wire(quick: bool) -> Record:
    """The server step, encoding and the gate, for a round of ten real replies."""
    prepare_process()
    program, data = workload("partitioned-1.25k", 1)
    state, chunks = initial_state(program), assign_chunks(program.config)
    replies = [
        client_update(
            program, ClientTask(1, i, int(chunks[i]), state.theta, state.hyper), *data.client(i)
        )
        for i in draw_cohort(program.config, 1).clients
    ]
    encoded = [{n: encode(t) for n, t in reply_arrays(r).items()} for r in replies]

    def judge() -> None:
        for r, arrays in zip(replies, encoded, strict=True):
            validate(program, 1, r.client_id, r.chunk, arrays, reply_fields(program, r))

    times = 10 if quick else 50
    return {
        "bytes of ten replies": sum(len(b) for arrays in encoded for b in arrays.values()),
        "encode": _repeated(
            lambda: [encode(t) for r in replies for t in reply_arrays(r).values()], times
        ),
        "validate": _repeated(judge, times),
        "server step": _repeated(lambda: server_update(program, state, replies), times),
    }


@measure
def gate(quick: bool) -> Record:
    """The gate's share of a round of ten clients, in processor time on one thread.

    A round is the clients' work, encoding, gate and server step. ``norms`` is what
    ``--max-update-norm`` adds.
    """
    prepare_process()
    program, data = workload("partitioned-1.25k", 1)
    state, chunks = initial_state(program), [int(c) for c in assign_chunks(program.config)]
    limited = program.config.model_copy(update={"max_update_norm": 10.0})
    cohort = draw_cohort(limited, 1)

    def train() -> list[ClientReply]:
        tasks = [ClientTask(1, i, chunks[i], state.theta, state.hyper) for i in cohort.clients]
        return [client_update(program, t, *data.client(t.client_id)) for t in tasks]

    def judge(name: str) -> list[ClientReply]:
        limits = limited if name == "norms" else program.config
        passed: dict[int, ClientReply | str] = {
            r.client_id: validate(program, 1, r.client_id, r.chunk, a, reply_fields(program, r))
            for r, a in zip(replies, encoded, strict=True)
        }
        return settle(limits, cohort, chunks, passed)[0]

    replies = train()
    encoded = [{n: encode(t) for n, t in reply_arrays(r).items()} for r in replies]
    steps: dict[str, Callable[[], object]] = {
        "clients": train,
        "encode": lambda: [encode(t) for r in replies for t in reply_arrays(r).values()],
        "gate": lambda: judge("gate"),
        "norms": lambda: judge("norms"),
        "server step": lambda: server_update(program, state, replies),
    }
    record: Record = {}
    for name, step in steps.items():
        seconds = []
        for _ in range((2 if quick else 5) if name == "clients" else 20):
            started = time.process_time()
            step()
            seconds.append(time.process_time() - started)
        record[name] = spread(seconds)
    spent = {name: cast(dict[str, float], record[name])["median"] for name in steps}
    without = sum(spent.values()) - spent["norms"]
    return record | {
        "share of a round": spent["gate"] / without,
        "share of a round, with norms": spent["norms"] / (without - spent["gate"] + spent["norms"]),
    }


@measure
def start_up(quick: bool) -> Record:
    """``sim.py --help``, and from the command to the end of the first round (of one)."""
    import tempfile

    def command(*words: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, str(ROOT / "sim.py"), *words],
            capture_output=True,
            check=True,
            env=environment,
        )

    def first_round() -> None:
        with tempfile.TemporaryDirectory() as scratch:
            command(
                "--rounds",
                "1",
                "--eval-size",
                "1",
                "--out",
                f"{scratch}/run",
                "--method",
                "fedavg",
                "--backend",
                "inline",
            )

    times = 3 if quick else 9
    return {
        "help": _repeated(lambda: command("--help"), times),
        "a run of one round": _repeated(first_round, times),
    }
