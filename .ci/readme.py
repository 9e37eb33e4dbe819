"""Print the README's commands as a script that CI can run.

Every line of every ``bash`` block is a command of CI, as typed there, with three changes: training
runs are cut to a few rounds, their folders go to a scratch directory, and the test command is left
to the last step of ``.ci/run``.
"""

import re
import sys
from pathlib import Path


def commands(readme: str, scratch: str) -> list[str]:
    """Commands of all ``bash`` blocks of ``readme``, in order, shortened."""
    text = Path(readme).read_text()
    lines: list[str] = []
    for block in re.findall(r"^```bash\n(.*?)^```", text, flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.split(" # ")[0].strip()
            if not command or command.startswith("#"):
                continue
            command = re.sub(r" && pytest$", "", command).replace("runs/", f"{scratch}/")
            if re.search(r"python sim\.py +--", command) and "--dry-run" not in command:
                command += " --rounds 3 --eval-size 200 --samples 2"
                if "--out" not in command:
                    command += f" --out {scratch}/first"
            lines.append(command)
    return lines


if __name__ == "__main__":
    print("\n".join(commands(sys.argv[1], sys.argv[2])))
