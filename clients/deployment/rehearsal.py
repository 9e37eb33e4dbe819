"""``sim.py deploy --local N``: the whole deployment on one machine, and nothing left behind."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from clients.deployment.flower import Deployment
from clients.deployment.processes import Group
from clients.deployment.watch import Watch, records_behind
from fedpart.arguments import Request, parse_deploy, resumed_config
from fedpart.config import Config, make_config
from fedpart.errors import ClientFailure, ConfigError, FedpartError
from fedpart.files import writing
from fedpart.folder_lock import kept
from fedpart.idle import first_warnings
from fedpart.interrupts import INTERRUPTS
from fedpart.machine import COMMAND, COMMIT, commit
from fedpart.output import INTERRUPTED, TERMINATED, closing_on_error
from fedpart.progress import Progress
from fedpart.records import Summary
from fedpart.run_files import DEPLOYMENT, check_free, choose_folder, read_config
from fedpart.stored import read_record

if TYPE_CHECKING:
    from fedpart.data import FederatedData

# Where the app is: what is sent to every node.
_APP = Path(__file__).resolve().parents[2]
_LOOK, _PATIENCE, _JOIN_SECONDS = 0.2, 3.0, 600.0
# Seconds until a node that has ended is started again, as the systemd unit has it.
_RESTART = 5.0

Prepare = Callable[[Config], "FederatedData"]


def deploy(
    argv: list[str],
    progress_of: Callable[[Config, Sequence[str]], AbstractContextManager[Progress]],
    prepare: Prepare,
    dry_run: Callable[[Request, Config], None],
) -> None:
    """Run the command.

    Args:
        argv: words behind ``deploy``.
        progress_of: shows the run, and first what is amiss with its settings, if anything.
        prepare: finds out whether settings, data and model can be used.
        dry_run: says what the run would do.

    Raises:
        FedpartError: the run's own, or processes of Flower's that do not start.
    """
    nodes, request = parse_deploy(argv)
    if request.resume is not None:
        config = resumed_config(request, read_config(request.resume))
        nodes = nodes or config.clients
    else:
        config = rehearsed(request.values, nodes)
        config = config.model_copy(update={"out": str(choose_folder(config).resolve())})
    if request.resume is not None and config.clients != nodes:
        raise ConfigError(
            f"{request.resume} is a run of {config.clients} clients, but --local starts {nodes} "
            "nodes, one for each: leave --local out"
        )
    if config.seeds > 1:
        raise ConfigError(f"seeds is {config.seeds}; a rehearsal has one: leave seeds out")
    if config.clients_at_once > 1:
        raise ConfigError(
            f"clients-at-once is {config.clients_at_once}; each node is one client: leave it out"
        )
    if sys.platform == "win32":
        raise ConfigError(
            "deploy starts Flower's own processes, which need Linux or macOS: leave deploy out"
        )
    if not (_APP / "pyproject.toml").exists():
        raise ConfigError(
            f"{_APP} has no pyproject.toml, which tells Flower what to send to nodes: run deploy "
            "from a checkout"
        )
    if request.dry_run:
        dry_run(request, config)
        return
    with progress_of(config, first_warnings(config, request.typed, nodes=True)) as progress:
        progress.begin(config)
        with INTERRUPTS.working():
            _rehearse(config, _told(argv), nodes, request.resume is not None, progress, prepare)


def rehearsed(values: Mapping[str, object], nodes: int) -> Config:
    """Settings of a rehearsal, where others are not given: every node takes part in every round.

    With the default shares a chunk may have none of so few clients: then as many chunks as there
    can be have equal shares.

    Raises:
        ConfigError: a bad value, or other clients than nodes.
    """
    # Before other settings, whose limits go by the number of nodes.
    given = values.get("clients", nodes)
    clients = make_config({"clients": given, "clients-per-round": given}).clients
    if clients != nodes:
        raise ConfigError(
            f"clients is {clients}, but --local starts {nodes} nodes, one for each: use "
            f"--local {clients}, or clients {nodes}"
        )
    own = {"clients": nodes, "clients-per-round": nodes, "checkpoint-every": 1}
    config = make_config({**own, **values})
    least = min(config.chunks) * config.clients
    if "chunks" not in values and least < 1:
        count = min(config.num_partitions, config.clients)
        config = make_config({**own, **values, "chunks": (1 / count,) * count})
    return config


def _told(argv: Sequence[str]) -> dict[str, str]:
    """What the server's process, which runs Flower's copy of the code, cannot know by itself."""
    told = {COMMAND: json.dumps(["sim.py", "deploy", *argv])}
    return told | ({COMMIT: known} if (known := commit()) else {})


def _rehearse(
    config: Config,
    told: dict[str, str],
    nodes: int,
    resume: bool,
    progress: Progress,
    prepare: Prepare,
) -> None:
    from fedpart.resumable import look_behind

    assert config.out is not None
    out = Path(config.out).resolve()
    if not resume:
        check_free(out)
    # A run that is taken up has its weights.
    data = prepare(config.model_copy(update={"init": None}) if resume else config)
    # Now, and not in the server's process once all is started.
    behind = look_behind(out, config, data) if resume else None
    for text in behind.warnings if behind else ():
        progress.warn(text)
    watch = Watch(config, out, behind.rounds if behind else [])
    folder = out / DEPLOYMENT
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)

    def close(reason: str, code: int) -> int | None:
        progress.close()
        if watch.begun:
            watch.close(reason, code, sure=code in (INTERRUPTED, TERMINATED))
        return len(records_behind(out)) if watch.begun or resume else None

    again = f"python sim.py deploy --resume {quote(str(out))}"
    with kept(folder):
        if not resume:
            # Another may have been here between the first look and now.
            check_free(out)
        with (
            closing_on_error(close, "round", again),
            # In the user's folder, beside which a model or a data set of their own may lie.
            Group(Path.cwd(), told, lambda: watch.busy) as group,
        ):
            deployment = Deployment(folder, nodes, _APP, group)
            progress.data(data.description, watch.behind)
            progress.backend(f"SuperLink and {nodes} SuperNodes on this machine, TLS, node keys")
            deployment.start_superlink()
            deployment.register()
            for node in range(nodes):
                deployment.start_node(node)
            _join(deployment, progress)
            settings = config.model_dump(mode="json", by_alias=True) | {"out": str(out)}
            settings["chunks"] = ",".join(map(repr, config.chunks))
            run = deployment.run(**settings, resume=resume or None)
            _follow(deployment, run, watch, progress)
    progress.end(read_record(out / "summary.json", Summary), out)


def _join(deployment: Deployment, progress: Progress) -> None:
    """Wait for the nodes, whose processes take seconds each to start and all share a machine."""
    deadline = time.monotonic() + _JOIN_SECONDS
    while deployment.connected() < deployment.nodes and time.monotonic() < deadline:
        time.sleep(_LOOK)
        _look_after(deployment, progress)


def _look_after(deployment: Deployment, progress: Progress) -> None:
    deployment.check()
    for text in deployment.restart_nodes(_RESTART):
        progress.warn(text)


def _follow(deployment: Deployment, run: str, watch: Watch, progress: Progress) -> None:
    """Show rounds until the run has ended; start nodes again that have ended.

    Raises:
        FedpartError: it has not ended well.
    """
    asked = time.monotonic()
    while True:
        time.sleep(_LOOK)
        working = watch.busy
        for record, evaluations in watch.rounds():
            progress.round(record, evaluations)
        _look_after(deployment, progress)
        if watch.begun and not working:
            break
        if not watch.begun and time.monotonic() - asked > _PATIENCE:
            status, why = deployment.status(run)
            asked = time.monotonic()
            if status.startswith("finished") and not watch.begun:
                raise ClientFailure(why)
    info = watch.info()
    if info.exit_code is None:
        raise ClientFailure(
            f"Flower's server process was killed; see {deployment.log('superlink')}"
        )
    if info.exit_code != 0:
        error = FedpartError(info.exit or "no reason given")
        error.exit_code = info.exit_code
        raise error
