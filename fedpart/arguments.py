"""The command line: one flag for each setting, made from ``Config`` itself."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from pydantic.fields import FieldInfo

from fedpart.config import NOT_RESULTS, Config, keys, load_toml, make_config
from fedpart.errors import ConfigError
from fedpart.plugins import nearest
from fedpart.run_files import check_shape
from fedpart.spelling import kebab
from fedpart.unused_settings import conditions

# Nodes of a rehearsal; twenty keep two cores busy.
MAX_NODES = 100
SUBCOMMANDS = ("central", "compare", "deploy", "drill", "split", "table")
# Heading of ``--help`` -> the first setting under it.
_GROUPS = {
    "dataset": "data and clients",
    "method": "method",
    "clients_per_round": "training",
    "eval_every": "running and watching",
}
# All that decides who holds which images, and where the picture goes.
OF_SPLIT = frozenset(
    {"dataset", "data_dir", "data_seed", "train_size", "clients", "skew", "alpha", "concentration"}
    | {"sizes", "min_examples", "batch_size", "out", "json_summary"}
)
_RUNS = "run folders, parents of several seeds, or any folders that hold them"
# Where a run is, and how often it is made, do not change when it is taken up.
_CHANGEABLE = NOT_RESULTS - {"out", "name", "seeds"}
_EPILOG = """other commands:
  sim.py compare DIR [DIR ...] --out curves.png   accuracy against what was sent, for several runs
  sim.py table DIR [DIR ...] [--latex]   mean and standard error over seeds beside the paper's
  sim.py drill                            clients, disks and processes that fail, on this machine
  sim.py central --experiment NAME   partitioned training in one place: configs/central/NAME.toml
  sim.py split --dataset rotmnist --out split.png   who holds what
  sim.py deploy --local N   rehearse on N of Flower's own nodes, with TLS and keys, on this machine

