import re
from pathlib import Path

import pytest

from fedpart.config import Config
from fedpart.paper import BLOCKS, DIGITS, OBJECTS

# Lines 415-417 and 422-424 of the paper's LaTeX source, as they stand there but for line breaks.
PRINTED_DIGITS = r"""
FedAvg & $95.4\%_{\pm0.1}$ & $97.4\%_{\pm0.1}$ & $99.0\%_{\pm0.1}$ & $80.5\%_{\pm0.0}$ &
$90.4\%_{\pm0.5}$ & $96.8\%_{\pm0.1}$ & $100$\\
FedAvg + Augerino & $94.2\%_{\pm0.5}$ & $96.4\%_{\pm0.1}$ & $99.1\%_{\pm0.0}$ &
$79.5\%_{\pm0.3}$ & $89.0\%_{\pm2.0}$ & $95.3\%_{\pm0.2}$ & $100$\\
FedAvg + Partitioned & $\mathbf{97.0\%_{\pm0.1}}$&$\mathbf{98.3\%_{\pm0.0}}$ &$99.2\%_{\pm0.1}$ &
$\mathbf{85.7\%_{\pm0.9}}$ & $\mathbf{93.5\%_{\pm0.6}}$ & $\mathbf{97.8\%_{\pm0.1}}$ & $77$\\
"""
PRINTED_OBJECTS = r"""
FedAvg & $50.2\%_{\pm0.4}$ & $64.5\%_{\pm0.3}$ & $79.2\%_{\pm0.7}$ & $35.6\%_{\pm0.3}$ &
$45.2\%_{\pm0.1}$ & $53.9\%_{\pm1.1}$& $100$  \\
FedAvg + Augerino & $49.9\%_{\pm0.8}$ & $65.0\%_{\pm0.2}$ & $79.9\%_{\pm0.4}$ &
$36.1\%_{\pm0.2}$ & $45.0\%_{\pm0.2}$ & $56.4\%_{\pm0.7}$& $100$  \\
FedAvg + Partitioned  & $50.8\%_{\pm1.0}$ & $64.8\%_{\pm0.4}$ & $\mathbf{81.5\%_{\pm0.5}}$ &
$\mathbf{37.1\%_{\pm0.2}}$ & $45.3\%_{\pm0.3}$ & $\mathbf{60.6\%_{\pm0.2}}$ & $91$\\
"""


@pytest.mark.parametrize(
    ("block", "printed"), [(DIGITS, PRINTED_DIGITS), (OBJECTS, PRINTED_OBJECTS)]
)
def test_every_number_is_the_printed_one(block, printed):
    lines = [line for line in printed.replace("\n", " ").split(r"\\") if line.strip()]
    assert len(lines) == len(block.rows) == 3
    for line, row in zip(lines, block.rows, strict=True):
        name, *cells, upload = line.split("&")
        pairs = [re.search(r"([\d.]+)\\%_\{\\pm([\d.]+)\}", cell).groups() for cell in cells]
        assert row.name == name.strip()
        assert row.accuracy == tuple((float(a), float(b)) for a, b in pairs)
        assert row.upload == int(upload.strip().strip("$"))
        assert len(row.accuracy) == len(block.columns)


def test_columns_run_through_the_sizes_of_one_data_set_first():
    assert DIGITS.columns[:2] == (("mnist", 1250), ("mnist", 5000))
    assert DIGITS.columns[2:4] == (("mnist", 50_000), ("rotmnist", 1250))


def test_a_method_is_the_last_word_of_its_name():
    assert [row.method for row in DIGITS.rows][::2] == ["fedavg", "partitioned"]
    assert DIGITS.row("partitioned") is DIGITS.rows[2]
    assert DIGITS.row("other") is None


def test_settings_are_fields_that_exist():
    for block in BLOCKS:
        assert {*block.settings, *block.learned} <= set(Config.model_fields)


def test_upload_follows_from_the_shares():
    """Expected upload is the sum over chunks of share times what is left: section L.1's 0.77."""
    for block in BLOCKS:
        shares = block.learned["chunks"]
        expected = sum(u * sum(shares[k:]) for k, u in enumerate(shares))
        assert round(100 * expected) == block.row("partitioned").upload


def test_sources_name_appendices_and_equations_as_the_printed_paper_does():
    """No LaTeX label, which no PDF shows; appendices A to J, equations (1) to (4)."""
    root = Path(__file__).parents[2]
    texts = [
        root / "README.md",
        *(f for p in ("fedpart", "strategies", "clients") for f in (root / p).rglob("*.py")),
    ]
    for file in texts:
        text = " ".join(file.read_text(encoding="utf-8").split())
        assert not re.search(r"``(tab|fig|sec|eq):|eq\. \([a-z]", text), file
        assert set(re.findall(r"[Aa]ppendix ([^ ,;:.)]+)", text)) <= set("ABCDEFGHIJ"), file
        assert set(re.findall(r"equation \((\w+)\)", text)) <= set("1234"), file
