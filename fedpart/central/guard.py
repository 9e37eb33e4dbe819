"""What ends a training at once: numbers that are not finite."""

import math
from typing import TYPE_CHECKING

import torch

from fedpart.errors import DivergedError
from fedpart.psi import runaway
from fedpart.spelling import kebab

if TYPE_CHECKING:
    from fedpart.central.training import Training


def check_finite(training: "Training") -> None:
    """Whether weights and psi are finite, psi in plain units too, and widths within their limit.

    Raises:
        DivergedError: one is not.
    """
    if (found := runaway(training.psi, training.state.hyper.cpu())) is not None:
        raise _diverged(training, *found, training.state.iteration)
    plain = torch.tensor(list(training.hyper.values()), dtype=torch.float64)
    for what, values in (("a weight", training.state.theta), ("psi", plain)):
        bad = values[~values.isfinite()]
        if len(bad):
            raise _diverged(training, what, float(bad[0]), training.state.iteration)


def check_value(
    training: "Training", what: str, value: float, iteration: int | None = None
) -> float:
    """A number that a training has come to, where it is finite.

    Args:
        training: whose settings say how long its steps are.
        what: the number is.
        value: it.
        iteration: it is of, or that of the state.
    Raises:
        DivergedError: it is not finite.
    """
    if math.isfinite(value):
        return value
    at = training.state.iteration if iteration is None else iteration
    raise _diverged(training, what, value, at)


def _diverged(training: "Training", what: str, value: float, iteration: int) -> DivergedError:
    settings = training.settings
    tuned = settings.finetune > 0 and training.state.iteration > settings.iterations
    rates = ["finetune_lr" if tuned else "lr"]
    # Weights and psi spoil each other within one iteration: either may be to blame.
    if training.learns_hyper:
        rates.append("augerino_lr" if settings.method == "augerino" else "hyper_lr")
    told = " and ".join(f"{kebab(rate)} {getattr(settings, rate):g}" for rate in rates)
    ones = "smaller ones" if len(rates) > 1 else "a smaller one"
    return DivergedError(
        f"{what} is {value} at iteration {iteration:,} with {told}: start anew with {ones}"
    )
