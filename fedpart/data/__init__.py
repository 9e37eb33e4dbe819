"""Data sets, and how they are split over clients."""

from fedpart.data.federated import FederatedData, load_federated, to_float
from fedpart.data.images import Images

__all__ = ["FederatedData", "Images", "load_federated", "to_float"]
