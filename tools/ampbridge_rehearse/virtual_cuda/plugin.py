"""Tests on the virtual CUDA device: ``pytest -p ampbridge_rehearse.virtual_cuda.plugin``."""

from __future__ import annotations

from ampbridge_rehearse import virtual_cuda

virtual_cuda.install()
