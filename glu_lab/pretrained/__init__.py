"""Whole models that other projects trained: read, checked against a Spec, and written back."""

from glu_lab.pretrained.checkpoint import (
    Pretrained,
    check_model,
    content_sha256,
    open_pretrained,
)
from glu_lab.pretrained.families import FAMILIES

__all__ = ["FAMILIES", "Pretrained", "check_model", "content_sha256", "open_pretrained"]
