"""A training step, regions and decorated models for loops of one's own, and recipes of whole runs."""
