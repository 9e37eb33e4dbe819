"""Data sets, and how they are split over clients."""

from fedpart.data.federated import FederatedData, load_federated, to_float

__all__ = ["FederatedData", "load_federated", "to_float"]
