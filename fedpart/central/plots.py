"""Pictures of central runs: one run over its iterations, masks over time, L_ML by K."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpart.central.finished import Finished
from fedpart.central.records import CentralEvaluation, CentralSummary
from fedpart.plots_curves import COLOURS, STYLES, new_figure, save_figure
from fedpart.seeds import mean_and_error

_ML, _ACCURACY, _LIKELIHOOD = COLOURS[0], COLOURS[2], COLOURS[1]
# More hyperparameters than this are shown as an image.
_LINES = 8


def draw_run(evaluations: Sequence[CentralEvaluation], out: Path) -> None:
    """Draw one run: likelihoods and accuracy by iteration, and psi where there is any.

    Raises:
        ConfigError: no matplotlib.
        OutputError: the picture cannot be written.
    """
    names = list(evaluations[-1].hyper_readable)
    figure, grid = new_figure(3 if names else 2, 1)
    x = [e.iteration for e in evaluations]
    left, middle = grid[0][:2]
    if evaluations[-1].l_ml is not None:
        ml = [math.nan if e.l_ml is None else e.l_ml for e in evaluations]
        left.plot(x, ml, color=_ML, label="L_ML, an example")
    for split, style in (("train", "-"), ("test", "--")):
        likelihood = [getattr(e, f"{split}_log_likelihood") for e in evaluations]
        accuracy = [100 * getattr(e, f"{split}_accuracy") for e in evaluations]
        left.plot(x, likelihood, color=_LIKELIHOOD, linestyle=style, label=split)
        middle.plot(x, accuracy, color=_ACCURACY, linestyle=style, label=split)
    left.set_ylabel("log-likelihood [nats]")
    middle.set_ylabel("accuracy [%]")
    for axis in (left, middle):
        axis.set_xlabel("iteration")
        axis.legend(frameon=False, fontsize=8)
    if len(names) > _LINES:
        _image(figure, grid[0][2], evaluations, "open")
    elif names:
        styles = list(STYLES.values())
        for i, name in enumerate(names):
            values = [e.hyper_readable[name] for e in evaluations]
            look = {"color": COLOURS[i % len(COLOURS)], "linestyle": styles[i // len(COLOURS)]}
            grid[0][2].plot(x, values, label=name.replace("_", " "), **look)
        grid[0][2].set_xlabel("iteration")
        grid[0][2].legend(frameon=False, fontsize=7)
    save_figure(figure, out)


def draw_masks(runs: Sequence[Finished], out: Path) -> None:
    """Draw learned masks over time, one panel a run.

    Args:
        runs: of mask-learning.
        out: picture to write.
    Source: Figure 2b of the paper.
    """
    figure, grid = new_figure(len(runs), 1)
    for axis, run in zip(grid[0], runs, strict=True):
        _image(figure, axis, run.evaluations(), f"seed {run.summary.seed}")
    save_figure(figure, out)


def _image(figure: Any, axis: Any, evaluations: Sequence[CentralEvaluation], title: str) -> None:
    names = list(evaluations[-1].hyper_readable)
    values = [[e.hyper_readable[name] for e in evaluations] for name in names]
    last = evaluations[-1].iteration
    shown = axis.imshow(
        values,
        aspect="auto",
        vmin=0,
        vmax=1,
        cmap="cividis",
        origin="lower",
        extent=(0, last, 0.5, len(names) + 0.5),
        interpolation="nearest",
    )
    axis.grid(visible=False)
    axis.set_xlabel("iteration")
    axis.set_ylabel("input")
    axis.set_title(title, fontsize=9, loc="left")
    figure.colorbar(shown, ax=axis, label="probability that it is open")


def draw_inputs(runs: Sequence[Finished], out: Path) -> None:
    """Draw L_ML, accuracy and likelihood by the number of inputs that stay.

    Mean over seeds, with a band of its standard error.

    Args:
        runs: of input-selection, any number of seeds for each K.
        out: picture to write.
    Source: Figure 2a of the paper, left.
    """
    by_inputs: dict[int, list[CentralSummary]] = {}
    for summary in (run.summary for run in runs):
        by_inputs.setdefault(summary.inputs or 0, []).append(summary)
    kept = sorted(by_inputs)
    figure, grid = new_figure(3, 1)
    laplace = runs[0].summary.method == "laplace"
    objective = "Laplace's marginal likelihood" if laplace else "L_ML"
    panels = (
        (f"{objective} [nats an example]", _ML, (("l_ml", "-", ""),), 1.0),
        *(
            (label, colour, (("train_" + name, "-", "train"), ("test_" + name, "--", "test")), unit)
            for label, colour, name, unit in (
                ("accuracy [%]", _ACCURACY, "accuracy", 100.0),
                ("log-likelihood [nats]", _LIKELIHOOD, "log_likelihood", 1.0),
            )
        ),
    )
    for axis, (label, colour, lines, unit) in zip(grid[0], panels, strict=True):
        for name, style, word in lines:
            pairs = [mean_and_error([unit * getattr(s, name) for s in by_inputs[k]]) for k in kept]
            mean = [pair[0] for pair in pairs]
            error = [pair[1] or 0.0 for pair in pairs]
            axis.plot(kept, mean, color=colour, linestyle=style, label=word)
            low = [m - e for m, e in zip(mean, error, strict=True)]
            high = [m + e for m, e in zip(mean, error, strict=True)]
            axis.fill_between(kept, low, high, color=colour, alpha=0.2, linewidth=0)
            if name == "l_ml":
                best = max(zip(mean, kept, strict=True))[1]
                axis.axvline(best, color="0.3", linewidth=0.8, linestyle=":")
                axis.set_title(f"highest at K = {best}", fontsize=9, loc="right")
        axis.set_xlabel("inputs that stay, K")
        axis.set_ylabel(label)
        if len(lines) > 1:
            axis.legend(frameon=False, fontsize=8)
    save_figure(figure, out)
