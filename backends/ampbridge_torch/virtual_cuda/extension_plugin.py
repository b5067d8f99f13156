"""Tests on the device as one of an extension: ``pytest -p ampbridge_torch.virtual_cuda.extension_plugin``."""

from __future__ import annotations

from ampbridge_torch import virtual_cuda

virtual_cuda.install("virtual")
