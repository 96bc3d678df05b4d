"""Tests of extras are collected where the extra is installed: by `make test-extras`, in environments of their
own."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("verifiers") else ["verifiers"]
