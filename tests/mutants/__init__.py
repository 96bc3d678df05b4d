"""Bugs that the tests must find: `python -m tests.mutants.run`."""
