"""Training arrays from the workers that keep them: references, fetches, releases."""
