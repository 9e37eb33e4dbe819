"""Break the code in twenty ways, one at a time: the tests must see each of them.

    python -m tests.mutants             # the working tree
    python -m tests.mutants COMMIT

Prints which test has seen what, and ends with exit code 1 where something went unseen. Whoever
takes tests away runs it before and after.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.compare_commits import ROOT, checkout

# Tests to run first; what is broken, in words; a line's code, found once; what takes its place.
TABLE = r"""
tests/unit/test_wire.py
  gate: bytes after the end of a tensor pass
    - if len(data) != len(header) + 4 * length:
    + if len(data) < len(header) + 4 * length:
  gate: NaN passes
    - if not all(map(math.isfinite, values)):
    + if math.inf in map(abs, values):
  gate: a reply in the name of another client passes
    - "client-id": client_id,
    + "client-id": whole["client-id"],
  gate: partitions that the client's chunk must not send pass
    - for name in sorted(set(lengths) ^ set(arrays)):
    + for name in sorted(set(lengths) - set(arrays)):
  gate: a gradient of psi may claim more images than the client has
    - limits["hyper-examples"] = (1, examples) if "hyper" in lengths else (0, 0)
    + limits["hyper-examples"] = (1, 1 << 62) if "hyper" in lengths else (0, 0)
tests/unit/test_cohort.py
  gate: a norm is held against the largest of the cohort, not against the median
    - middle = statistics.median(norms.values()) if norms else 0.0
    + middle = max(norms.values()) if norms else 0.0
tests/unit/test_evaluator.py tests/unit/test_run_folder.py
  resume: a checkpoint forgets the evaluation that is pending
    - "pending": vars(pending) if pending and pending.round <= done else None,
    + "pending": None,
tests/unit/test_run_folder.py
  resume: records after the checkpoint stay
    - lines = file.read_bytes().split(b"\n")[: len(records)]
    + lines = file.read_bytes().split(b"\n")[:-1]
  resume: other settings and data are accepted
    - began.refuse_other(path, now)
    + pass
  resume: seconds before the break are lost
    - self._seconds, self._peak_rss = extra["seconds"], extra["peak_rss_bytes"]
    + self._peak_rss = extra["peak_rss_bytes"]
tests/golden/test_golden_server.py tests/unit/test_server.py
  server: Adam moves away from what clients have learned
    - return total.div_(-len(sent)).float()
    + return total.div_(len(sent)).float()
  server: the mean is over all replies, not over those with the partition
    - return total.div_(-len(sent)).float()
    + return total.div_(-len(replies)).float()
  server: a partition's counter of steps also counts rounds in which nobody sent it
    - if not any(partition in r.deltas for r in replies):
    + if not any(partition in r.deltas for r in replies) and steps[partition].add_(1):
  server: psi's gradient is weighted by all images, not by those it was measured on
    - (r.hyper_gradient, r.hyper_examples) for r in replies if r.hyper_gradient is not None
    + (r.hyper_gradient, r.num_examples) for r in replies if r.hyper_gradient is not None
tests/unit/test_central_training.py
  equation (2): L_ML is the mean over chunks, not over examples
    - return sum(n * value for n, value in zip(sizes, by_chunk, strict=True)) / sum(sizes)
    + return sum(by_chunk) / len(by_chunk)
tests/unit/test_client.py tests/golden/test_golden_client.py
  equation (3): from its second batch, a partition trains through the full network
    - flat = subnetwork(task.theta, program.default, layout.ids, partition + 1)
    + flat = task.theta
  equation (4): chunk k is scored by subnetwork k + 1, which was trained on it
    - return chunk or None
    + return chunk + 1 if chunk else None
  equation (4): only a client's last micro-batch reaches psi
    - gradient += torch.autograd.grad(part, hyper)[0]
    + gradient = torch.autograd.grad(part, hyper)[0]
