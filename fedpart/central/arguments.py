"""The command line of ``sim.py central``: one flag for each setting."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpart.arguments import Parser, add_settings, with_absolute_paths
from fedpart.central.config import (
    SEVERAL,
    TOYS,
    CentralConfig,
    make_central_config,
    preset,
    presets,
)
from fedpart.config import keys, load_toml
from fedpart.errors import ConfigError
from fedpart.plugins import nearest
from fedpart.spelling import kebab, spelled

# Where a run is, and how it is watched, may change when it is taken up.
CHANGEABLE = frozenset({"json_summary", "logger", "checkpoint_every", "data_dir"})
_GROUPS = {
    "method": "method",
    "iterations": "training",
    "inputs": "experiment",
    "eval_every": "running and watching",
}


@dataclass(frozen=True)
class CentralRequest:
    """What the user asked for.

    Attributes:
        values: settings by TOML key, from the preset or file and the flags; flags win.
        resume: folder of a run, or of several, to take up; or None.
        typed: those of ``values`` that are flags, not from the file.
    """

    values: dict[str, object]
    resume: Path | None
    typed: Mapping[str, object]

    def config(self) -> CentralConfig:
        """The settings, checked.

        Raises:
            ConfigError: an unknown key or a bad value.
        """
        return make_central_config(self.values)


def parse_central(argv: Sequence[str]) -> CentralRequest:
    """Read the command line of ``sim.py central``.

    Raises:
        ConfigError: an unknown flag, a missing value, or a settings file that cannot be read.
    """
    parser = Parser(
        prog="sim.py central",
        description="Train a partitioned network in one place; write a run folder.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--experiment",
        metavar="NAME",
        help=f"{CentralConfig.model_fields['experiment'].description}. Takes the settings of "
        f"configs/central/NAME.toml, which other flags override: {', '.join(presets())}",
    )
    parser.add_argument(
        "--config", default=None, metavar="FILE", help="TOML file of settings, not the preset"
    )
    parser.add_argument(
        "--resume", default=None, metavar="DIR", help="take up an interrupted run, or several"
    )
    fields = {n: field for n, field in CentralConfig.model_fields.items() if n != "experiment"}
    add_settings(parser, fields, _GROUPS)
    known, rest = parser.parse_known_args(list(argv))
    if rest:
        flags = [*spelled(CentralConfig.model_fields), "config", "resume", "help"]
        flag = rest[0].split("=")[0]
        hint = nearest(flag, [f"--{name}" for name in flags]) or "; see sim.py central --help"
        if flag.removeprefix("--") in keys():
            hint = "; it is one of a run over clients: leave central out"
        raise ConfigError(f"unknown flag {rest[0]!r}{hint}")
    given = dict(vars(known))
    config, resume = given.pop("config"), given.pop("resume")
    flags_given = {("json" if n == "json_summary" else kebab(n)): v for n, v in given.items()}
    if resume is None:
        base = load_toml(config) if config is not None else _preset(flags_given)
        for single, plural in SEVERAL.items():
            # One that is typed takes the place of several in the file.
            if single in flags_given and plural not in flags_given:
                base.pop(plural, None)
        values = base | flags_given
        toy = values.get("experiment") in TOYS
        return CentralRequest(values if toy else with_absolute_paths(values), None, flags_given)
    bound = [kebab(name) for name in given if name not in CHANGEABLE]
    if config is not None or bound:
        extra = "config" if config is not None else bound[0]
        hint = ""
        if extra in {*SEVERAL.values(), "inputs", "seeds", "trials"}:
            hint = f", or for more runs widen it in {Path(resume) / 'config.toml'}"
        raise ConfigError(
            f"--resume goes on with the run's own settings; leave --{extra} out{hint}"
        )
    return CentralRequest(flags_given, Path(resume), flags_given)


def _preset(given: dict[str, object]) -> dict[str, object]:
    """Settings of the file that ``--experiment`` names; the file says which experiment it is."""
    if "experiment" not in given:
        raise ConfigError("give --experiment NAME, --config FILE or --resume DIR")
    return preset(str(given.pop("experiment")))
