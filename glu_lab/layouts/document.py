"""Rows for people and machines: plain mappings, and the Markdown page made from them.

``python -m glu_lab.layouts > docs/layouts.md`` writes the page anew.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from glu_lab.layouts.axes import parse
from glu_lab.layouts.layout import BRANCH_PIECES, Layout, Tensor
from glu_lab.layouts.sizes import LETTERS
from glu_lab.layouts.tables.activations import ACTIVATION_NAMES
from glu_lab.spec.codec import encode
from glu_lab.spec.ffn import FFN
from glu_lab.spec.formula import formula
from glu_lab.spec.variants import branches_of

#: Names of the branches of a gated FFN: the activated one and the linear one.
ROLES = ("gate", "up")


def role(layout: Layout, branch: int) -> str:
    """What people call a branch."""
    if layout.num_branches == 2:
        return ROLES[branch]
    return "only" if layout.num_branches == 1 else f"branch {branch}"


def branch_order(layout: Layout, row: Tensor) -> str:
    """The branches that a tensor holds, in stored order; empty where there is one a layout."""
    if row.holds not in BRANCH_PIECES or layout.num_branches == 1:
        return ""
    if not row.branches:
        function = layout.function
        if function.each_branch:
            return "in the order of the activations"
        return "activated first" if function.rules else "in the Spec's order"
    return ", ".join(role(layout, branch) for branch in row.branches)


def orientation(layout: Layout, row: Tensor) -> str:
    """``out,in`` as nn.Linear, or ``in,out``; empty for vectors."""
    factors = [factor for group in parse(row.axes) for factor in group.factors]
    if "embed" not in factors or "mlp" not in factors:
        return ""
    inputs, outputs = ("embed", "mlp") if row.holds == "wi" else ("mlp", "embed")
    return "in,out" if factors.index(inputs) < factors.index(outputs) else "out,in"


def packing(layout: Layout, row: Tensor) -> str:
    """How the branches of a tensor lie together; empty where a tensor has no branches."""
    if row.holds not in BRANCH_PIECES or row.holds == "phi":
        return ""
    groups = parse(row.axes)
    for position, group in enumerate(groups):
        if "branch" not in group.factors:
            continue
        if len(group.factors) == 1:
            before = groups[:position]
            return f"stacked axis {position}" + (
                " after the optional ones" if any(g.optional for g in before) else ""
            )
        return f"interleaved, width {row.interleave}" if row.interleaved else "concatenated"
    return "separate"


def cut(row: Tensor) -> str:
    """What one of P tensor-parallel ranks holds of a tensor."""
    groups = parse(row.axes)
    for position, group in enumerate(groups):
        if "mlp" in group.factors:
            own = " of each branch" if "branch" in group.factors else ""
            own = " of each expert" if "expert" in group.factors else own
            return f"axis {position}: F/P channels{own}"
    return "whole in every rank"


def _position(row: Tensor, axis: str) -> str:
    """Where layers or experts are: in the name, or along an axis."""
    if f"{{{axis}}}" in row.name:
        return "name"
    for position, group in enumerate(parse(row.axes)):
        if axis in group.factors:
            inside = f" (joined as {'·'.join(group.factors)})" if len(group.factors) > 1 else ""
            optional = ", where there are any" if group.optional else ""
            return f"axis {position}{inside}{optional}"
    return "none"


def describe(layout: Layout) -> dict[str, Any]:
    """One row as a plain mapping, ready for JSON."""
    wi = [row for row in layout.tensors if row.holds == "wi" and row.only != "one"]
    wo = next(row for row in layout.tensors if row.holds == "wo")
    own = [branch_order(layout, row) for row in wi]
    if any(len(row.branches) > 1 for row in wi):
        order = ", ".join(own)
    else:
        order = ", ".join(f"{row.name}: {text}" for row, text in zip(wi, own, strict=True) if text)
    biases = [row for row in layout.tensors if row.holds in ("bi", "bp", "bo")]
    in_name = any(prefix.has_layer for prefix in layout.prefixes)
    stacked = _position(wi[0], "layer")
    return {
        "name": layout.name,
        "aliases": list(layout.aliases),
        "summary": layout.summary,
        "model_types": list(layout.model_types),
        "branches": layout.num_branches or "any",
        "branch_order": order or "one branch",
        "packing": " / ".join(dict.fromkeys(packing(layout, row) for row in wi)),
        "orientation": orientation(layout, wi[0]),
        "output_orientation": orientation(layout, wo),
        "function": _function(layout),
        "biases": {
            "policy": _bias_policy(biases),
            "attribute": layout.bias_attribute,
            "tensors": [row.name for row in biases],
        },
        "layer_axis": stacked if stacked != "none" else "name" if in_name else "none",
        "expert_axis": _position(wi[0], "expert"),
        "per_rank_files": layout.per_rank,
        "tensors": [
            {
                "name": row.name,
                "holds": row.holds,
                "shape": _shape(row),
                "axes": row.axes,
                "orientation": orientation(layout, row),
                "packing": packing(layout, row),
                "branch_order": branch_order(layout, row),
                "interleave": row.interleave,
                "bias": _presence(row),
                "only": row.only,
                "tensor_parallel": cut(row),
            }
            for row in layout.tensors
        ],
        "prefixes": [encode(prefix) for prefix in layout.prefixes],
        "outside": dict(layout.outside),
        "refused": dict(layout.refused),
        "source": "; ".join(str(source) for source in layout.sources),
        "sources": [encode(source) for source in layout.sources],
        "notes": list(layout.notes),
    }


def _shape(row: Tensor) -> str:
    """Its shape in letters; axes that may be absent have a question mark."""
    inner = [
        "·".join(LETTERS[factor] for factor in group.factors) + "?" * group.optional
        for group in parse(row.axes)
    ]
    return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"


def _presence(row: Tensor) -> str:
    if row.holds not in ("bi", "bp", "bo"):
        return ""
    return "optional" if row.optional else "always"


def _bias_policy(biases: Iterable[Tensor]) -> str:
    kinds = {_presence(row) for row in biases}
    if not kinds:
        return "never"
    return kinds.pop() if len(kinds) == 1 else "branch biases always, the output's optional"


def _function(layout: Layout) -> dict[str, Any]:
    function = layout.function
    told: dict[str, Any] = {
        "decided_by": "the convention"
        if function.variant
        else " or ".join(rule.attribute for rule in function.rules) or "the Spec",
        "variant": function.variant,
        "formula": _formula(function.variant) if function.variant else "",
        "values": {rule.attribute: dict(rule.values) for rule in function.rules},
        "each_branch": function.each_branch,
        "also": list(function.also),
        "assumes": dict(function.assumes),
        "note": function.note,
    }
    return told


def _values(values: Mapping[str, str]) -> str:
    """A table of a config's values, by name where many rows share it."""
    for project, names in ACTIVATION_NAMES.items():
        link = f"[{project}'s names](#activation-names)"
        if values == names:
            return link
        if values == {name: f"{activation}*linear" for name, activation in names.items()}:
            return f"{link}, times a linear branch"
    return ", ".join(f"`{value}` → {text}" for value, text in values.items())


