"""What the README says about bringing one's own, as a newcomer copies it."""

import hashlib
import importlib.util
import json
import shlex
import shutil
import sys

import pytest
from command_line import SIM
from compare_commits import records

ROOT = SIM.parent
FEW = shlex.split("--rounds 2 --samples 2 --train-size 60 --eval-size 20 --backend inline")


@pytest.fixture(scope="module")
def readme():
    spec = importlib.util.spec_from_file_location("ci_readme", ROOT / ".ci" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copied(readme, home, monkeypatch):
    """The README's modules in the working directory, and forgotten afterwards."""
    found = readme.modules(ROOT / "README.md")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name, text in found.items():
        (home / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    return found


def commands(readme, *words):
    typed = readme.typed(ROOT / "README.md")
    return [c for c in typed if all(word in c for word in words)]


def test_each_is_at_most_fifteen_lines(copied):
    assert set(copied) == {"mymodel.py", "mydata.py", "myaugmentation.py", "mylayer.py"}
    # Blank ones apart.
    assert all(len([line for line in text.splitlines() if line]) <= 15 for text in copied.values())


def test_a_model_and_a_data_set_of_ones_own_train(readme, copied, sim, home):
    """torchvision's ResNet-18 with GroupNorm, through the same command."""
    (command,) = commands(readme, "mydata:stripes", "mymodel:resnet")
    code, _, err = sim(*shlex.split(command)[2:], *FEW)
    assert code == 0, err
    summary = json.loads((home / "runs/own-model/summary.json").read_text())
    assert summary["dataset"] == "mydata:stripes"
    # 11 million weights, 4 bytes each, to ten clients in two rounds.
    assert summary["download_model_bytes"] > 20 * 4 * 11e6


def test_an_augmentation_and_a_hyperparameter_of_ones_own_are_learned(readme, copied, sim, home):
    """Both are in the records by name, start where they were told to, and move."""
    (command,) = commands(readme, "mylayer:net", "myaugmentation:Brightness")
    code, _, err = sim(*shlex.split(command)[2:], *FEW, "--hyper-lr", "0.05")
    assert code == 0, err
    lines = (home / "runs/own-psi/rounds.jsonl").read_text().splitlines()
    found = [json.loads(line)["hyper_readable"] for line in lines]
    assert set(found[-1]) == {"brightness", "0.log_width"}
    assert abs(found[-1]["brightness"] - 0.1) > 0.01
    assert abs(found[-1]["0.log_width"] - 0.0498) > 0.0005


@pytest.mark.parametrize("name", ["quick-random-search", "quick-data-size"])
def test_an_augmentation_of_ones_own_has_a_picture_in_one_place_too(copied, sim, home, name):
    """It has no widths by the names that the paper's figures show."""
    few = "--train-size 60 --test-size 20 --batch-size 4 --samples 2 --iterations 4 --seeds 1"
    words = (*few.split(), "--methods", "partitioned,none", "--out", "all")
    words = ("--experiment", name, "--augmentation", "myaugmentation:Brightness", *words)
    code, out, err = sim("central", *words)
    assert (code, err) == (0, "")
    assert (home / "all/sweep.png").stat().st_size > 10_000
    assert "| partitioned |" in out


def test_a_hyperparameter_of_ones_own_is_batched_over_clients(readme, copied, sim, home):
    """Clients at once; and noise that cannot be drawn so is refused in a whole sentence."""
    (command,) = commands(readme, "mylayer:net", "myaugmentation:Brightness")
    words = (*shlex.split(command)[2:], *FEW, "--clients-at-once", "2")
    code, _, err = sim(*words)
    assert code == 0, err
    own = "torch.randn(x.shape, generator=self.generator)"
    text = copied["mylayer.py"].replace("uniform(self.generator, x.shape, -1, 1)", own)
    assert own in text
    (home / "old_layer.py").write_text(text)
    code, _, err = sim(*(w.replace("mylayer", "old_layer") for w in words), "--out", "old")
    assert (code, err.count("\n")) == (2, 1)
    assert "(old_layer.py, line 17, in forward); leave" in err
    assert "or draw its noise from fedpart.models.uniform" in err


# Before the run it is tried on two images of noise.
LATE_MODEL = """
from torch import nn


class late(nn.Sequential):
    def __init__(self, num_classes, in_channels):
        super().__init__(nn.Flatten(), nn.Linear(784 * in_channels, num_classes))
        self.steps = 0

    def forward(self, x):
        self.steps += self.training
        if self.steps > {steps}:
            raise {kind}("too many steps")
        if len(x) > {most} and not self.training:
            raise {kind}("too many images")
        return super().forward(x) * ({scale})
"""
LATE_AUGMENTATION = """
import torch


class late:
    names, noise_size, calls = ("a",), 1, 0

    def __init__(self, start):
        pass

    def initial(self):
        return torch.ones({names})

    def apply(self, images, raw, noise):
        if len(images) > {most} and not torch.is_grad_enabled():
            raise ValueError("too many images")
        return images * raw[0]

    def readable(self, raw):
        if raw[0] != 1 and {silent}:
            raise LookupError("cannot tell")
        late.calls += 1
        return {{{told}: float(raw[0])}} if late.calls > 3 else {{"a": 1.0}}
"""
LATE = ("--model", "late_model:late", "--augmentation", "late_augmentation:late", "--out", "run")


@pytest.fixture
def late(home, monkeypatch):
    """Writes both modules, as they are or mended."""

    def write(
        *,
        augmented=1000,
        silent=False,
        told="'a'",
        names=1,
        layer="nn.Flatten()",
        most=1000,
        **model,
    ):
        defaults = {"steps": 1000, "kind": "ValueError", "scale": 1}
        text = LATE_MODEL.format(most=most, **defaults | model).replace("nn.Flatten()", layer)
        (home / "late_model.py").write_text(text)
        text = LATE_AUGMENTATION.format(most=augmented, silent=silent, told=told, names=names)
        text = text.replace('("a",)', repr(tuple("ab"[:names])))
        (home / "late_augmentation.py").write_text(text)
        for name in ("late_model", "late_augmentation"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    return write


OWN = "augmentation 'late_augmentation:late'"
BOTH = "with model 'late_model:late' and augmentation 'late_augmentation:late'"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"most": 10},
            f"evaluation after round 1 {BOTH}: ValueError: too many images (late_model.py, line",
        ),
        ({"silent": True}, f"telling psi {BOTH}: LookupError: cannot tell (late_augmentation"),
        ({"told": "'b'"}, f"{OWN}: readable gives {{'b': "),
    ],
)
def test_what_raises_only_later_is_told_and_the_run_goes_on(sim, home, late, wrong, says):
    """One sentence and how to go on; mended, the run ends as any other."""
    late(**wrong)
    code, _, err = sim(*LATE, *FEW, "--clients", "10", "--eval-every", "1")
    assert code == 2
    assert err.startswith(f"error: {says}"), err
    assert err.count("\n") == 2
    assert "go on with: python sim.py --resume run" in err
    late()
    assert sim("--resume", "run")[0] == 0


