"""Cost of partitioned training in one place, beside the paper's table of relative times."""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedpart.augment import Symmetric
from fedpart.central import Training, make_settings
from fedpart.models import FixupResNet, MnistCNN
from fedpart.runtime import prepare_process
from tests.benchmarks.workloads import spread

Record = dict[str, object]
# Relative to a standard update of all parameters, RTX 3080, S = 20; assignment of partitions.
# Source: the paper's table of relative run times, and Appendix I, "Partitioned training".
PAPER = {
    "mnist-cnn": {"weights / plain": 1.08, "psi / plain": 1.08},
    "fixup-resnet8": {"weights / plain": 1.17, "psi / plain": 1.08},
    "fixup-resnet14": {"weights / plain": 1.21, "psi / plain": 1.09},
    "assignment / weights in memory": 0.25,
}
SHARES = (0.8, 0.1, 0.1)
# Name, model, shape of an image, images a batch, copies of each (S).
MODELS: list[tuple[str, Callable[[], nn.Module], tuple[int, int, int], int, int]] = [
    ("mnist-cnn", MnistCNN, (1, 28, 28), 200, 20),
    # Copies of an image are fewer, for time; a batch of 250 is the paper's.
    ("fixup-resnet8", lambda: FixupResNet(8, 10, 3), (3, 32, 32), 250, 4),
    ("fixup-resnet14", lambda: FixupResNet(14, 10, 3), (3, 32, 32), 250, 4),
]


def cost(quick: bool) -> Record:
    """An update of weights and one of psi against a plain one, and what partitions take in memory.

    Seconds of processor time of one thread, medians of updates in turn, each of the same batch of S
    augmented copies. ``plain`` is what one writes in PyTorch: all weights of the stock model, the
    whole batch at once, ``loss.backward()``, ``torch.optim.Adam``. ``one partition`` is this
    program's own update with a single partition, which shows what partitions cost by themselves.
    """
    prepare_process()
    rounds = 2 if quick else 7
    return {
        name: {
            **_times(build(), shape, batch, 2 if quick else samples, rounds),
            "batch": batch,
            "samples": 2 if quick else samples,
            "memory": _memory(build(), shape),
            "paper": PAPER[name]
            | {"assignment / weights": PAPER["assignment / weights in memory"]},
        }
        for name, build, shape, batch, samples in MODELS
    }


def _examples(shape: tuple[int, int, int], batch: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.rand(batch, *shape, generator=rng), torch.randint(0, 10, (batch,), generator=rng)


def _training(
    model: nn.Module, data: tuple[Tensor, Tensor], samples: int, shares: tuple[float, ...]
) -> Training:
    settings = make_settings(chunks=shares, samples=samples)
    return Training(model, TensorDataset(*data), settings, augmentation=Symmetric(0.1, "raw"))


def _times(
    model: nn.Module, shape: tuple[int, int, int], batch: int, samples: int, rounds: int
) -> Record:
    data = _examples(shape, batch)
    run, whole = (_training(model, data, samples, shares) for shares in (SHARES, (1.0,)))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    family, widths = Symmetric(0.1, "raw"), run.state.hyper[:6]
    rng = torch.Generator().manual_seed(1)

    def plain(_: int) -> None:
        copies = data[0].repeat_interleave(samples, 0)
        eps = torch.empty(len(copies), family.noise_size).uniform_(-1, 1, generator=rng)
        logits = model(family.apply(copies, widths, eps))
        loss = F.cross_entropy(logits.view(batch, samples, -1).mean(1), data[1])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    def weights(i: int) -> None:
        run.state = run.update_weights(run.state, i % 3, *data, rng=rng)

    def one(_: int) -> None:
        whole.state = whole.update_weights(whole.state, 0, *data, rng=rng)

    def psi(i: int) -> None:
        run.state = run.update_hyper(run.state, 1 + i % 2, *data, rng=rng)

    contestants = {"plain": plain, "one partition": one, "weights": weights, "psi": psi}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(rounds + 1):
        for name, update in contestants.items():
            start = time.process_time()
            update(i)
            if i:  # the first warms up
                seconds[name].append(time.process_time() - start)
    found = {name: spread(values) for name, values in seconds.items()}
    median = {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}
    return found | {
        "weights / plain": median["weights"] / median["plain"],
        "psi / plain": median["psi"] / median["plain"],
        "weights / one partition": median["weights"] / median["one partition"],
        "psi / one partition": median["psi"] / median["one partition"],
    }


def _memory(model: nn.Module, shape: tuple[int, int, int]) -> Record:
    program = _training(model, _examples(shape, 20), 1, SHARES).program
    weights = 4 * program.layout.num_parameters
    held = program.default.numel() * program.default.element_size()
    start = time.process_time()
    _training(model, _examples(shape, 20), 1, SHARES)
    return {
        "weights, bytes": weights,
        "assignment, bytes": program.layout.ids.numel() * program.layout.ids.element_size(),
        "assignment / weights": program.layout.ids.element_size() / 4,
        "defaults as held (init or zero), bytes": held,
        "defaults / weights": held / weights,
        "from the seed instead: seconds to make assignment and defaults": time.process_time()
        - start,
    }
