"""Measuring: programs to run by hand, never part of the tests. How: README.md beside this file."""
