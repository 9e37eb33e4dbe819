"""What a client and the server derive from the configuration alone."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpart.augment import build_augmentation
from fedpart.config import Config
from fedpart.data import FederatedData, order_warnings, to_float
from fedpart.errors import ConfigError
from fedpart.layout import Layout
from fedpart.likelihood import Partitioned, allows_channels_last
from fedpart.models import (
    MODELS,
    build_model,
    dropout_rates,
    noise_images,
    own_hyperparameters,
    swap_dropout,
    try_out,
)
from fedpart.nodes import read_nodes
from fedpart.plugins import own_code, users_code
from fedpart.psi import HyperSpec
from fedpart.runtime import check_device
from fedpart.streams import global_seed, numpy_rng, torch_seed


@dataclass(frozen=True, eq=False)
class Program(Partitioned):
    """One client program and one server program have this in common.

    Attributes:
        hyper: augmentation, dropout logits, and what other layers declare.
        config: every setting.
        mean: of each channel, taken off images in [0, 1]; empty for nothing.
        std: of each channel, divided by; empty for nothing.
        hyper_names: of the plain numbers that psi is told in.
        warnings: what the user should know of the model, one sentence each.
    """

    hyper: HyperSpec
    config: Config
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    hyper_names: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_float(self, images: np.ndarray | Tensor) -> Tensor:
        """Images as the network wants them, [n, c, h, w] float32 from uint8, on the device."""
        return to_float(images, self.mean, self.std).to(self.config.device)

    def readable(self, hyper: Tensor) -> dict[str, float]:
        """Psi [H] in plain units, see ``HyperSpec.readable``.

        Raises:
            ConfigError: a network or augmentation of the user's own raised.
        """
        with own_code(self.config.model, self.config.augmentation, "telling psi"):
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
    try:
        program = build_program(config, data.num_classes, data.in_channels, data.image_shape)
    except ConfigError as error:
        # A model that cannot be applied to such images may be right, and their order wrong.
        told = [str(error), *order_warnings(data.images.shape)]
        raise ConfigError("; ".join(told)) from error
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
    rates = dropout_rates(network)
    dropout = swap_dropout(network, config.dropout)
    with users_code("model", config.model):
        own = own_hyperparameters(network)
    images = noise_images(in_channels, image_shape)
    try_out(network, config.model, num_classes, images)
    if config.model not in MODELS and config.samples == 1:
        # A client's last batch may hold one image, as no copies are made of it.
        try_out(network, config.model, num_classes, images[:1])
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
    with own_code(config.model, config.augmentation, "naming psi"):
        names = hyper.names()
    default = layout.defaults(initial, config.defaults == "zero")
    program = Program(network, layout, initial, default, hyper, config, hyper_names=names)
    if config.model in MODELS:
        return program
    warnings = []
    if set(rates) - {config.dropout}:
        warnings.append(
            f"dropout {config.dropout:g} takes the place of the rates that nn.Dropout layers of "
            f"model {config.model!r} have ({', '.join(f'{rate:g}' for rate in rates)}); set "
            "dropout to the one that you want"
        )
    allowed = allows_channels_last(program, hyper.initial(), images, config.model)
    return replace(program, channels_last=allowed, warnings=tuple(warnings))