def test_the_test_images_are_named_where_only_they_fail(sim, home, late, monkeypatch):
    """In a run's last step; the message names no round."""
    late()
    words = (*LATE, *FEW, "--clients", "10")
    from fedpart import run_folder

    def fail(program, *state, **images):
        late_model = sys.modules["late_model"]
        monkeypatch.setattr(late_model.late, "forward", lambda self, x: 1 / 0)
        return evaluate(program, *state, **images)

    evaluate = run_folder.evaluate
    monkeypatch.setattr(run_folder, "evaluate", fail)
    code, _, err = sim(*words)
    assert code == 2
    assert err.startswith(f"error: evaluation on the test images {BOTH}: ZeroDivisionError: ")


CENTRAL = (
    *("central", "--experiment", "data-size", "--dataset", "mnist", "--seeds", "1"),
    *("--iterations", "4", "--eval-every", "2"),
    *("--train-size", "60", "--test-size", "20", "--batch-size", "4", "--samples", "2"),
    *("--precision", "fp32", "--method", "partitioned", *LATE),
)


@pytest.fixture
def central(sim, home):
    """Ends of ``sim.py central`` with both modules: -> (exit code, lines of stderr)."""

    def run(*words):
        code, _, err = sim(*(words or CENTRAL))
        return code, err.splitlines()

    return run


