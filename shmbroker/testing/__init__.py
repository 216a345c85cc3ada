"""A broker for other people's tests: `serve` as a subprocess."""
