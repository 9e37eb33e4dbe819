"""A small network that raises, or ends its process, in the midst of a client's training."""

import os
import signal
from pathlib import Path

from torch import Tensor, nn

# ``raise:N:FILE`` or ``kill:N:FILE``: strike in the N-th training pass of a process, once, which
# FILE is there to tell to those who come after.
VARIABLE = "FEDPART_DRILL"


class Faulty(nn.Module):
    """One linear layer behind dropout."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        """For images of 28x28 pixels."""
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(784 * in_channels, num_classes)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        """Logits; see ``VARIABLE``."""
        if self.training:
            self.passes += 1
            strike(self.passes)
        logits: Tensor = self.out(self.drop(x.flatten(1)))
        return logits


def strike(passes: int) -> None:
    """Do what the environment says, when the time has come.

    Raises:
        ArithmeticError: that is what it says.
    """
    kind, _, rest = os.environ.get(VARIABLE, "").partition(":")
    number, _, mark = rest.partition(":")
    if not kind or passes < int(number):
        return
    try:
        Path(mark).open("x").close()
    except FileExistsError:
        return
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ArithmeticError("a drill")


def faulty(num_classes: int, in_channels: int) -> nn.Module:
    """For ``--model fedpart.drill.network:faulty``."""
    return Faulty(num_classes, in_channels)
