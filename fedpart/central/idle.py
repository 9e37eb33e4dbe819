"""Settings of ``sim.py central`` that were typed and are of no use beside the others."""

from collections.abc import Iterator, Mapping

from fedpart.central.config import SEVERAL, CentralConfig
from fedpart.central.settings import WHOLE
from fedpart.idle import Reason, idle_sentence

_OF_IMAGES = ("dataset", "data_dir", "model", "augmentation", "width_start")
# What belongs to one method.
_OF_METHOD = {
    "augerino": ("augerino_lr", "augerino_weight"),
    "validation": ("finetune", "finetune_lr"),
    "random-search": ("trial", "trials"),
    "retrain": ("psi", "psi_chunks"),
}


def idle_in_central(config: CentralConfig, typed: Mapping[str, object]) -> str:
    """One sentence that names them and why; empty where there are none.

    Args:
        config: the settings, checked and resolved.
        typed: TOML keys and values as they were typed.
    """
    return idle_sentence(config, typed, _reasons(config))


def _reasons(config: CentralConfig) -> Iterator[Reason]:
    """Reasons, and the settings that each makes idle."""
    if config.toy:
        yield f"{config.experiment} has no images", _OF_IMAGES
    if config.experiment != "input-selection":
        yield f"experiment is {config.experiment}", ("inputs",)
    if config.experiment != "mask-learning":
        yield f"experiment is {config.experiment}", ("mask_start",)
    for single, plural in SEVERAL.items():
        if getattr(config, plural):
            yield f"{plural} is given", (single.replace("-", "_"),)
    methods = set(config.methods or [config.method])
    named = f"{'methods are' if config.methods else 'method is'} {', '.join(sorted(methods))}"
    for method, names in _OF_METHOD.items():
        if method not in methods:
            yield named, names
    if "random-search" in config.methods:
        yield "trials says how many are drawn", ("trial",)
    elif methods == {"random-search"}:
        yield "trial says which is drawn", ("trials",)
    if methods <= WHOLE:
        yield named, ("chunks", "weights", "splits", "defaults", "decay_rule", "hyper_lr")
    if methods <= {"none"}:
        yield named, ("augmentation", "width_start", "samples")
    if not config.finetune:
        yield "finetune is 0", ("finetune_lr",)
    if config.optimiser == "sgd":
        adam = ("adam_eps",) if methods <= {"none", "retrain", "random-search"} else ()
        yield "optimiser is sgd", adam
    else:
        yield f"optimiser is {config.optimiser}", ("momentum",)
    if config.schedule == "constant":
        yield "schedule is constant", ("lr_end", "anneal")
    if not config.weight_decay:
        yield "weight-decay is 0", ("decay_rule",)
    if config.samples == 1:
        yield "samples is 1", ("average",)
