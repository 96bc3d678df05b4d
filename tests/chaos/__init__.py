"""Random faults under load, from a seed: `make chaos`."""
