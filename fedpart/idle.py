"""Settings that were typed and are of no use beside the others."""

from collections.abc import Iterable, Iterator, Mapping

from fedpart.config import Config
from fedpart.machine import slow_precision
from fedpart.spelling import kebab
from fedpart.values import Resolved

Reason = tuple[str, tuple[str, ...]]
# All that decides who holds which images, and where the picture goes.
OF_SPLIT = frozenset(
    {"dataset", "data_dir", "data_seed", "train_size", "clients", "skew", "alpha", "concentration"}
    | {"sizes", "min_examples", "batch_size", "out", "json_summary"}
)
_WORKERS = ("workers", "gpus_per_client", "ray_address")
_WIDTHS = ("width_start", "width_transform")
_PARTITIONS = ("scheme", "defaults")
_HYPER = ("hyper_lr", "hyper_batch_size")
# What ``method`` sets, whatever is given.
_OVERRULED = ("chunks", "augmentation", "samples")


def first_warnings(config: Config, typed: Mapping[str, object], nodes: bool = False) -> list[str]:
    """What a user should know before a run that settings allow, one sentence each.

    Args:
        config: the settings, checked and resolved.
        typed: TOML keys and values as they were typed.
        nodes: whether clients are Flower's nodes, and no back end runs them.
    """
    idle = idle_settings(config, typed, nodes)
    return [text for text in (idle, slow_precision(config.precision, config.device)) if text]


def idle_settings(config: Config, typed: Mapping[str, object], nodes: bool = False) -> str:
    """One sentence that names them and why; empty where there are none.

    Keys of a settings file are not looked at: a file serves several methods and back ends.

    Args:
        config: the settings, checked and resolved.
        typed: TOML keys and values as they were typed.
        nodes: whether clients are Flower's nodes, and no back end runs them.
    """
    return idle_sentence(config, typed, _reasons(config, nodes))


def idle_in_split(config: Config, typed: Mapping[str, object]) -> str:
    """The same for ``sim.py split``, which trains nothing."""
    others = tuple(name for name in Config.model_fields if name not in OF_SPLIT)
    return idle_sentence(config, typed, [*_reasons(config), ("nothing is trained", others)])


def idle_sentence(config: Resolved, typed: Mapping[str, object], reasons: Iterable[Reason]) -> str:
    """Names what was typed and differs from what would be there without it, with the reason."""
    found: dict[str, str] = {}
    for reason, names in reasons:
        for name in names:
            key = kebab(name)
            if key in typed and _differs(config, name, typed[key]):
                found.setdefault(key, f"{key} {typed[key]} ({reason})")
    return f"of no use: {', '.join(found.values())}" if found else ""


def _differs(config: Resolved, name: str, typed: object) -> bool:
    """Whether a value is another than would be there without it."""
    value = getattr(config, name)
    if name in _OVERRULED and getattr(config, "method", "") != "partitioned":
        return typed != (",".join(f"{v:g}" for v in value) if name == "chunks" else str(value))
    # One worker is what a run without workers is.
    return value != type(config).model_fields[name].default and (name, value) != ("workers", 1)


def _reasons(config: Config, nodes: bool = False) -> Iterator[Reason]:
    """Reasons, and the settings that each makes idle."""
    if nodes:
        yield "the clients are Flower's nodes", ("backend", *_WORKERS)
    elif config.backend in ("inline", "algorithm"):
        late = ("round_timeout",) if config.backend == "algorithm" else ()
        yield f"backend is {config.backend}", (*_WORKERS, *late)
    if config.method == "fedavg":
        yield "method is fedavg", (*_OVERRULED, "average", *_WIDTHS, *_HYPER)
    if config.method == "augerino":
        yield "method is augerino", ("chunks",)
    else:
        yield f"method is {config.method}", ("augerino", "augerino_weight")
    if config.num_partitions == 1:
        # The one subnetwork has seen all data, and psi is not learned; Augerino does not mind.
        learned = () if config.method == "augerino" else _HYPER
        yield "there is one chunk", _PARTITIONS + learned
    if config.augmentation == "none":
        yield "augmentation is none", _WIDTHS
    elif config.augmentation not in ("symmetric", "generators"):
        yield f"augmentation is {config.augmentation}", ("width_transform",)
    if config.samples == 1:
        yield "samples is 1", ("average",)
    if config.skew == "iid":
        yield "skew is iid", ("alpha", "concentration")
    if config.clients_at_once > config.cohort_size:
        yield f"a round asks {config.cohort_size}", ("clients_at_once",)
    elif config.device == "cpu":
        yield "device is cpu, where one by one is faster", ("clients_at_once",)
    if config.clients_per_round == config.clients:
        yield "every client is asked in every round", ("over_select",)
    if config.cohort_size == 1:
        yield "one client a round", ("max_update_norm",)
