"""A run in words and numbers: lines, rows and tables that every kind of output shares."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedpart.config import Config
from fedpart.errors import DROPPED
from fedpart.records import RoundBrief, RoundRecord, Summary

Rows = Sequence[tuple[str, str]]
# Failures of one round that are shown; all are in rounds.jsonl.
SHOWN_FAILURES = 3
# Of what is learned besides rotation and drop rates, after each evaluation and at the end.
SHOWN_OTHERS = 2
SHOWN_LEARNED = 8
# Names of hyperparameters, and how some begin.
ROTATION, DROPOUT = "rotation_degrees", "dropout_"


class UploadShare:
    """Upload so far as a share of what FedAvg would have sent with the same replies."""

    def __init__(self, behind: Iterable[RoundBrief] = ()) -> None:
        """Count what is behind."""
        self._fedavg = 0.0
        for record in behind:
            self.add(record)

    def add(self, record: RoundRecord | RoundBrief) -> float:
        """Count one more round; returns the share after it, 0 before the first reply."""
        if record.upload_fraction:
            self._fedavg += record.upload_model_bytes / record.upload_fraction
        return record.cumulative_upload_model_bytes / self._fedavg if self._fedavg else 0.0


def failure_lines(record: RoundRecord) -> list[str]:
    """Who failed in a round and why, the first few; and whether anybody did not."""
    start = f"round {record.round}: "
    # Those that drop out by chance were asked for.
    failures = [f for f in record.failures if f.reason != DROPPED]
    lines = [f"{start}client {f.client_id}: {f.reason}" for f in failures[:SHOWN_FAILURES]]
    if more := len(failures) - len(lines):
        lines.append(f"{start}{more:,} more failed, see rounds.jsonl")
    if record.empty:
        few = sum(client.status == "unused" for client in record.clients)
        why = f"replies: {few}, fewer than min-replies" if few else "no reply counted"
        lines.append(f"{start}empty, {why}; weights and hyperparameters are unchanged")
    return lines


def describe(record: RoundRecord, share: float) -> list[str]:
    """Rotation, or what else is learned first; dropout and upload after a round, in words."""
    parts = []
    if ROTATION in record.hyper_readable:
        parts.append(f"rotation ±{record.hyper_readable[ROTATION]:.1f}°")
    else:
        parts += others(record.hyper_readable)[:SHOWN_OTHERS]
    if (dropout := mean_dropout(record.hyper_readable)) is not None:
        parts.append(f"dropout {dropout:.3f}")
    upload = record.cumulative_upload_model_bytes / 1e6
    parts.append(f"up {upload:,.0f} MB ({100 * share:.0f} %)")
    return parts


def others(readable: dict[str, float]) -> list[str]:
    """What is learned besides rotation and drop rates: names and values."""
    rest = [name for name in readable if name != ROTATION and not name.startswith(DROPOUT)]
    return [f"{name} {readable[name]:.3g}" for name in rest]


def mean_dropout(readable: dict[str, float]) -> float | None:
    """Mean of the learned drop rates, or None where none is learned."""
    rates = [value for name, value in readable.items() if name.startswith(DROPOUT)]
    return sum(rates) / len(rates) if rates else None


def summary_rows(summary: Summary, out: Path) -> list[tuple[str, str]]:
    """The table at the end of a run."""
    share = 100 * summary.upload_fraction
    n = summary.final_accuracy_n
    evaluations = f"mean of {n} evaluations" if n > 1 else "one evaluation"
    rows = [
        ("run", f"{summary.method} on {summary.dataset}, seed {summary.seed}"),
        ("final accuracy", f"{100 * summary.final_accuracy:.2f} % ({evaluations})"),
    ]
    if summary.test_accuracy is not None:
        rows.append(("test accuracy", f"{100 * summary.test_accuracy:.2f} %"))
    upload = f"{summary.upload_model_bytes / 1e6:,.1f} MB ({share:.1f} % of FedAvg's)"
    rows.append(("upload", upload))
    rows.append(("download", f"{summary.download_model_bytes / 1e6:,.1f} MB"))
    if ROTATION in summary.hyper_readable:
        rows.append(("rotation", f"up to ±{summary.hyper_readable[ROTATION]:.1f}°"))
    if (dropout := mean_dropout(summary.hyper_readable)) is not None:
        rows.append(("dropout", f"{dropout:.3f} (mean of the layers)"))
    if rest := others(summary.hyper_readable):
        more = f" and {len(rest) - SHOWN_LEARNED:,} more" if len(rest) > SHOWN_LEARNED else ""
        rows.append(("learned", ", ".join(rest[:SHOWN_LEARNED]) + more))
    if summary.failures:
        empty = f", {summary.empty_rounds:,} rounds were empty" if summary.empty_rounds else ""
        rows.append(("failed replies", f"{summary.failures:,}{empty}"))
    seconds = f"{summary.seconds:,.0f} s ({summary.seconds_per_round:.2f} s a round)"
    rows += [
        ("time", seconds),
        ("memory", f"{summary.peak_rss_bytes / 1e6:,.0f} MB at most"),
        ("picture", str(out / "curves.png")),
        ("run folder", str(out)),
    ]
    return rows


def skip_line(summary: Summary) -> str:
    """What is said of a seed that was complete before."""
    accuracy = f"final accuracy {100 * summary.final_accuracy:.2f} %"
    return f"seed {summary.seed} is finished, {accuracy}"


def table(rows: Rows) -> str:
    """Two aligned columns, a line each, without a final newline."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def duration(seconds: float) -> str:
    """``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def headline(config: Config) -> str:
    """What is about to run, in one line."""
    return (
        f"{config.method} on {config.dataset}: {config.train_size:,} images over "
        f"{config.clients:,} clients, {config.clients_per_round:,} a round, "
        f"{config.rounds:,} rounds, seed {config.seed}"
    )
