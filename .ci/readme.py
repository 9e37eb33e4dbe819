"""Print the commands of the README, and of pages beside it, as a script that CI can run.

Every line of every ``bash`` block is a command of CI, as typed there, with five changes: training
runs are cut to a few rounds or iterations, those on CIFAR10 to a tiny folder of noise, their
folders go to a scratch directory, and the last step of ``.ci/run`` has the test command and, in
``tests/parity/test_flower_runtime.py``, which starts and stops processes with care, those of
Flower's runtime. Every ``python`` block that begins with the name of a file becomes that file.
"""

import re
import sys
from pathlib import Path


def typed(readme: str | Path) -> list[str]:
    """Commands of all ``bash`` blocks, in order, without comments."""
    lines = []
    for block in re.findall(r"^```bash\n(.*?)^```", Path(readme).read_text(), flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.split(" # ")[0].strip()
            if command and not command.startswith("#"):
                lines.append(command)
    return lines


def modules(readme: str | Path) -> dict[str, str]:
    """File name -> content of all ``python`` blocks whose first line names a file."""
    blocks = re.findall(
        r"^```python\n(# (\w+\.py)\n.*?)^```", Path(readme).read_text(), re.M | re.S
    )
    return {name: content for content, name in blocks}


def of_flowers_runtime(command: str) -> bool:
    """Whether a test runs this command."""
    return re.search(r"FLWR_|^flwr |flower-", command) is not None


def commands(pages: list[str], scratch: str) -> list[str]:
    """What CI runs of them, shortened."""
    own = f"{scratch}/own"
    lines = [f"mkdir -p {own}"]
    for page in pages:
        lines += [f"cat > {own}/{n} <<'END'\n{text}END" for n, text in modules(page).items()]
    lines.append(f"export PYTHONPATH={own}")
    for command in (command for page in pages for command in typed(page)):
        if of_flowers_runtime(command):
            continue
        command = re.sub(r" && pytest$", "", command).replace("runs/", f"{scratch}/")
        if "sim.py central --experiment quick-" in command:
            command += (
                " --iterations 2 --eval-every 1 --seeds 1 --train-size 40 --test-size 20"
                " --batch-size 4 --samples 2 --trials 2"
            )
            if re.search("cifar10|extractor", command):
                lines.append(f"python .ci/noise.py {scratch}/noise")
                command += f" --data-dir {scratch}/noise"
            if re.search("validation|sensitivity", command):
                command += " --splits 1:1"
            if "validation" in command:
                command += " --finetune 2"
        elif "sim.py central --experiment" in command:
            command += " --iterations 30 --eval-every 10 --seeds 1 --train-size 200"
            command += " --inputs 2,15" if "input-selection" in command else ""
        if "sim.py deploy" in command:
            command += " --eval-size 200 --samples 2 --train-size 60"
        if re.search(r"python sim\.py +--", command) and "--dry-run" not in command:
            command += " --eval-size 200 --samples 2"
            if "cifar10" in command:
                lines.append(f"python .ci/noise.py {scratch}/noise")
                command += f" --rounds 1 --data-dir {scratch}/noise --train-size 40 --clients 10"
            else:
                # bfloat16 takes minutes where it is imitated, and ResNet-18 on all images.
                command += " --rounds 1" if "--precision bf16" in command else " --rounds 3"
                command += " --train-size 200" if "mymodel:resnet" in command else ""
            if "--out" not in command:
                command += f" --out {scratch}/first"
        lines.append(command)
    return lines


if __name__ == "__main__":
    scratch, *pages = sys.argv[1:]
    print("\n".join(commands(pages, scratch)))
