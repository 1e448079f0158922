"""One FFN read out of a whole file, apart from any plan."""

import numpy as np
import pytest

from glu_lab.errors import LayoutError
from glu_lab.layers.params import leaves
from glu_lab.layouts import (
    CANONICAL,
    LAYOUTS,
    ffns_of,
    find,
    from_canonical,
    infer_spec,
    plan,
    read_ffn,
    reshard,
    take_stock,
)
from glu_lab.models.tables import parameters
from glu_lab.spec import variant
from tests.layouts import rows
from tests.models import small


@pytest.mark.parametrize("name", rows.NAMES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_ffn_of_a_file_is_the_one_that_was_written(name, ranks):
    layout = LAYOUTS[name]
    spec = rows.specs(layout, 3, 4 * rows.width(layout))[-1]
    leading = rows.leadings(layout)[0 if name == "glu-lab" else -1]
    params = rows.random_params(spec, leading)
    whole = from_canonical(layout, params, spec, leading=leading)
    files = reshard(layout, [whole], ranks, spec=spec)
    stock = take_stock(layout, files, spec)
    assert len(ffns_of(stock)) == np.prod([rows.SIZES[axis] for axis in leading], dtype=int)
    for stack, layer, expert in ffns_of(stock):
        at = {"layer": layer, "expert": expert}
        index = tuple(at[axis] for axis in leading)
        got = read_ffn(stock, lambda key: files[key.rank][key.name], stack, layer, expert)
        rows.assert_same(got, {key: value[index] for key, value in params.items()})


def test_only_the_tensors_of_one_ffn_are_read():
    spec = variant("swiglu", d_model=2, d_ff=3)
    params = rows.random_params(spec, ("layer", "expert"))
    tensors = from_canonical(LAYOUTS["mixtral"], params, spec, leading=("layer", "expert"))
    stock = take_stock(LAYOUTS["mixtral"], tensors, spec)
    asked = []
    read_ffn(stock, lambda key: asked.append(key.name) or tensors[key.name], "decoder", 2, 1)
    start = "model.layers.2.block_sparse_moe.experts.1."
    assert sorted(asked) == [f"{start}w{i}.weight" for i in (1, 2, 3)]
    with pytest.raises(
        LayoutError, match=r"no FFN of stack 'decoder', layer 3, expert 0; the first"
    ):
        read_ffn(stock, lambda key: tensors[key.name], "decoder", 3, 0)


def test_a_plan_writes_what_reading_finds():
    """llama, packed value first, over four ranks: each FFN reads back the same."""
    spec = variant("swiglu", d_model=4, d_ff=8)
    params = rows.random_params(spec, ("layer",))
    tensors = from_canonical(LAYOUTS["hf-llama"], params, spec, leading=("layer",))
    planned = plan(LAYOUTS["hf-llama"], find("gpt-neox"), tensors, spec, ranks=4)
    written = planned.run(tensors)
    stock = take_stock(find("gpt-neox"), written, spec)
    for place in ffns_of(stock):
        rows.assert_same(
            read_ffn(stock, lambda key: written[key.rank][key.name], *place),
            read_ffn(planned.source, lambda key: tensors[key.name], *place),
        )


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_the_names_of_our_own_models_are_the_canonical_layout(kind):
    model = small.t5("geglu_tanh") if kind == "encoder_decoder" else small.decoder()
    tensors = {
        path: np.zeros(parameter.shape, np.float32) for path, parameter in leaves(parameters(model))
    }
    spec = infer_spec(CANONICAL, tensors, variant=small_text(model))
    assert (spec.d_model, spec.d_ff) == (model.ffn.d_model, model.ffn.d_ff)
    stock = take_stock(CANONICAL, tensors, spec)
    layers = {stack: list(found) for stack, found in stock.places().items()}
    want = {"decoder": list(range(model.num_layers))}
    if kind == "encoder_decoder":
        want["encoder"] = list(range(model.num_encoder_layers))
    assert layers == want
    assert not [name for name in stock.recognised.rest if "/ffn/" in name]


def small_text(model):
    return "*".join(str(branch.activation) for branch in model.ffn.branches)
