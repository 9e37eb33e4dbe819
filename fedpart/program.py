"""What a client and the server derive from the configuration alone, and the model's likelihood."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedpart.augment import build_augmentation
from fedpart.config import Config
from fedpart.data import FederatedData, to_float
from fedpart.layout import Layout
from fedpart.models import (
    MODELS,
    BatchedHalf,
    Source,
    build_model,
    noise,
    noise_images,
    own_hyperparameters,
    swap_dropout,
    try_out,
    uniform,
)
from fedpart.nodes import read_nodes
from fedpart.plugins import own_code, users_code
from fedpart.psi import HyperSpec, Psi
from fedpart.runtime import check_device
from fedpart.streams import global_seed, numpy_rng, torch_seed

# Copies of images that go through the network at once, at most.
MICRO_BATCH = 256
# How much the order of sums may change, as a share of the norm.
_AGREE = 1e-3


class LikelihoodSettings(Protocol):
    """How predictions are made of a network's outputs; see ``Config``."""

    @property
    def samples(self) -> int: ...  # noqa: D102
    @property
    def average(self) -> str: ...  # noqa: D102
    @property
    def precision(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A partitioned network: all that its likelihood and gradients depend on, values apart.

    Attributes:
        network: the module; its own parameters are never read, ``theta`` is put in their place.
        layout: how ``theta`` is cut and partitioned.
        initial: parameters at initialisation, [P].
        default: w-hat, [P].
        hyper: what psi is made of.
        config: samples, kind of average, precision.
        channels_last: whether images and kernels have channels last in memory; see
            ``allows_channels_last``.
    """

    network: nn.Module
    layout: Layout
    initial: Tensor
    default: Tensor
    hyper: Psi
    config: LikelihoodSettings
    channels_last: bool = True

    @property
    def memory_format(self) -> str:
        """PyTorch's name for how images and kernels lie in memory."""
        return "channels_last" if self.channels_last else "contiguous_format"

    def micro_batches(self, images: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut a batch into equal parts that fit the processor's caches, augmented copies counted.

        The size of a part follows from the batch alone, so that the order of sums and with it
        every bit is the same wherever a client runs.
        """
        size = self.micro_size(len(labels))
        return zip(torch.split(images, size), torch.split(labels, size), strict=True)

    def micro_size(self, images: int) -> int:
        """Images of each part but the last that a batch of so many ``images`` is cut into."""
        parts = math.ceil(images / max(1, MICRO_BATCH // self.config.samples))
        return math.ceil(images / parts)

    def leaves(self, flat: Tensor) -> dict[str, Tensor]:
        """``Layout.leaves`` in the type that the network computes in.

        With ``precision = "bf16"`` matrices and kernels are rounded to it; vectors and affine
        parameters stay float32, as do all sums and the values that are trained.
        """
        leaves = self.layout.leaves(flat)
        if self.config.precision != "bf16":
            return leaves
        plain = {e.name for e in self.layout.entries if e.merge == "plain" and len(e.shape) > 1}
        return {n: t.bfloat16() if n in plain else t for n, t in leaves.items()}


@dataclass(frozen=True, eq=False)
class Program(Partitioned):
    """One client program and one server program have this in common.

    Attributes:
        hyper: augmentation, dropout logits, and what other layers declare.
        config: every setting.
        mean: of each channel, taken off images in [0, 1]; empty for nothing.
        std: of each channel, divided by; empty for nothing.
    """

    hyper: HyperSpec
    config: Config
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def to_float(self, images: np.ndarray | Tensor) -> Tensor:
        """Images as the network wants them, [n, c, h, w] float32 from uint8, on the device."""
        return to_float(images, self.mean, self.std).to(self.config.device)

    def readable(self, hyper: Tensor) -> dict[str, float]:
        """Psi [H] in plain units, see ``HyperSpec.readable``.

        Raises:
            ConfigError: a network or augmentation of the user's own raised.
        """
        with own_code(self.config, "telling psi"):
            return self.hyper.readable(hyper)

    @cached_property
    def run_token(self) -> int:
        """63 bits by which messages of this run are told from those of any other.

        Server and client each derive it from their own settings, so that a client with others
        shows too.
        """
        # The path of this file is the server's own.
        values = self.config.result_values() | {"availability": None}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def scoring(self, chunk: int) -> int | None:
        """Subnetwork through which data of ``chunk`` give a gradient of psi; None for no gradient.

        It is subnetwork ``chunk``, which has not seen them and is empty for chunk 0; Augerino
        takes the whole network, which has.

        Source: equation (4); Benton et al. 2020.
        """
        if not self.hyper.size:
            return None
        if self.config.method == "augerino":
            return self.layout.num_partitions
        return chunk or None

    def passes(self, chunk: int) -> int:
        """How often a client of ``chunk`` sends its images forward and backward in a round.

        Once an epoch for each of its partitions, and once for psi where it measures a gradient.
        """
        trained = self.layout.num_partitions - chunk
        return self.config.local_epochs * trained + (self.scoring(chunk) is not None)


def program_for(config: Config, data: FederatedData) -> Program:
    """``build_program`` for a data set: its classes, shape and normalisation.

    Raises:
        ConfigError: see ``build_program``.
    """
    program = build_program(config, data.num_classes, data.in_channels, data.image_shape)
    return replace(program, mean=data.mean, std=data.std)


def build_program(
    config: Config, num_classes: int, in_channels: int, image_shape: tuple[int, int] = (28, 28)
) -> Program:
    """Everything that follows from the configuration and the shape of the data.

    The initial weights, the partition of every scalar and the defaults come from the seed: they
    need no memory elsewhere and never travel.

    Args:
        config: every setting.
        num_classes: number of labels.
        in_channels: channels of the images.
        image_shape: (height, width) in pixels.
    Raises:
        ConfigError: a model that cannot be built, partitioned, or applied to such images; names of
            psi that cannot head columns; or a device that is not there.
    """
    check_device(config.device)
    with global_seed(torch_seed(config.seed, "init")):
        network = build_model(config.model, num_classes, in_channels, image_shape)
    dropout = swap_dropout(network, config.dropout)
    with users_code("model", config.model):
        own = own_hyperparameters(network)
    images = noise_images(in_channels, image_shape)
    try_out(network, config.model, num_classes, images)
    rng = numpy_rng(config.seed, "assignment")
    if config.scheme == "node":
        with global_seed(0):
            nodes = read_nodes(network, torch.zeros_like(images))
        layout = nodes.layout(network, config.chunks, rng)
    else:
        layout = Layout.build(network, config.chunks, rng)
    initial = layout.spread(dict(network.named_parameters()))
    if config.method != "partitioned":
        dropout, own = [], []
    buffers = dict(network.named_buffers())
    hyper = HyperSpec(
        build_augmentation(
            *(config.augmentation, config.width_start, config.width_transform),
            shape=(in_channels, *image_shape),
        ),
        tuple(dropout),
        tuple(float(buffers[name]) for name in dropout),
        tuple(own),
    )
    with own_code(config, "naming psi"):
        hyper.check_names()
    default = layout.defaults(initial, config.defaults == "zero")
    program = Program(network, layout, initial, default, hyper, config)
    if config.model in MODELS:
        return program
    allowed = allows_channels_last(program, hyper.initial(), images, config.model)
    return replace(program, channels_last=allowed)


@dataclass(frozen=True)
class _OneCopy:
    """Settings of a trial."""

    precision: str
    samples: int = 1
    average: str = "logits"


def allows_channels_last(program: Partitioned, psi: Tensor, inputs: Tensor, model: str) -> bool:
    """Whether a custom network may have images and kernels with channels last in memory.

    Convolutions are faster so. A network that depends on the order of its inputs in memory, as
    ``x.view(n, -1)`` after a convolution does, raises or computes something else then. One trial
    tells: forward and backward in training mode, on two inputs.

    Args:
        program: the network at its start.
        psi: [H], at its start.
        inputs: such as images of noise, [2, ...].
        model: what the user calls the network.
    Returns:
        true where nothing raises and, in float32, predictions and gradients agree with those of
        contiguous memory to 1e-3 of their norm.
    Raises:
        ConfigError: the network fails in the precision of the run, whatever the memory format.
    """

    def trial(precision: str, channels_last: bool) -> tuple[Tensor, Tensor]:
        """Predicted log-probabilities and gradient in weights and psi."""
        alone = Partitioned(
            network=program.network,
            layout=program.layout,
            initial=program.initial,
            default=program.default,
            hyper=program.hyper,
            config=_OneCopy(precision),
            channels_last=channels_last,
        )
        rng = torch.Generator(inputs.device).manual_seed(0)
        # Clones, since some models write to their weights.
        hyper = psi.clone().requires_grad_()
        leaves = alone.leaves(program.initial.clone())
        sought = [hyper, *(leaf.requires_grad_() for leaf in leaves.values())]
        labels = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        with global_seed(0, inputs.device.type):
            likelihood, predicted = log_likelihood(
                alone, alone.layout.merge(leaves), hyper, inputs, labels, rng
            )
            gradients = torch.autograd.grad(likelihood.sum(), sought, materialize_grads=True)
        return predicted.detach(), torch.cat([g.flatten().float() for g in gradients])

    precision = program.config.precision
    try:
        trial(precision, channels_last=True)
        pairs = zip(trial("fp32", True), trial("fp32", False), strict=True)
        if all((a - b).norm() <= _AGREE * b.norm() for a, b in pairs):
            return True
    except Exception:  # whatever a network raises that is written for one order
        pass
    with users_code(f"precision {precision} and model", model):
        trial(precision, channels_last=False)
    return False


def _parameters(program: Partitioned, flat: Tensor) -> dict[str, Tensor]:
    return program.layout.merge(program.layout.leaves(flat))


def full_state(program: Partitioned, theta: Tensor, hyper: Tensor) -> dict[str, object]:
    """What ``model.pt`` holds: the full network's plain state dict, and psi.

    Args:
        program: what ``theta`` belongs to.
        theta: [P].
        hyper: [H].
    Returns:
        ``{"model": state dict, "hyper": [H]}``, loadable with ``weights_only=True``.
    """
    state = {name: b.clone() for name, b in program.network.state_dict().items()}
    held = {n: v.clone() for n, v in program.hyper.split(hyper)[1].items() if n in state}
    whole = state | held | _parameters(program, theta)
    # Layers that share a parameter have it under each of their names.
    first: dict[int, str] = {}
    for name, parameter in program.network.named_parameters(remove_duplicate=False):
        whole[name] = whole[first.setdefault(id(parameter), name)]
    return {"model": whole, "hyper": hyper.clone()}


def log_likelihood(
    program: Partitioned,
    parameters: Mapping[str, Tensor],
    hyper: Tensor,
    images: Tensor,
    labels: Tensor,
    rng: Source,
    training: bool = True,
) -> tuple[Tensor, Tensor]:
    """Likelihood log p(y | x; w, psi), averaged over S augmented copies of each image.

    Args:
        program: network, augmentation, number of copies S, kind of average.
        parameters: the network's, by name.
        hyper: psi, [H]; gradient reaches it where it asks for one.
        images: [n, c, h, w] in [0, 1].
        labels: [n] int64.
        rng: noise of augmentation and dropout; ``Streams`` inside ``torch.func.vmap``.
        training: dropout on (relaxed masks) or off.
    Returns:
        log-likelihoods [n], and predicted log-probabilities [n, num_classes].
    Source: Section 5 ("averaging over multiple augmentation samples during training and
        inference"); mean of logits, or log of mean softmax with ``average = "probs"``.
    """
    affine, held = program.hyper.split(hyper)
    samples = program.config.samples
    copies = images.repeat_interleave(samples, 0) if samples > 1 else images
    if program.hyper.augmentation is not None:
        size = (len(copies), program.hyper.augmentation.noise_size)
        eps = uniform(rng, size, -1, 1).to(images.device, affine.dtype)
        copies = program.hyper.augmentation.apply(copies, affine, eps)
    program.network.train(training)
    alone = isinstance(rng, torch.Generator)
    half: AbstractContextManager[object] = nullcontext()
    # Only the network: the warp and everything after the logits stay float32.
    if program.config.precision == "bf16":
        half = torch.autocast(images.device.type, torch.bfloat16) if alone else BatchedHalf()
    if alone and program.channels_last:
        # Convolutions of several clients are grouped, and choose their layout themselves.
        copies = _channels_last(copies)
        parameters = {name: _channels_last(p) for name, p in parameters.items()}
    elif alone:
        copies = copies.contiguous()
    with noise(program.network, rng), half:
        logits = functional_call(program.network, {**parameters, **held}, copies)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logits = logits.view(len(images), samples, -1)
    if program.config.average == "logits":
        predicted = F.log_softmax(logits.mean(1), -1)
    else:
        predicted = F.log_softmax(logits, -1).logsumexp(1) - math.log(samples)
    return predicted.gather(1, labels.unsqueeze(1)).squeeze(1), predicted


def _channels_last(tensor: Tensor) -> Tensor:
    if tensor.dim() != 4:
        return tensor
    if tensor.shape[1] == 1:
        # One channel has two spellings of the same layout; convolutions choose kernels by it.
        n, c, h, w = tensor.shape
        return tensor.contiguous().as_strided((n, c, h, w), (h * w, 1, w, 1))
    return tensor.contiguous(memory_format=torch.channels_last)
