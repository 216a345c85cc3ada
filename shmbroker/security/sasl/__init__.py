"""SASL: each mechanism a small pure state machine, and the order of requests around it."""
