"""Follows a Python file without running it: what its names, expressions and calls stand for."""