# What fails, the iteration to go on from, and what is said.
IN_ONE_PLACE = [
    (
        {"augmented": 10},
        1,
        f"evaluation after iteration 2 {BOTH}: ValueError: too many images (late_augmentation",
    ),
    ({"told": "'b'"}, 1, f"{OWN}: readable gives {{'b': "),
    ({"steps": 11, "kind": "StopIteration"}, 2, f"training {BOTH}: StopIteration: too many steps"),
]


@pytest.mark.parametrize(("wrong", "done", "says"), IN_ONE_PLACE)
def test_in_one_place_it_is_told_too_and_the_run_goes_on(central, home, late, wrong, done, says):
    """``sim.py central``: mended, it ends with the numbers of a run without a fault."""
    late(**wrong)
    code, (error, stopped, *more) = central()
    assert (code, more) == (2, [])
    again = "go on with: python sim.py central --resume run"
    assert stopped == f"stopped after iteration {done}; {again}"
    assert error.startswith(f"error: {says}")
    late()
    code, warnings = central("central", "--resume", "run")
    assert (code, len(warnings)) == (0, 1)
    assert central(*CENTRAL, "--out", "whole") == (0, [])
    assert records(home / "run") == records(home / "whole")


def test_in_one_place_what_diverges_is_no_fault_of_the_module(central, home, late):
    """It would diverge again: no word of going on."""
    late(layer="nn.Flatten()", scale="float('nan') if self.steps > 10 else 1")
    code, (error, *more) = central()
    assert (code, more) == (2, [])
    assert error.startswith("error: the loss is nan at iteration 3 with lr")


def test_in_one_place_our_own_faults_are_not_put_on_the_module(central, home, late, monkeypatch):
    """Writing and printing are ours, whatever is trained."""
    late()

    def fail(lines, record):
        raise RuntimeError("ours")

    monkeypatch.setattr("fedpart.central.command._Lines.evaluation", fail)
    with pytest.raises(RuntimeError, match=r"^ours$"):
        central()


@pytest.mark.parametrize(
    ("words", "resume"),
    [
        ((*LATE, *FEW, "--clients", "10", "--eval-every", "1"), ("--resume",)),
        (CENTRAL, ("central", "--resume")),
    ],
)
def test_a_resume_warns_of_code_that_has_changed(sim, home, late, words, resume):
    """By the file, kept in run.json; the run goes on. An earlier version kept none."""

    def warnings(code, folder):
        found, out, err = sim(*resume, folder)
        assert found == code
        return [line for line in (out + err).splitlines() if line.startswith("warning")]

    late(most=10)
    assert sim(*words)[0] == 2
    kept = json.loads((home / "run/run.json").read_text())["code"]
    files = {name: home / f"late_{name}.py" for name in ("model", "augmentation")}
    assert kept == {n: hashlib.sha256(f.read_bytes()).hexdigest() for n, f in files.items()}
    late(most=10)
    assert warnings(2, "run") == []
    shutil.copytree(home / "run", home / "old")
    info = json.loads((home / "old/run.json").read_text())
    del info["code"]
    (home / "old/run.json").write_text(json.dumps(info))
    late(layer="nn.Flatten(), nn.Tanh()")
    assert warnings(0, "run") == [
        "warning: the file of model 'late_model:late' has changed since the run began: numbers may "
        "differ from those of a run without a break"
    ]
    assert json.loads((home / "run/run.json").read_text())["code"] == kept
    assert warnings(0, "old") == []


