"""Tiered storage: closed segments in a second store, by way of an interface (KIP-405's idea)."""
