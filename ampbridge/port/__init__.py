"""Porting: read a recipe written for one framework, write it for another."""

from ampbridge.port.files import Outcome, read, read_many
from ampbridge.port.reading import Alternative, Finding, Place, Reading

__all__ = ["Alternative", "Finding", "Outcome", "Place", "Reading", "read", "read_many"]
