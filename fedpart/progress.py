"""What a user sees of a run: a live line in a terminal, plain lines elsewhere."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from fedpart.config import Config
from fedpart.records import EvaluationRecord, RoundBrief, RoundRecord, Summary
from fedpart.wording import (
    UploadShare,
    describe,
    duration,
    failure_lines,
    headline,
    skip_line,
    summary_rows,
    table,
)


class Progress(Protocol):
    """Shows one run after the other."""

    def begin(self, config: Config) -> None:
        """Before anything slow happens."""
        ...

    def data(self, source: str, behind: Sequence[RoundBrief]) -> None:
        """Data and model are ready; some rounds are ``behind`` where a run is resumed."""
        ...

    def warn(self, text: str) -> None:
        """Something that the user should know, and that stops nothing."""
        ...

    def backend(self, text: str) -> None:
        """Clients are about to run there."""
        ...

    def round(self, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        """A round has ended; evaluations of it, or of rounds before it, may have come in."""
        ...

    def end(self, summary: Summary, out: Path) -> None:
        """A run is complete."""
        ...

    def skip(self, summary: Summary) -> None:
        """A run was complete before this process began."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was, whatever happened."""
        ...


class PlainProgress:
    """A line at the start and one for each evaluation, written at once."""

    def __init__(self) -> None:
        """Nothing has begun."""
        self._rounds = 0
        self._done = 0
        self._started = 0.0
        self._share = UploadShare()
        # Since the last evaluation that has come in: round -> how things stood.
        self._states: dict[int, list[str]] = {}

    def begin(self, config: Config) -> None:
        """See ``Progress``."""
        self._rounds = config.rounds
        _say(headline(config))

    def data(self, source: str, behind: Sequence[RoundBrief]) -> None:
        """See ``Progress``."""
        self._share = UploadShare(behind)
        self._done, self._started = len(behind), time.monotonic()
        _say(f"data: {source}")
        if behind:
            _say(f"resuming after round {len(behind):,}")

    def warn(self, text: str) -> None:
        """See ``Progress``."""
        _say(f"warning: {text}")

    def backend(self, text: str) -> None:
        """See ``Progress``."""
        _say(f"back end: {text}")

    def round(self, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        """See ``Progress``."""
        for line in failure_lines(record):
            _say(line)
        self._states[record.round] = describe(record, self._share.add(record))
        left = f"{duration(self._left(record.round))} left"
        for evaluation in evaluations:
            # Of a round before this process began, the state is not known.
            state = self._states.get(evaluation.round, [])
            accuracy = f"accuracy {100 * evaluation.val_accuracy:.2f} %"
            words = [f"round {evaluation.round}/{self._rounds}", accuracy, *_diverged(evaluation)]
            words += [*state, left]
            _say(", ".join(words))
            self._states = {r: s for r, s in self._states.items() if r > evaluation.round}

    def _left(self, done: int) -> float:
        elapsed = time.monotonic() - self._started
        return elapsed / max(1, done - self._done) * (self._rounds - done)

    def end(self, summary: Summary, out: Path) -> None:
        """See ``Progress``."""
        _say("\n" + table(summary_rows(summary, out)))

    def skip(self, summary: Summary) -> None:
        """See ``Progress``."""
        _say(skip_line(summary))

    def close(self) -> None:
        """See ``Progress``."""


class LiveProgress:
    """One line that is redrawn, with a bar and the time that is left."""

    def __init__(self) -> None:
        """Take over the terminal only when a run begins."""
        from rich.console import Console

        self._console = Console(highlight=False)
        self._bar: Any = None
        self._task: Any = None
        self._share = UploadShare()
        self._accuracy = ""

    def begin(self, config: Config) -> None:
        """See ``Progress``."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining
        from rich.table import Column

        self._console.print(headline(config), style="bold", soft_wrap=True)
        self._accuracy = ""
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None, table_column=Column(min_width=4, max_width=24, ratio=1)),
            Remaining(),
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            console=self._console,
            expand=True,
            refresh_per_second=2,
            # The estimate stays sane over evaluations, which take longer than a round.
            speed_estimate_period=300,
        )
        self._task = self._bar.add_task("reading data", total=config.rounds)
        self._bar.start()

    def data(self, source: str, behind: Sequence[RoundBrief]) -> None:
        """See ``Progress``."""
        self._console.print(f"data: {source}", soft_wrap=True, markup=False)
        if behind:
            self._console.print(f"resuming after round {len(behind):,}")
        self._share = UploadShare(behind)
        self._bar.reset(self._task, completed=len(behind), description="")

    def warn(self, text: str) -> None:
        """See ``Progress``."""
        self._console.print(f"warning: {text}", style="yellow", soft_wrap=True, markup=False)

    def backend(self, text: str) -> None:
        """See ``Progress``."""
        self._console.print(f"back end: {text}", soft_wrap=True, markup=False)
        self._bar.update(self._task, description="starting")

    def round(self, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        """See ``Progress``."""
        for line in failure_lines(record):
            self._console.print(line, style="red", soft_wrap=True, markup=False)
        for evaluation in evaluations:
            accuracy = f"acc {100 * evaluation.val_accuracy:.1f} %"
            self._accuracy = " · ".join([accuracy, *_diverged(evaluation)])
        state = describe(record, self._share.add(record))
        words = " · ".join([*([self._accuracy] if self._accuracy else []), *state])
        self._bar.update(self._task, completed=record.round, description=words)

    def end(self, summary: Summary, out: Path) -> None:
        """See ``Progress``."""
        from rich.box import ROUNDED
        from rich.table import Table

        self.close()
        shown = Table(box=ROUNDED, show_header=False)
        shown.add_column(style="bold")
        shown.add_column(overflow="fold")
        for name, value in summary_rows(summary, out):
            shown.add_row(name, value.replace("[", "\\["))
        self._console.print(shown)

    def skip(self, summary: Summary) -> None:
        """See ``Progress``."""
        self._console.print(skip_line(summary), soft_wrap=True)

    def close(self) -> None:
        """See ``Progress``."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class JsonProgress:
    """Nothing but the summaries, as JSON; what went wrong goes to the error output."""

    def begin(self, config: Config) -> None:
        """See ``Progress``."""

    def data(self, source: str, behind: Sequence[RoundBrief]) -> None:
        """See ``Progress``."""

    def warn(self, text: str) -> None:
        """See ``Progress``."""
        sys.stderr.write(f"warning: {text}\n")

    def backend(self, text: str) -> None:
        """See ``Progress``."""

    def round(self, record: RoundRecord, evaluations: Sequence[EvaluationRecord]) -> None:
        """See ``Progress``."""
        for line in failure_lines(record):
            sys.stderr.write(line + "\n")

    def end(self, summary: Summary, out: Path) -> None:
        """One JSON object a line, in the order of the seeds."""
        self.skip(summary)

    def skip(self, summary: Summary) -> None:
        """As if it had just ended: the output stands for all seeds."""
        _say(json.dumps(summary.model_dump(mode="json")))

    def close(self) -> None:
        """See ``Progress``."""


def make_progress(as_json: bool) -> Progress:
    """What fits the output: JSON where asked for, a live line in a terminal, else plain lines."""
    if as_json:
        return JsonProgress()
    return LiveProgress() if sys.stdout.isatty() else PlainProgress()


def _diverged(evaluation: EvaluationRecord) -> list[str]:
    return ["loss not finite"] if evaluation.val_loss is None else []


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
