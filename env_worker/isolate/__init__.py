"""`--isolate process`: each run's environment in a process of its own, for environments that hold the
interpreter or take their process down.

It contains faults, not attacks: an environment's process has the worker's user, files and variables, and the
worker unpickles what it sends.
"""
