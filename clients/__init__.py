"""Flower's client side: the ClientApp, and grids that run clients in this process."""
