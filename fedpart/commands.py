"""Commands that train nothing over clients: what is typed, and what is printed."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedpart.arguments import OF_SPLIT, parse_compare, parse_drill, parse_split, parse_table
from fedpart.config import Config
from fedpart.errors import ConfigError
from fedpart.files import PICTURES, check_out
from fedpart.interrupts import INTERRUPTS
from fedpart.spelling import kebab
from fedpart.unused_settings import unused_settings

SIM = Path(__file__).parents[1] / "sim.py"


def central(argv: Sequence[str]) -> None:
    """``sim.py central``: partitioned training in one place."""
    from fedpart.central.command import central

    central(argv)


def compare(argv: Sequence[str]) -> None:
    """``sim.py compare``: pictures and numbers of several runs."""
    folders, out, target = parse_compare(argv)
    from fedpart.compare import compare

    comparison = compare(folders, out, target)
    sys.stderr.write("".join(f"{note}\n" for note in comparison.notes))
    sys.stdout.write(f"{comparison.text()}\n\n{out} and {out.with_suffix('.csv')}\n")


def drill(argv: Sequence[str]) -> int:
    """``sim.py drill``: faults on purpose; 1 where one went wrong."""
    parse_drill(argv)
    from fedpart.drill.drill import drill

    results = []
    for result in drill(SIM):
        sys.stdout.write(f"{result.text()}\n")
        sys.stdout.flush()
        results.append(result)
    wrong = sum(result.right is False for result in results)
    seconds = sum(result.seconds for result in results)
    sys.stdout.write(f"\n{len(results)} faults in {seconds:.0f} s, {wrong} of them went wrong\n")
    return 1 if wrong else 0


def table(argv: Sequence[str]) -> None:
    """``sim.py table``: results beside the paper's."""
    folders, latex, out = parse_table(argv)
    if out is not None:
        check_out(out)
    from fedpart.results import collect
    from fedpart.results_text import write_table

    results = collect(folders)
    sys.stderr.write("".join(f"{line}\n" for line in results.skipped))
    sys.stdout.write(write_table(results, latex, out))


def split(argv: Sequence[str]) -> None:
    """``sim.py split``: who holds what."""
    request = parse_split(argv)
    if request.dry_run or request.resume is not None:
        raise ConfigError("split draws the client split only; leave --dry-run and --resume out")
    config = request.config()
    from fedpart.data import load_federated
    from fedpart.plots_split import draw_split, split_json, split_table

    others = (kebab(name) for name in Config.model_fields if name not in OF_SPLIT)
    ignored = dict.fromkeys(others, "nothing is trained")
    if unused := unused_settings(config, request.typed, ignored):
        sys.stderr.write(f"warning: {unused}\n")
    out = Path(config.out or f"{config.dataset}-split.png")
    check_out(out, PICTURES)
    with INTERRUPTS.working():
        data = load_federated(config)
    draw_split(data, config, out)
    if config.json_summary:
        sys.stdout.write(json.dumps(split_json(data, config)) + "\n")
    else:
        sys.stdout.write(f"{split_table(data, config)}\npicture  {out}\n")


COMMANDS: Mapping[str, Callable[[Sequence[str]], int | None]] = {
    function.__name__: function for function in (central, compare, drill, split, table)
}
