"""Faults made on purpose, for ``sim.py drill`` and for the tests."""
