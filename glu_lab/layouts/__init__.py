"""How checkpoints store the tensors of an FFN: a table, transforms both ways, resharding."""

from glu_lab.errors import LayoutError
from glu_lab.layouts.copying import contiguous
from glu_lab.layouts.document import describe, markdown
from glu_lab.layouts.function import branches_from_config, fit, variants_of
from glu_lab.layouts.inventory import Inventory, take_stock
from glu_lab.layouts.layout import (
    BARE,
    Function,
    Layout,
    Prefix,
    Rule,
    Source,
    Tensor,
)
from glu_lab.layouts.lookup import CANONICAL, LAYOUTS, find, layouts_of_model_type
from glu_lab.layouts.match import Candidate, Matches, match
from glu_lab.layouts.measure import infer_spec, measure
from glu_lab.layouts.outputs import Key, Output
from glu_lab.layouts.plan import Plan, plan
from glu_lab.layouts.reading import ffns_of, read_ffn
from glu_lab.layouts.reshard import join_data_shards, plan_reshard, reshard, split_data_shards
from glu_lab.layouts.transform import aliases, from_canonical, to_canonical
from glu_lab.layouts.user import read_layouts, to_toml

__all__ = [
    "BARE",
    "CANONICAL",
    "LAYOUTS",
    "Candidate",
    "Function",
    "Inventory",
    "Key",
    "Layout",
    "LayoutError",
    "Matches",
    "Output",
    "Plan",
    "Prefix",
    "Rule",
    "Source",
    "Tensor",
    "aliases",
    "branches_from_config",
    "contiguous",
    "describe",
    "ffns_of",
    "find",
    "fit",
    "from_canonical",
    "infer_spec",
    "join_data_shards",
    "layouts_of_model_type",
    "markdown",
    "match",
    "measure",
    "plan",
    "plan_reshard",
    "read_ffn",
    "read_layouts",
    "reshard",
    "split_data_shards",
    "take_stock",
    "to_canonical",
    "to_toml",
    "variants_of",
]