def _formula(variant: str) -> str:
    return formula(FFN(d_model=1, d_ff=1, branches=branches_of(variant)))


def markdown(layouts: Mapping[str, Layout]) -> str:
    """The page of all layouts."""
    rows = [describe(layout) for layout in layouts.values()]
    lines = [_INTRODUCTION.replace("EXAMPLE_ROW\n", EXAMPLE)]
    lines += ["| layout | branches | order | packing | stored as | biases | function |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        stored = row["orientation"]
        if row["output_orientation"] != stored:
            stored += f" (output {row['output_orientation']})"
        function = row["function"]["variant"] or f"by `{row['function']['decided_by']}`"
        if row["function"]["decided_by"] == "the Spec":
            function = "any"
        lines.append(
            f"| [`{row['name']}`](#{row['name'].replace('.', '')}) | {row['branches']} | "
            f"{row['branch_order']} | {row['packing']} | {stored} | {row['biases']['policy']} | "
            f"{function} |"
        )
    lines += ["", "## Activation names", "", _NAMES_INTRODUCTION, ""]
    for project, names in ACTIVATION_NAMES.items():
        listed = ", ".join(f"`{name}` → {activation}" for name, activation in names.items())
        lines.append(f"* {project}: {listed}")
    for row in rows:
        lines += ["", f"## {row['name']}", "", *_section(row)]
    return "\n".join(lines) + "\n"


def _section(row: Mapping[str, Any]) -> list[str]:
    lines = [row["summary"] + ".", ""]
    if row["aliases"]:
        lines += ["Also called " + ", ".join(f"`{name}`" for name in row["aliases"]) + ".", ""]
    lines += ["| tensor | holds | shape | branches | per rank of P |", "|---|---|---|---|---|"]
    for tensor in row["tensors"]:
        held = ", ".join(text for text in (tensor["branch_order"], tensor["packing"]) if text)
        extra = {"one": " (one branch)", "several": " (several)"}.get(tensor["only"], "")
        optional = " (optional)" if tensor["bias"] == "optional" else ""
        lines.append(
            f"| `{tensor['name']}`{extra}{optional} | {tensor['holds']} | {tensor['shape']} | "
            f"{held or '–'} | {tensor['tensor_parallel']} |"
        )
    lines.append("")
    for prefix in row["prefixes"]:
        numbers = (
            f", layer 0 is number {prefix['first']}, step {prefix['step']}"
            if (prefix["first"], prefix["step"]) != (0, 1)
            else ""
        )
        lines.append(f"* stands at `{prefix['template']}` ({prefix['stack'] or 'alone'}{numbers})")
    lines += [f"* {line}" for line in _function_lines(row["function"])]
    if row["biases"]["attribute"]:
        lines.append(f"* biases: config attribute `{row['biases']['attribute']}`")
    lines += [f"* not part of the FFN: `{name}`, {what}" for name, what in row["outside"].items()]
    lines += [f"* refused: `{name}`, {why}" for name, why in row["refused"].items()]
    lines += [f"* {note}" for note in row["notes"]]
    lines += [f"* seen in {_source(source)}" for source in row["sources"]]
    return lines


def _source(source: Mapping[str, str]) -> str:
    place = "::".join(part for part in (source["file"], source["symbol"]) if part)
    return f"{source['project']} {source['revision']}".strip() + (f", `{place}`" if place else "")


def _function_lines(function: Mapping[str, Any]) -> list[str]:
    if function["variant"]:
        lines = [f"computes {function['variant']}: {function['formula']}"]
    elif function["values"]:
        lines = []
        for attribute, values in function["values"].items():
            each = " (a list, one item a branch)" if function["each_branch"] else ""
            lines.append(f"function by `{attribute}`{each}: {_values(values)}")
    else:
        lines = ["function: any that a Spec can say"]
    if function["also"]:
        lines.append(f"stated by the user alone: {', '.join(function['also'])}")
    if function["assumes"]:
        assumed = ", ".join(f"`{name}` = {value}" for name, value in function["assumes"].items())
        lines.append(f"only with {assumed}")
    if function["note"]:
        lines.append(function["note"])
    return lines


_NAMES_INTRODUCTION = """\
What the words of two projects mean. Names that are missing here are refused, not approximated."""

#: A file of one row: stands in the page, and is read by the tests.
EXAMPLE = """\
[[layout]]
name = "my-packed"
summary = "w_in with both branches, the linear half first"
num_branches = 2

[[layout.prefixes]]
template = "stack.{layer}.ffn."
stack = "decoder"

[[layout.tensors]]
name = "w_in"
holds = "wi"
axes = "(branch mlp) embed"
branches = [1, 0]

[[layout.tensors]]
name = "w_out"
holds = "wo"
axes = "embed mlp"

[layout.function]
variant = "swiglu"
"""

_INTRODUCTION = """\
# Checkpoint layouts

How projects store the tensors of a feed-forward layer. This page is made from the table in
`glu_lab/layouts/tables` by `python -m glu_lab.layouts > docs/layouts.md`; `glu-lab layouts` shows
the same rows, `--json` for machines.

D is d_model, F d_ff, N the number of branches, L layers, E experts, P tensor-parallel ranks.
*Gate* is the activated branch and *up* the linear one, whatever a project calls them.
"Concatenated" is `[W_0; W_1]` along one dimension; "interleaved, width k" alternates blocks of k
channels. "out,in" is the transpose that `nn.Linear` stores.

Every rank of P holds F/P channels of every branch, packed like the whole: `[gate_r; up_r]`. A whole
packed tensor cut into P contiguous parts has the right shapes and the wrong rows.

Shapes decide none of this: not the order of branches, not `gelu` by erf or by tanh, not packed or
interleaved, and for D = F not the orientation. A layout is named by whoever converts, or proved
from the model's own config.

## From Python

Names, shapes and dtypes make a plan, after every check; values are read one tensor at a time. The
function comes from the model's config or from you, never from a shape.

```python
import numpy as np

from glu_lab.layouts import LAYOUTS, find, infer_spec, plan, reshard, to_canonical

tensors = {  # name → array; for a plan anything with a shape and a dtype
    "model.layers.0.mlp.gate_proj.weight": np.ones((24, 8), np.float16),
    "model.layers.0.mlp.up_proj.weight": np.ones((24, 8), np.float16),
    "model.layers.0.mlp.down_proj.weight": np.ones((8, 24), np.float16),
}
llama = LAYOUTS["hf-llama"]
spec = infer_spec(llama, tensors, config={"hidden_act": "silu"})
params = to_canonical(llama, tensors, spec)
assert params["wi"].shape == (1, 8, 2, 24)  # layers, D, N, F: as glu_lab.layers.ffn takes them

planned = plan(llama, find("megatron"), tensors, spec, ranks=4)
for output in planned.outputs:  # each with the few inputs that it needs
    array = output.build(lambda key: tensors[key.name])
assert output.key.name == "decoder.layers.0.mlp.linear_fc2.weight"
assert planned.settings == {"activation": "swiglu"}  # what Megatron must be told

four = planned.run(tensors)
two = reshard(find("megatron"), four, 2)
assert two[0]["decoder.layers.0.mlp.linear_fc1.weight"].shape == (24, 8)
```

## A layout of your own

A TOML file; every key is a field of `glu_lab.layouts.Layout`, and an unknown one is an error.

```toml
EXAMPLE_ROW
```

`axes` names the stored dimensions from the outside in: `embed` is D, `mlp` F, `branch` N;
parentheses join axes into one dimension, the first the slowest. `(mlp branch)` with
`interleave = 32` alternates blocks of 32.

## Summary
"""
