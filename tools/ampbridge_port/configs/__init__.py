"""Configuration files that say how to train in mixed precision: DeepSpeed's JSON, and the YAML files
of Accelerate, Lightning, transformers, PaddleDetection, PaddleSeg, PaddleOCR and PaddleClas.

A file is read as the calls that the program makes of it, so that a key means what the dialect of the
library says that the argument means.
"""

from ampbridge_port.configs.reader import read_config, read_table

__all__ = ["read_config", "read_table"]
