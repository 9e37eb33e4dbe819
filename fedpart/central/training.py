"""Partitioned training in one place: an update of one partition, then one of psi, and so on."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedpart.augment import Augmentation
from fedpart.central.chunks import Chunks, draw_hyper_batch, draw_updates
from fedpart.central.hyper import DeclaredPsi
from fedpart.central.networks import only, separate
from fedpart.central.optimisers import (
    Adam,
    build_optimiser,
    decay_factor,
    decay_of,
    learning_rate,
)
from fedpart.central.settings import Settings
from fedpart.central.state import TrainingState
from fedpart.errors import ConfigError, DivergedError, OutputError
from fedpart.gradients import psi_gradient, reward_gradient, weight_gradient
from fedpart.layout import Layout, insert, subnetwork
from fedpart.likelihood import Partitioned, allows_channels_last, full_state
from fedpart.models import check_module, swap_dropout, try_out
from fedpart.psi import runaway
from fedpart.runtime import check_device
from fedpart.spelling import kebab
from fedpart.streams import numpy_rng, torch_rng, torch_seed
from fedpart.tensors import read_checkpoint, write_checkpoint


class Training:
    """Learns weights and hyperparameters of a PyTorch model in one run, without a validation set.

    Weights of partition ``j`` see the chunks ``<= j`` only, through the subnetwork that ends with
    it; psi sees each chunk ``c >= 1`` through subnetwork ``c``, which has never seen that chunk.
    Every batch and all noise follow from the seed and the number of the iteration.

    Attributes:
        settings: what it goes by.
        program: the partitioned network, a copy of the model that was given.
        chunks: the data.
        num_classes: outputs of the model.
        state: values, moments, counters; whatever interrupts an iteration leaves it whole.
    Source: Appendix I, "Partitioned training".
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset[Any],
        settings: Settings | None = None,
        augmentation: Augmentation | None = None,
        hyper: Tensor | None = None,
    ) -> None:
        """Partition ``model`` and split ``dataset``.

        Args:
            model: gives logits [n, classes]; taken as it is, but for ``nn.Dropout``, whose rate
                becomes a hyperparameter. Its current values are where training starts.
            dataset: pairs (input tensor, label).
            settings: see there.
            augmentation: family of affine maps of images [c, h, w] in [0, 1], widths learned.
            hyper: psi at the start, [H], such as another training's ``state.hyper``, which
                method ``retrain`` holds fixed; else what layers and augmentation start with.
        Raises:
            ConfigError: a model that cannot be partitioned or applied to an input, or ``hyper`` of
                another length.
            DataError: a chunk without an example, or examples that ``check_examples`` refuses.
        """
        self.settings = settings = Settings() if settings is None else settings
        network = copy.deepcopy(model)
        check_module(network)
        swap_dropout(network, None)
        if settings.method == "networks":
            layout, initial = separate(network, settings.num_partitions)
        else:
            rng = numpy_rng(settings.seed, "assignment")
            layout = Layout.build(network, settings.weight_shares, rng)
            initial = layout.spread(dict(network.named_parameters()))
        self.psi = DeclaredPsi.of(network, augmentation)
        check_device(settings.device)
        network, layout = network.to(settings.device), layout.to(settings.device)
        initial = initial.to(settings.device)
        default = layout.defaults(initial, settings.defaults == "zero")
        self.chunks = Chunks(dataset, settings.chunks, settings.seed)
        first = self.take(np.arange(2) % len(self.chunks))[0]
        name = type(model).__name__
        self.num_classes = try_out(network, name, None, first)
        self.chunks.expect(self.num_classes)
        self._optimiser, self._hyper_optimiser = build_optimiser(settings), Adam(settings.adam_eps)
        parts = range(layout.num_partitions)
        total = self.chunks.seen_by(len(parts))
        decay = [
            settings.weight_decay * decay_factor(settings, self.chunks.seen_by(j + 1), total)
            for j in parts
        ]
        self._decay = [decay_of(layout, j, decay[j]) for j in parts]
        hyper = self.psi.initial() if hyper is None else hyper.detach().clone()
        hyper = hyper.to(settings.device)
        if hyper.numel() != self.psi.size:
            raise ConfigError(
                f"psi has {hyper.numel()} values, but model and augmentation have {self.psi.size}: "
                "give one for each"
            )
        program = Partitioned(network, layout, initial, default, self.psi, settings)
        allowed = allows_channels_last(program, hyper, first, name)
        self.program = replace(program, channels_last=allowed)
        theta = initial.clone()
        self.state = TrainingState(
            iteration=0,
            theta=theta,
            **self._rested(theta),
            hyper=hyper,
            hyper_moments=self._hyper_optimiser.start(hyper),
            hyper_steps=0,
        )

    def _rested(self, theta: Tensor) -> dict[str, Any]:
        """Moments and step counters of the weights as they are before the first step."""
        parts = range(self.program.layout.num_partitions)
        moments = (self._optimiser.start(self.program.layout.take(theta, j)) for j in parts)
        return {"moments": tuple(moments), "steps": (0,) * len(parts)}

    @property
    def hyper(self) -> dict[str, float]:
        """Psi in plain units."""
        return self.psi.readable(self.state.hyper.cpu())

    @property
    def learns_hyper(self) -> bool:
        """Whether there is any psi, and data that score it."""
        augerino = self.settings.method == "augerino"
        return self.psi.size > 0 and (augerino or len(self.settings.chunks) > 1)

    def run(
        self,
        iterations: int | None = None,
        callbacks: Sequence[Callable[["Training"], object]] = (),
    ) -> None:
        """Go on for so many iterations, or up to ``settings.updates``.

        Args:
            iterations: how many more.
            callbacks: called in turn after each of them; one that raises ``StopIteration`` ends
                the training there.
        Raises:
            DivergedError: the loss, a weight or psi is not finite.
        """
        left = self.settings.updates - self.state.iteration
        # Layers of the user's may draw from torch's own generator; its state is put back after.
        with torch.random.fork_rng(devices=[]):
            for _ in range(left if iterations is None else iterations):
                self.step()
                try:
                    for callback in callbacks:
                        callback(self)
                except StopIteration:
                    break
        self.check_finite()

    def step(self) -> None:
        """One iteration: an update of one partition, and one of psi where there is any.

        Raises:
            DivergedError: the loss is not finite; the state is as it was before.
        """
        state, settings = self.state, self.settings
        key = (settings.seed, "central", state.iteration)
        torch.default_generator.manual_seed(torch_seed(*key))
        draws, rng = numpy_rng(*key, 0), torch_rng(*key, 1, device=settings.device)
        finetuning = settings.finetune > 0 and state.iteration >= settings.iterations
        if finetuning and state.iteration == settings.iterations:
            state = replace(state, **self._rested(state.theta))
        for partition, batch in draw_updates(draws, self.chunks, settings, state.iteration):
            state = self.update_weights(state, partition, *self.take(batch), rng=rng)
        self.check_value("the loss", state.loss, state.iteration + 1)
        if self.learns_hyper and not finetuning:
            chunk, batch = draw_hyper_batch(
                draws, self.chunks, settings.chunks, settings.batch_size
            )
            rng = torch_rng(*key, 2, device=settings.device)
            state = self.update_hyper(state, chunk, *self.take(batch), rng=rng)
        self.state = replace(state, iteration=state.iteration + 1)

    def check_finite(self) -> None:
        """Whether weights and psi are finite, psi also in plain units, and widths in their limit.

        Raises:
            DivergedError: one is not.
        """
        if (found := runaway(self.psi, self.state.hyper.cpu())) is not None:
            raise self._diverged(*found, self.state.iteration)
        plain = torch.tensor(list(self.hyper.values()), dtype=torch.float64)
        for what, values in (("a weight", self.state.theta), ("psi", plain)):
            bad = values[~values.isfinite()]
            if len(bad):
                raise self._diverged(what, float(bad[0]), self.state.iteration)

    def check_value(self, what: str, value: float, iteration: int | None = None) -> float:
        """A number that this training has come to, where it is finite.

        Args:
            what: the number is.
            value: it.
            iteration: it is of, or that of the state.
        Raises:
            DivergedError: it is not finite.
        """
        if math.isfinite(value):
            return value
        raise self._diverged(what, value, self.state.iteration if iteration is None else iteration)

    def _diverged(self, what: str, value: float, iteration: int) -> DivergedError:
        settings = self.settings
        tuned = settings.finetune > 0 and self.state.iteration > settings.iterations
        rates = ["finetune_lr" if tuned else "lr"]
        # Weights and psi spoil each other within one iteration: either may be to blame.
        if self.learns_hyper:
            rates.append("augerino_lr" if settings.method == "augerino" else "hyper_lr")
        told = " and ".join(f"{kebab(rate)} {getattr(settings, rate):g}" for rate in rates)
        ones = "smaller ones" if len(rates) > 1 else "a smaller one"
        return DivergedError(
            f"{what} is {value} at iteration {iteration:,} with {told}: start anew with {ones}"
        )

    def take(self, positions: np.ndarray) -> tuple[Tensor, Tensor]:
        """Examples of ``chunks`` at these positions, where training computes."""
        inputs, labels = self.chunks.take(positions)
        return inputs.to(self.settings.device), labels.to(self.settings.device)

    def update_weights(
        self,
        state: TrainingState,
        partition: int,
        inputs: Tensor,
        labels: Tensor,
        rng: torch.Generator,
    ) -> TrainingState:
        """One step on one partition, all else held fixed.

        Args:
            state: before the step; not changed.
            partition: j, trained through subnetwork j + 1.
            inputs: the batch, [b, ...], of chunks ``<= j``.
            labels: [b].
            rng: noise of augmentation, dropout and masks.
        Source: equation (3); Appendix I, "Partitioned parameter update scheduling".
        """
        layout = self.program.layout
        leaves = self.program.leaves(self._weights(state, partition + 1))
        gradient, loss = weight_gradient(self.program, leaves, state.hyper, inputs, labels, rng)
        steps, moments = list(state.steps), list(state.moments)
        steps[partition] += 1
        values, moments[partition] = self._optimiser.step(
            layout.take(state.theta, partition),
            layout.take(gradient, partition),
            moments[partition],
            count=steps[partition],
            lr=learning_rate(self.settings, state.iteration),
            decay=self._decay[partition],
        )
        return replace(
            state,
            theta=insert(state.theta, layout.index(partition), values),
            moments=tuple(moments),
            steps=tuple(steps),
            loss=state.loss + loss,
            loss_steps=state.loss_steps + 1,
        )

    def update_hyper(
        self,
        state: TrainingState,
        chunk: int,
        inputs: Tensor,
        labels: Tensor,
        rng: torch.Generator,
    ) -> TrainingState:
        """One step of Adam on psi, all weights held fixed.

        Args:
            state: before the step; not changed.
            chunk: c, which subnetwork ``settings.scored_by(c)`` scores.
            inputs: the batch, [b, ...], of that chunk.
            labels: [b].
            rng: noise of augmentation, dropout and masks.
        Source: equation (4).
        """
        settings = self.settings
        leaves = self.program.leaves(self._weights(state, settings.scored_by(chunk)))
        gradient, _ = psi_gradient(self.program, leaves, state.hyper, inputs, labels, rng)
        augerino = settings.method == "augerino"
        if augerino:
            gradient -= settings.augerino_weight * reward_gradient(self.program, state.hyper)
        hyper, moments = self._hyper_optimiser.step(
            state.hyper,
            gradient,
            state.hyper_moments,
            count=state.hyper_steps + 1,
            lr=settings.augerino_lr if augerino else settings.hyper_lr,
            decay=0.0,
        )
        return replace(state, hyper=hyper, hyper_moments=moments, hyper_steps=state.hyper_steps + 1)

    def _weights(self, state: TrainingState, k: int) -> Tensor:
        ids = self.program.layout.ids
        if self.settings.method == "networks":
            return only(state.theta, ids, k)
        return subnetwork(state.theta, self.program.default, ids, k)

    def weights(self, k: int) -> Tensor:
        """Weights of subnetwork ``k``, [P]; ``k`` = C is the full network."""
        return self._weights(self.state, k)

    def take_loss(self) -> float:
        """Mean training loss since the last call, nats an example."""
        mean = self.state.loss / max(1, self.state.loss_steps)
        self.state = replace(self.state, loss=0.0, loss_steps=0)
        return mean

    def trained(self) -> dict[str, Any]:
        """The full network's plain state dict, and psi: ``{"model": ..., "hyper": [H]}``."""
        theta = self.weights(len(self.state.steps))
        whole: Any = full_state(self.program, theta, self.state.hyper)
        model = {name: value.cpu() for name, value in whole["model"].items()}
        return {"model": model, "hyper": whole["hyper"].cpu()}

    def state_dict(self) -> dict[str, Any]:
        """All that an exact resume needs, as tensors, numbers, lists and dicts."""
        return {"settings": self.settings.result_values(), "state": vars(self.state)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` has given.

        Raises:
            ConfigError: other settings, or another model.
        """
        # A setting that came with a later version was, until then, what its default is.
        before = Settings().result_values() | saved["settings"]
        for name, value in self.settings.result_values().items():
            if before.get(name, value) != value:
                raise ConfigError(
                    f"{name} was {before[name]} and is {value} now: a training goes on with the "
                    "settings it began with"
                )
        values = dict(saved["state"])
        for name in ("theta", "hyper"):
            ours = getattr(self.state, name)
            if values[name].shape != ours.shape:
                raise ConfigError(
                    f"{name} has {values[name].numel()} values, and this model {ours.numel()}: go "
                    "on with the model that the training began with"
                )
        self.state = TrainingState(**values)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, whole or not at all.

        Raises:
            OutputError: the place cannot be written.
        """
        write_checkpoint(Path(path), self.state_dict())

    def resume(self, path: str | Path) -> None:
        """Go on from a checkpoint, bit for bit as if there had been no break.

        Raises:
            OutputError: no such file, a damaged one, or one of another program.
            ConfigError: other settings, or another model.
        """
        saved = read_checkpoint(Path(path))
        if "settings" not in saved:
            raise OutputError(f"checkpoint {path} is not one of fedpart.central")
        self.load_state_dict(saved)
