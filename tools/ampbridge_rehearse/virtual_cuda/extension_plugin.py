"""Tests on an extension's device: ``pytest -p ampbridge_rehearse.virtual_cuda.extension_plugin``."""

from __future__ import annotations

from ampbridge_rehearse import virtual_cuda

virtual_cuda.install("virtual")
