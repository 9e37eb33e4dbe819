"""The likelihood of a partitioned network: log p(y | x; w, psi), averaged over augmented copies."""

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedpart.layout import Layout
from fedpart.models import BatchedHalf, Source, noise, uniform
from fedpart.plugins import users_code
from fedpart.psi import Psi
from fedpart.streams import global_seed

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
        alone = replace(program, config=_OneCopy(precision), channels_last=channels_last)
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
        if precision != "fp32":
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
