"""Identities, and what they may do: pure rules, asked by gateways and controllers."""
