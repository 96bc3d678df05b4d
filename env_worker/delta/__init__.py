"""From a trace's journal to the deltas of a run's stream."""
