"""The smallest run that has everything, and where ``sim.py`` is."""

from pathlib import Path

SIM = Path(__file__).parents[2] / "sim.py"
TINY = (
    *("--clients", "10", "--clients-per-round", "4", "--train-size", "100", "--rounds", "2"),
    *("--samples", "2", "--eval-size", "20", "--eval-every", "1", "--backend", "inline"),
)