@pytest.mark.parametrize(
    ("mended", "says"),
    [
        ({"layer": "nn.Flatten(), nn.Linear(784, 784)"}, "623,290 weights and 1 hyper"),
        ({"names": 2}, "7,850 weights and 2 hyperparameters"),
    ],
)
def test_what_has_another_size_after_it_was_mended_is_refused(sim, home, late, mended, says):
    """And nothing is lost: put back, the run goes on."""
    late(most=10)
    assert sim(*LATE, *FEW, "--clients", "10", "--eval-every", "1")[0] == 2
    before = {path.name: path.read_bytes() for path in (home / "run").iterdir()}
    late(**mended)
    code, _, err = sim("--resume", "run")
    assert (code, err.count("\n")) == (4, 1), err
    assert f"began with 7,850 weights and 1 hyperparameters, and has {says}" in err
    assert {path.name: path.read_bytes() for path in (home / "run").iterdir()} == before
    late()
    assert sim("--resume", "run")[0] == 0


DATA = """
import numpy as np
from fedpart.data import Images


def own(data_dir):
    x, y = np.zeros((9, 1, 28, 28), np.uint8), np.zeros(9, int)
    return Images({})
"""


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("dataset", "def own(data_dir):\n    return 3\n", "returned int, not a fedpart.data"),
        ("dataset", "def own(data_dir):\n    raise OSError('no disk')\n", "OSError: no disk"),
        ("dataset", "import no_such_module\n", "No module named 'no_such_module'"),
        ("dataset", "other = 3\n", "has no attribute 'own'"),
        ("dataset", DATA.format("x[:, 0], y"), "images of type uint8 and shape (9, 28, 28); they"),
        ("dataset", DATA.format("x, y + 10"), "has labels 10 to 10; they must be 0 to 9"),
        ("dataset", DATA.format("x.tolist(), y"), "images of type list; they must be a NumPy"),
        ("dataset", DATA.format("x, y, x"), "test images or labels without the other"),
        ("dataset", DATA.format("x, y, mean=np.zeros(2)"), "has 2 mean values, not 1"),
        ("dataset", DATA.format("x, y, num_classes='3'"), "'3'; it must be a whole number"),
        ("dataset", DATA.format("x, y, validation=-5"), "-5; it must be a number of images"),
        ("dataset", DATA.format("x, y, source=None"), "has source None; it must be a sentence"),
        ("augmentation", "class own:\n    def __init__(self, start):\n        pass\n", "initial"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence_before_the_run(sim, home, name, text, sentence):
    """Its code is one for all that can be wrong with a data set, and one for the rest."""
    module = f"wrong_{abs(hash(text))}"
    (home / f"{module}.py").write_text(text)
    code, _, err = sim(f"--{name}", f"{module}:own", "--out", "runs/wrong", "--clients", "20", *FEW)
    assert code == {"dataset": 3, "augmentation": 2}[name]
    assert sentence in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1 or err.splitlines()[-1].startswith("error: ")
    assert not (home / "runs").exists()


def test_channels_that_come_last_are_a_warning_and_the_shape_is_told(sim, home):
    (home / "channels_last_data.py").write_text(
        "import numpy as np\nfrom fedpart.data import Images\n\n\ndef own(data_dir):\n"
        "    return Images(np.zeros((90, 28, 28, 1), np.uint8), np.zeros(90, '>u4'))\n"
    )
    words = ("--dataset", "channels_last_data:own", "--model", "mlp", "--clients", "20", *FEW)
    for more in ((), ("--dry-run",)):
        code, out, err = sim(*words, *more)
        assert code == 0, err
        assert "images of 28 channels, 28 by 1 pixels (height, width)" in out
        said = "28 channels of 28 by 1 pixels, as their order is [n, channels, height, width]"
        assert said in out + err
        # Also where the model cannot be applied to such images.
        code, _, err = sim(*words, *more, "--model", "mnist-cnn")
        assert (code, err.count("\n")) == (2, 1)
        assert said in err
