"""Partitioned training in one place, for any PyTorch model: the library and the toy problems."""

from fedpart.central.hyper import ConcreteMask
from fedpart.central.objective import l_ml, score_tensors
from fedpart.central.settings import Settings, make_settings
from fedpart.central.training import Training

__all__ = ["ConcreteMask", "Settings", "Training", "l_ml", "make_settings", "score_tensors"]
