"""``model.pt``: the full network as a plain state dict, with psi."""

import pickle
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedpart.errors import ConfigError
from fedpart.likelihood import full_state
from fedpart.program import Program
from fedpart.server import ServerState, initial_state
from fedpart.tensors import write_tensors


def write_model(path: Path, program: Program, state: ServerState) -> None:
    """Write the network and psi so that ``torch.load(path, weights_only=True)`` reads them.

    Raises:
        OutputError: the place cannot be written.
    """
    write_tensors(path, full_state(program, state.theta, state.hyper))


def starting_state(program: Program) -> ServerState:
    """Before round 1: from the seed, or from ``config.init``.

    Psi is taken from the file too where there is one of the right length; where the file has none
    (FedAvg), it starts anew.

    Raises:
        ConfigError: no such file, another format, or another model.
    """
    path = program.config.init
    if path is None:
        return initial_state(program)
    try:
        # Torch writes checksums, but does not look at them.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        loaded = None if damaged else torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise ConfigError(f"init {path} cannot be read: {error.strerror or error}") from None
    # What the two raise on files that are something else.
    except (
        *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError),
        *(RuntimeError, EOFError, ValueError, KeyError),
    ):
        raise ConfigError(f"init {path} is no model.pt of this program") from None
    if damaged:
        raise ConfigError(f"init {path} is damaged (at {damaged}): take a fresh copy")
    if not _is_model_file(loaded):
        raise ConfigError(f"init {path} is no model.pt of this program: it lacks model or hyper")
    try:
        theta = program.layout.spread(loaded["model"])
    except ConfigError as error:
        raise ConfigError(f"init {path} is of another model: {error}") from None
    hyper = loaded["hyper"].to(torch.float32)
    if not (torch.isfinite(theta).all() and torch.isfinite(hyper).all()):
        raise ConfigError(f"init {path} holds values that are not finite")
    state = initial_state(program, theta)
    if program.hyper.size == 0 or hyper.numel() == 0:
        return state
    if hyper.shape != state.hyper.shape:
        raise ConfigError(
            f"init {path} holds {hyper.numel()} hyperparameters, and these settings have "
            f"{program.hyper.size}: use the same augmentation and model"
        )
    return replace(state, hyper=hyper)


def _is_model_file(loaded: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it holds what ``write_model`` writes: tensors by name, and psi."""
    if not isinstance(loaded, dict) or not isinstance(loaded.get("model"), dict):
        return False
    return all(isinstance(v, Tensor) for v in (loaded.get("hyper"), *loaded["model"].values()))
