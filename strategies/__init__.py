"""Flower's server side: the Strategy and the ServerApp."""