tests/unit/test_layout.py
  subnetwork k has partition k too
    - return torch.where(ids < k, theta, default)
    + return torch.where(ids <= k, theta, default)
tests/unit/test_program.py
  the likelihood of copies is the mean of their logs, not the log of their mean
    - predicted = F.log_softmax(logits, -1).logsumexp(1) - math.log(samples)
    + predicted = F.log_softmax(logits, -1).mean(1)
"""
ALL = ("tests/unit", "tests/golden", "tests/property")
FAST = "not slow and not ray and not flwr"
# Seconds for the tests that run first and for all of them: what takes longer hangs.
_FIRST, _ALL = 600, 1800


class Mutant(NamedTuple):
    """A piece of code that is broken, and the files of tests that should see it."""

    words: str
    before: str
    after: str
    hints: list[str]


def main() -> None:
    """Print one line for each mutant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", help="the working tree where left out")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        place = Path(scratch)
        commit = words.commit or working_tree(place / "index")
        whole, mutants = checkout(commit, place / "whole"), list(read(TABLE))
        for mutant in mutants:
            found(mutant, whole)
        # A test that fails anyway would see nothing.
        hints = dict.fromkeys(hint for mutant in mutants for hint in mutant.hints)
        before = pool.submit(killer, whole, list(hints), _ALL)

        def judge(mutant: Mutant) -> str | None:
            tree = checkout(commit, place / str(mutants.index(mutant)))
            file = found(mutant, tree)
            file.write_text(file.read_text("utf-8").replace(mutant.before, mutant.after), "utf-8")
            return killer(tree, mutant.hints, _FIRST) or killer(tree, ALL, _ALL)

        verdicts = []
        for mutant, verdict in zip(mutants, pool.map(judge, mutants), strict=True):
            verdicts.append(verdict)
            seen = f"killed by {verdict}" if verdict else "SURVIVED"
            sys.stdout.write(f"{mutant.words}: {seen}\n")
            sys.stdout.flush()
        if before.result():
            sys.exit(f"with nothing broken, {before.result()} kills too: mend that first")
    sys.exit(0 if all(verdicts) else 1)


def read(table: str) -> Iterator[Mutant]:
    """The mutants of ``TABLE``."""
    hints: list[str] = []
    lines = iter(table.strip().splitlines())
    for line in lines:
        if line.startswith("tests/"):
            hints = line.split()
        else:
            yield Mutant(line.strip(), next(lines)[6:], next(lines)[6:], hints)


def working_tree(index: Path) -> str:
    """The working tree as git's name of a tree, new files included; git's own index stays."""
    env, git = os.environ | {"GIT_INDEX_FILE": str(index)}, ["git", "-C", str(ROOT)]
    subprocess.run([*git, "add", "--all"], env=env, check=True)
    written = subprocess.run([*git, "write-tree"], env=env, check=True, capture_output=True)
    return written.stdout.decode().strip()


def found(mutant: Mutant, tree: Path) -> Path:
    """The file that holds the mutant's code; ends the script where there is not just one place."""
    counts = {p: p.read_text("utf-8").count(mutant.before) for p in tree.glob("fedpart/**/*.py")}
    if sum(counts.values()) != 1:
        sys.exit(
            f"{mutant.words}: the code {mutant.before!r} is there {sum(counts.values())} times "
            "under fedpart/, not once: mend the table of tests/mutants.py"
        )
    return max(counts, key=lambda path: counts[path])


def killer(tree: Path, tests: Sequence[str], seconds: float) -> str | None:
    """The first test of a tree that fails, or that one hangs; None where all pass."""
    tests = [test for test in tests if (tree / test).exists()]
    if not tests:
        return None
    flags = ("-n", "0", "-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", FAST)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *flags, *tests],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"a test that hangs for {seconds} seconds"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"no test could run in {tree}:\n{done.stdout[-2000:]}")
    return failed[1]


if __name__ == "__main__":
    main()
