"""Tiered storage: closed segments in a remote store, by way of an interface (KIP-405's idea)."""
