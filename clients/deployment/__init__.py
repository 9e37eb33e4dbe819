"""Flower's own processes on real sockets: SuperLink and SuperNodes with TLS and node keys."""
