"""One address in front of many workers."""