exit codes: 0 done, 1 a mistake of this program, 2 unusable setting, 3 unusable data, 4 run folder
or output, 5 clients failed, 130 interrupted, 143 terminated, 141 nobody reads the output; of drill,
1 is a fault that went wrong
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence; the caller chooses the exit code."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise ConfigError(f"{message}; see {self.prog} --help")


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        values: settings by TOML key, from the file and the flags; flags win.
        resume: folder of a run to take up, or None.
        dry_run: say what would happen, do nothing.
        typed: those of ``values`` that are flags, not from the file.
    """

    values: dict[str, object]
    resume: Path | None
    dry_run: bool
    typed: Mapping[str, object]

    def config(self) -> Config:
        """The settings, checked.

        Raises:
            ConfigError: an unknown key or a bad value.
        """
        return make_config(self.values)


def parse_split(argv: Sequence[str]) -> Request:
    """Read the command line of ``sim.py split``: any of a run's, of which it heeds a part.

    Raises:
        ConfigError: see ``parse_run``.
    """
    if {"-h", "--help"} & set(argv):
        parser = Parser(
            prog="sim.py split",
            description="Draw the client split: how many images each client holds, of which "
            "classes, turned how far. Any other flag of sim.py is taken, without effect.",
            argument_default=argparse.SUPPRESS,
        )
        _add_config(parser)
        parser.add_argument("--out", help=".png or .svg (default <dataset>-split.png)")
        fields = Config.model_fields.items()
        heeded = {name: field for name, field in fields if name in OF_SPLIT - {"out"}}
        add_settings(parser, heeded, _GROUPS)
        parser.parse_args(["--help"])
    return parse_run(argv)


def parse_run(argv: Sequence[str]) -> Request:
    """Read the command line of a run.

    Raises:
        ConfigError: an unknown flag, a missing value, or a settings file that cannot be read.
    """
    parser = _run_parser()
    known, rest = parser.parse_known_args(list(argv))
    flags = [*keys(), "config", "resume", "dry-run", "help"]
    if rest:
        unknown = next((r for r in rest if r.startswith("-")), rest[0]).split("=")[0]
        words = [f"--{flag}" for flag in flags] if unknown.startswith("-") else SUBCOMMANDS
        kind = "flag" if unknown.startswith("-") else "command"
        hint = nearest(unknown, words) or "; see sim.py --help"
        if unknown == "--experiment":
            hint = "; it is one of sim.py central"
        raise ConfigError(f"unknown {kind} {unknown!r}{hint}")
    given: dict[str, Any] = dict(vars(known))
    config, resume, dry_run = (given.pop(name) for name in ("config", "resume", "dry_run"))
    bound = [name for name in given if name not in _CHANGEABLE]
    if resume is not None and (bound or config is not None):
        extra = "--config" if config is not None else f"--{kebab(bound[0])}"
        raise ConfigError(f"--resume goes on with the run's own settings; leave {extra} out")
    if resume is not None and dry_run:
        raise ConfigError("--resume and --dry-run do not go together; leave one out")
    for name, text in (("config", config), ("resume", resume)):
        if text == "":
            raise ConfigError(f"--{name} is empty; give it a path or leave it out")
    values = {} if config is None else load_toml(config)
    typed = {("json" if n == "json_summary" else kebab(n)): v for n, v in given.items()}
    values |= typed
    # A run that is resumed keeps its own data-dir, unless another is given.
    named = (
        values if resume is not None and "data-dir" not in values else with_absolute_paths(values)
    )
    return Request(named, None if resume is None else Path(resume), dry_run, typed)


def with_absolute_paths(values: dict[str, object]) -> dict[str, object]:
    """The settings, with absolute paths, so that the run can be resumed from another folder.

    They are those of ``data-dir``, or ``$FEDPART_DATA`` in its place, ``availability``, ``init``.
    """
    paths = {
        "data-dir": values.get("data-dir") or os.environ.get("FEDPART_DATA"),
        **{key: values.get(key) for key in ("availability", "init")},
    }
    named = {key: os.path.abspath(os.path.expanduser(str(p))) for key, p in paths.items() if p}
    return values | named


def resumed_config(request: Request, config: Config) -> Config:
    """Settings of a run that is taken up: its own, and how to run it from here on.

    Raises:
        ConfigError: a bad value.
        OutputError: the folder is of one run and the settings of several, or the reverse.
    """
    assert request.resume is not None
    values = config.model_dump(by_alias=True) | request.values | {"out": str(request.resume)}
    resumed = make_config(values)
    check_shape(request.resume, resumed.seeds > 1)
    return resumed


def parse_compare(argv: Sequence[str]) -> tuple[list[Path], Path, float | None]:
    """Run folders to compare, where the picture goes, and the accuracy to reach, a fraction.

    Raises:
        ConfigError: an unknown flag, no folder, or a target that is no fraction.
    """
    parser = Parser(
        prog="sim.py compare",
        description="Draw validation accuracy against cumulative upload, download and both, with "
        "mean and standard error over seeds; learned hyperparameters; upload by chunk.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help=_RUNS)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("compare.png"),
        help=".png or .svg; the numbers go beside it as .csv (default %(default)s)",
    )
    parser.add_argument(
        "--target",
        metavar="ACCURACY",
        help="also print rounds and megabytes to this validation accuracy, such as 0.8",
    )
    known = _parse(parser, argv, ("--out", "--target", "--help"))
    return known.runs, known.out, None if known.target is None else _fraction(known.target)


def parse_table(argv: Sequence[str]) -> tuple[list[Path], bool, Path | None]:
    """Folders with runs, whether LaTeX is asked for, and the file to write.

    Raises:
        ConfigError: an unknown flag or no folder.
    """
    parser = Parser(
        prog="sim.py table",
        description="Final validation accuracy, mean and standard error over seeds, laid out as "
        "the paper's table and beside its numbers. Runs that are not finished are named.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help=_RUNS)
    parser.add_argument(
        "--latex",
        action="store_true",
        help="LaTeX with booktabs, not Markdown; also if FILE ends in .tex",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write there, not to the screen")
    known = _parse(parser, argv, ("--latex", "--out", "--help"))
    latex = known.latex or (known.out is not None and known.out.suffix == ".tex")
    return known.runs, latex, known.out


def parse_drill(argv: Sequence[str]) -> None:
    """The drill has no settings.

    Raises:
        ConfigError: there are any.
    """
    description = "Break things on purpose and say what became of it, in less than two minutes."
    _parse(Parser(prog="sim.py drill", description=description), argv, ("--help",))


def parse_deploy(argv: Sequence[str]) -> tuple[int, Request]:
    """Number of nodes on this machine, 0 where a resume tells it, and the request of the run.

    Raises:
        ConfigError: no number of nodes, or see ``parse_run``.
    """
    parser = Parser(
        prog="sim.py deploy",
        description="Rehearse a deployment on this machine: SuperLink and N SuperNodes with TLS "
        "and node keys. Takes the flags of sim.py but --seeds and --clients-at-once; clients and "
        "clients-per-round are N, and a checkpoint is kept after every round, where nothing else "
        "is said. The README says how to go on with real devices.",
        allow_abbrev=False,
    )
    parser.add_argument("--local", type=int, metavar="N", help="how many nodes")
    known, rest = parser.parse_known_args(list(argv))
    request = parse_run(rest)
    if known.local is None and request.resume is None:
        raise ConfigError("deploy needs --local N, the number of nodes on this machine")
    if known.local is not None and known.local < 1:
        raise ConfigError(f"--local is {known.local}; it must be at least 1")
    if known.local is not None and known.local > MAX_NODES:
        raise ConfigError(
            f"--local is {known.local}; each node is a process of this machine: use at most "
            f"{MAX_NODES}"
        )
    return known.local or 0, request


def _parse(parser: Parser, argv: Sequence[str], flags: Sequence[str]) -> argparse.Namespace:
    known, rest = parser.parse_known_args(list(argv))
    if rest:
        raise ConfigError(f"unknown flag {rest[0]!r}{nearest(rest[0], flags)}")
    return known


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < 1:
        raise ConfigError(f"--target is {text!r}; it must be a fraction above 0 and below 1")
    return value


def _run_parser() -> Parser:
    parser = Parser(
        prog="sim.py",
        description="Train over simulated clients; show it; write a run folder.",
        epilog=_EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    _add_config(parser)
    parser.add_argument(
        "--resume",
        default=None,
        metavar="DIR",
        help="take up an interrupted run, or several seeds; its settings, but for back end, "
        "data-dir and watching",
    )
    parser.add_argument(
        "--dry-run", action="store_true", default=False, help="say what would happen; do nothing"
    )
    add_settings(parser, Config.model_fields, _GROUPS)
    return parser


def _add_config(parser: Parser) -> None:
    parser.add_argument(
        "--config", default=None, metavar="FILE", help="TOML file of settings; flags override it"
    )


def add_settings(
    parser: argparse.ArgumentParser,
    fields: Mapping[str, FieldInfo],
    groups: Mapping[str, str],
) -> None:
    """Give a parser one flag for each setting.

    Args:
        parser: leaves out what is not given, where its ``argument_default`` is ``SUPPRESS``.
        fields: of the settings' model.
        groups: heading of ``--help`` by the first setting under it.
    """
    group: Any = parser
    for name, field in fields.items():
        if name in groups:
            group = parser.add_argument_group(groups[name])
        text = (field.description or "").replace("%", "%%")
        flag = f"--{field.alias or kebab(name)}"
        if field.annotation is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, dest=name, help=text)
            continue
        default = field.default
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        notes = [] if default in (None, "") or name == "skew" else [f"default {default}"]
        notes += [condition.text for condition in conditions(field)]
        metavar = name.rsplit("_", 1)[-1].upper()
        if get_origin(field.annotation) is Literal:
            metavar = "{" + ",".join(get_args(field.annotation)) + "}"
        text += f" ({'; '.join(notes)})" if notes else ""
        group.add_argument(flag, dest=name, metavar=metavar, help=text)
