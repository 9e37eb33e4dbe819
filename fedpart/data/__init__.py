"""Data sets, and how they are split over clients."""

from fedpart.data.federated import FederatedData, load_federated, to_float
from fedpart.data.images import Images, order_warnings, scale_warnings
from fedpart.data.own import load_own

__all__ = [
    "FederatedData",
    "Images",
    "load_federated",
    "load_own",
    "order_warnings",
    "scale_warnings",
    "to_float",
]
