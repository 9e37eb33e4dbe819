"""What a training has come to: the objective L_ML over all its data, and accuracy."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpart.central.chunks import check_examples
from fedpart.central.training import Training
from fedpart.likelihood import log_likelihood
from fedpart.streams import torch_rng

_BATCH = 1024


@dataclass(frozen=True)
class Score:
    """Mean log-likelihood, nats an example, and accuracy, a fraction."""

    log_likelihood: float
    accuracy: float


def out_of_sample(training: Training, most: int | None = None) -> list[float]:
    """Mean log-likelihood of each chunk but the first, by the subnetwork that has not seen it.

    Noise is drawn as in training, since the objective is an expectation over it.

    Args:
        training: weights, psi and data.
        most: examples of each chunk that are scored, or all.
    Returns:
        [C - 1], nats an example: entry ``c - 1`` is chunk ``c`` by subnetwork ``c``.
    Source: equation (4).
    """
    chunks = training.chunks
    return [
        score(
            training,
            k=training.settings.scored_by(chunk),
            positions=np.array(chunks.positions(chunk))[:most],
            rng=torch_rng(
                *(training.settings.seed, "l-ml", training.state.iteration, chunk),
                device=training.settings.device,
            ),
        ).log_likelihood
        for chunk in range(1, len(training.settings.chunks))
    ]


def l_ml(training: Training) -> float:
    """The objective for psi, as a mean over all examples but those of chunk 0.

    Returns:
        nats an example: L_ML divided by N - |D_0|.
    Raises:
        DivergedError: it is not finite.
    Source: equation (2).
    """
    return weighted(training, out_of_sample(training))


def weighted(training: Training, by_chunk: list[float]) -> float:
    """Mean over examples of what ``out_of_sample`` gives by chunk."""
    sizes = [len(training.chunks.positions(c)) for c in range(1, len(by_chunk) + 1)]
    return sum(n * value for n, value in zip(sizes, by_chunk, strict=True)) / sum(sizes)


def score(
    training: Training, k: int, positions: np.ndarray, rng: torch.Generator | None = None
) -> Score:
    """Score training examples by subnetwork ``k``; with ``rng``, noise is drawn as in training."""
    return score_tensors(training, k, *training.chunks.take(positions), rng=rng)


def score_tensors(
    training: Training,
    k: int,
    inputs: Tensor,
    labels: Tensor,
    rng: torch.Generator | None = None,
) -> Score:
    """Score examples by subnetwork ``k``.

    Args:
        training: weights and psi.
        k: 0..C; C is the full network.
        inputs: [n, ...].
        labels: [n] int64.
        rng: noise as in training; else dropout is off and masks are at their mean.
    Raises:
        DataError: see ``check_examples``.
        DivergedError: a likelihood that is not finite.
    """
    labels = check_examples(inputs, labels, training.num_classes)
    program = training.program
    parameters = program.layout.merge(program.leaves(training.weights(k)))
    device = training.settings.device
    noise = torch_rng(training.settings.seed, "score", k, device=device) if rng is None else rng
    likelihood = correct = 0.0
    size = max(1, _BATCH // training.settings.samples)
    with torch.no_grad():
        for part in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
            x, y = (tensor.to(device) for tensor in part)
            values, predicted = log_likelihood(
                *(program, parameters, training.state.hyper, x, y, noise), training=rng is not None
            )
            likelihood += float(values.double().sum())
            correct += float((predicted.argmax(-1) == y).sum())
    mean = training.check_value("the log-likelihood", likelihood / len(labels))
    return Score(mean, correct / len(labels))
