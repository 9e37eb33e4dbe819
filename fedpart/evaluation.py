"""Evaluation of the full network, or of a subnetwork, on held-out images."""

import math
import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedpart.data import FederatedData
from fedpart.device import moved, on_device
from fedpart.layout import subnetwork
from fedpart.likelihood import MICRO_BATCH, log_likelihood
from fedpart.plugins import own_code
from fedpart.program import Program
from fedpart.records import EvaluationRecord, SubnetworkRecord
from fedpart.streams import global_seed, torch_rng

SUBNETWORK_IMAGES = 1000


class EvaluationStopped(Exception):
    """An evaluation was told to leave off."""


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation gives.

    Attributes:
        accuracy: fraction of images, 0..1.
        loss: mean negative log-likelihood, nats an image.
        num_images: how many.
        correct: which images were classified rightly, [num_images] bool.
    """

    accuracy: float
    loss: float
    num_images: int
    correct: np.ndarray


def evaluate(
    program: Program,
    theta: Tensor,
    hyper: Tensor,
    images: np.ndarray,
    labels: np.ndarray,
    server_round: int,
    k: int | None = None,
    stop: threading.Event | None = None,
) -> Evaluation:
    """Accuracy and loss with S augmented copies of each image, dropout off.

    Args:
        program: shared by all.
        theta: every parameter, [P].
        hyper: psi, [H].
        images: [n, c, h, w] uint8.
        labels: [n].
        server_round: names the stream of the augmentation's noise; 0 for the test images.
        k: subnetwork, 0..C; the full network where None.
        stop: once set, the evaluation leaves off before its next images.
    Raises:
        ConfigError: a network or augmentation of the user's own raised.
        EvaluationStopped: ``stop`` was set.
    Source: Section 5 and Appendix J ("10 augmentation samples ... in both training and inference").
    """
    k = program.layout.num_partitions if k is None else k
    device = program.config.device
    program, theta, hyper = on_device(program), moved(theta, device), hyper.to(device)
    of = "evaluation " + (f"after round {server_round}" if server_round else "on the test images")
    rng = torch_rng(program.config.seed, "evaluation", server_round, k, device=device)
    correct, loss = [], 0.0
    micro = max(1, MICRO_BATCH // program.config.samples)
    with torch.inference_mode(), global_seed(0, device):
        flat = subnetwork(theta, program.default, program.layout.ids, k)
        parameters = program.layout.merge(program.leaves(flat))
        for start in range(0, len(labels), micro):
            if stop is not None and stop.is_set():
                raise EvaluationStopped
            x = program.to_float(images[start : start + micro])
            y = torch.from_numpy(np.array(labels[start : start + micro], np.int64)).to(device)
            with own_code(program.config.model, program.config.augmentation, of):
                likelihood, predicted = log_likelihood(
                    program, parameters, hyper, x, y, rng, training=False
                )
            correct.append((predicted.argmax(1) == y).cpu().numpy())
            loss -= float(likelihood.double().sum())
    hits = np.concatenate(correct)
    return Evaluation(float(hits.mean()), loss / len(labels), len(labels), hits)


def evaluation_record(
    program: Program,
    data: FederatedData,
    theta: Tensor,
    hyper: Tensor,
    server_round: int,
    size: int,
    l_ml: float | None,
    stop: threading.Event | None = None,
) -> EvaluationRecord:
    """The record of one evaluation: the full network, and every subnetwork on fewer images.

    Args:
        program: shared by all.
        data: with validation images.
        theta: every parameter, [P].
        hyper: psi, [H].
        server_round: the round that ended with these values.
        size: how many validation images, the first ones.
        l_ml: what the round's clients measured out of sample, nats an example.
        stop: see ``evaluate``.
    Raises:
        ConfigError: see ``evaluate``.
        EvaluationStopped: see ``evaluate``.
    """

    def on_first(n: int, k: int | None = None) -> Evaluation:
        images, labels = data.val_images[:n], data.val_labels[:n]
        return evaluate(program, theta, hyper, images, labels, server_round, k, stop)

    full, few = on_first(size), min(SUBNETWORK_IMAGES, size)
    accuracies = [on_first(few, k).accuracy for k in range(1, program.layout.num_partitions)]
    # The last subnetwork is the full network, which has just been evaluated.
    accuracies.append(float(full.correct[:few].mean()))
    return EvaluationRecord(
        round=server_round,
        num_images=size,
        val_accuracy=full.accuracy,
        val_loss=full.loss if math.isfinite(full.loss) else None,
        subnetworks=[
            SubnetworkRecord(k=k, accuracy=accuracy, num_images=few)
            for k, accuracy in enumerate(accuracies, 1)
        ],
        l_ml=l_ml,
    )
