"""Where clients and evaluations compute: the same program, moved once."""

import copy
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from fedpart.program import Program


@lru_cache(maxsize=1)
def on_device(program: Program) -> Program:
    """A program whose network, layout and defaults are on ``config.device``; itself on the CPU.

    On a GPU it also decides for the process whether its float32 kernels may use tf32.

    The server keeps the original: its step, messages and files are the CPU's.
    """
    device = program.config.device
    if device == "cpu":
        return program
    # Otherwise, float32 is float32.
    shorter = program.config.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = shorter
    return replace(
        program,
        network=copy.deepcopy(program.network).to(device),
        layout=program.layout.to(device),
        initial=program.initial.to(device),
        default=program.default.to(device),
    )


def moved(theta: Tensor, device: str) -> Tensor:
    """``theta`` [P] on a device: copied once for all clients of a round that share a process."""
    return theta if device == "cpu" else _moved(theta, device)


@lru_cache(maxsize=1)
def _moved(theta: Tensor, device: str) -> Tensor:
    return theta.to(device)
