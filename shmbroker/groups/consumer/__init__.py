"""Groups of the new consumer protocol (KIP-848)."""
