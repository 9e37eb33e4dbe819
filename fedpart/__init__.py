"""Hyperparameter optimisation through neural network partitioning, for federated learning."""

__version__ = "0.1.0"
