"""Colour images from the command line: a folder trains and is tabled, a bad one is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import SIM
from PIL import Image

pytestmark = pytest.mark.process

ROOT = SIM.parent


@pytest.fixture
def folder(tmp_path):
    """Twelve training and two test images of coloured noise for each of ten classes, as in CI."""
    subprocess.run([sys.executable, ROOT / ".ci" / "noise.py", tmp_path / "data"], check=True)
    return tmp_path / "data"


def few(folder, model="fixup-resnet8"):
    words = "--train-size 40 --clients 10 --rounds 1 --samples 2 --eval-size 20 --backend inline"
    return [*words.split(), "--model", model, "--data-dir", folder]


def test_the_quick_settings_train_and_stand_in_the_papers_table(sim, folder):
    """The narrow ResNet-9 by generators, one psi mini-batch; its cell is under RotCIFAR10."""
    path = ROOT / "configs" / "quick-rotcifar10-1.25k-partitioned.toml"
    code, _, err = sim("--config", path, *few(folder, "resnet9-narrow"), "--out", "runs/a")
    assert code == 0, err
    code, out, _ = sim("table", "runs/a")
    assert code == 0
    assert "RotCIFAR10" in out
    # The paper's line, and what sets this run apart.
    assert "37.1" in out
    assert "resnet9-narrow" in out
    round_one = json.loads(Path("runs/a/rounds.jsonl").read_text())
    assert {"rotation_degrees", "dropout_1", "dropout_2"} <= set(round_one["hyper_readable"])


def empty_class(train):
    for file in (train / "class3").iterdir():
        file.unlink()


def corrupt(train):
    file = train / "class3" / "1.png"
    file.write_bytes(file.read_bytes()[:700])


def mixed_sizes(train):
    Image.new("RGB", (40, 32)).save(train / "class3" / "1.png")


def grey(train):
    Image.new("L", (32, 32)).save(train / "class3" / "1.png")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (empty_class, "class3 holds no images; put some there or remove the folder"),
        (corrupt, "1.png is no readable image"),
        (mixed_sizes, "1.png is 40x32 pixels; images must be 32x32"),
        (grey, "1.png is grey (mode 'L') among colour images; convert it to RGB or remove it"),
    ],
)
def test_a_bad_image_folder_is_refused_before_round_1(sim, home, folder, damage, sentence):
    """One sentence, exit code 3, nothing written."""
    damage(folder / "cifar10" / "train")
    code, _, err = sim("--dataset", "cifar10", *few(folder), "--out", "runs/bad")
    assert code == 3
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert sentence in errors[0]
    assert not (home / "runs").exists()
