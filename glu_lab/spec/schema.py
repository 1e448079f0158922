"""The JSON Schema of manifests, published with the package."""

import json
from importlib import resources
from typing import Any

FILE = "manifest_schema.json"


def manifest_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a ``manifest.json``, of a training run or of a checkpoint."""
    return json.loads(resources.files("glu_lab.spec").joinpath(FILE).read_text("utf-8"))
