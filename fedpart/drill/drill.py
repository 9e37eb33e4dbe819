"""``sim.py drill``: faults on this machine, one after the other, and a table of what became."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpart.drill import processes, replies
from fedpart.drill.case import CASES, Case, Impossible
from fedpart.drill.runs import Place, write_digits
from fedpart.runtime import prepare_process

# The modules whose import has filled ``CASES``.
__all__ = ["Result", "drill", "processes", "replies"]


@dataclass(frozen=True)
class Result:
    """A case that was tried.

    Attributes:
        case: what was done and should happen.
        happened: what happened.
        right: whether that is the same; None where it cannot be done here.
        seconds: time it took.
    """

    case: Case
    happened: str
    right: bool | None
    seconds: float

    def text(self) -> str:
        """A few lines for people."""
        mark = {True: "ok", False: "WRONG", None: "-"}[self.right]
        return (
            f"{mark:<5}  {self.case.done}  ({self.seconds:.1f} s)\n"
            f"       should happen  {self.case.expected}\n"
            f"       happened       {self.happened}"
        )


def drill(sim: Path) -> Iterator[Result]:
    """Do all cases, one after the other, in a scratch folder that is removed.

    Args:
        sim: the script to drill.
    """
    prepare_process()
    scratch = Path(tempfile.mkdtemp(prefix="fedpart-drill-"))
    try:
        write_digits(scratch / "digits")
        place = Place(sim.resolve(), scratch)
        for case in CASES:
            yield _tried(case, place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _tried(case: Case, place: Place) -> Result:
    started = time.perf_counter()
    right: bool | None = None
    try:
        happened, right = case.action(place)
    except Impossible as reason:
        happened = f"not done here: {reason}"
    except Exception as error:  # whatever a drill brings to light is a line of its table
        happened, right = f"{type(error).__name__}: {error}", False
    return Result(case, happened, right, time.perf_counter() - started)
