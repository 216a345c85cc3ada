"""Groups of the classic protocol, and what their members tell each other."""
