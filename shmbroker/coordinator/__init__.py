"""Group coordination: which broker coordinates a group."""
