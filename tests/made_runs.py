"""Run folders as a run leaves them, with numbers chosen by hand."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedpart.config import Config

MB = 1_000_000
HASH = "a" * 64


def make_run(
    folder: Path,
    *,
    accuracies: Sequence[float] = (0.4, 0.8),
    every: int = 2,
    chunk_mb: Sequence[int] = (4, 1),
    hyper: bool = True,
    data_hash: str = HASH,
    images: int = 10_000,
    done: int | None = None,
    **settings: object,
) -> Path:
    """Write a run of two clients a round.

    Args:
        folder: where to.
        accuracies: of each evaluation.
        every: rounds between evaluations.
        chunk_mb: megabytes that the client of each chunk uploads a round; FedAvg's would be 10.
        hyper: whether psi is learned: rotation grows by 9 degrees a round.
        data_hash: of images and split.
        images: validation images of every evaluation.
        done: rounds on disk of a run that was interrupted; by default it is finished.
        settings: as ``Config`` takes them.
    """
    folder.mkdir(parents=True)
    rounds = every * len(accuracies)
    config = Config(**({"rounds": rounds, "eval_every": every} | settings))
    last = rounds if done is None else done
    share = sum(chunk_mb) / 10
    (folder / "config.toml").write_text(config.to_toml())
    (folder / "run.json").write_text(json.dumps({"data_hash": data_hash}))
    psi = [
        {"rotation_degrees": 9.0 * i, "dropout_1": 0.1} if hyper else {} for i in range(last + 1)
    ]
    lines = [
        {
            "round": i,
            "clients": [
                {"chunk": chunk, "upload_model_bytes": size * MB}
                for chunk, size in enumerate(chunk_mb)
            ],
            "upload_model_bytes": sum(chunk_mb) * MB,
            "upload_fraction": share,
            "cumulative_upload_model_bytes": sum(chunk_mb) * MB * i,
            "cumulative_download_model_bytes": 10 * MB * i,
            "hyper_readable": psi[i],
        }
        for i in range(1, last + 1)
    ]
    write_lines(folder / "rounds.jsonl", lines)
    evaluations = [
        {"round": every * i, "num_images": images, "val_accuracy": accuracy}
        for i, accuracy in enumerate(accuracies, 1)
        if every * i <= last
    ]
    write_lines(folder / "evaluations.jsonl", evaluations)
    if done is None:
        final = [e["val_accuracy"] for e in evaluations[-10:]]
        summary = {
            "kind": "federated",
            **{n: getattr(config, n) for n in ("method", "dataset", "train_size", "skew", "alpha")},
            "seed": config.seed,
            "data_hash": data_hash,
            "rounds": config.rounds,
            "final_accuracy": sum(final) / len(final),
            "final_accuracy_n": len(final),
            "upload_fraction": share,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_lines(path: Path, lines: Sequence[dict[str, object]]) -> None:
    """JSON, an object a line."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_summary(folder: Path, **values: object) -> None:
    """Set fields of ``summary.json``."""
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
