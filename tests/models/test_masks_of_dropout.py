"""Every sublayer of every layer drops by a mask of its own."""

import jax
import jax.numpy as jnp
import numpy as np

from glu_lab.layers.params import map_table
from glu_lab.models import Transformer, parameters
from glu_lab.models.transformer import INTERMEDIATES
from glu_lab.spec import variant
from glu_lab.spec.model import Attention, Model
from tests.models import small

D = 64


def test_layers_and_sublayers_draw_masks_of_their_own():
    """Sublayers that give 1 everywhere: the residual stream counts how often each was kept."""
    model = Model(
        kind="decoder",
        vocab_size=small.V,
        d_model=D,
        num_layers=2,
        attention=Attention(num_heads=1, num_kv_heads=1, head_dim=2, output_bias=True),
        ffn=variant("relu", d_model=D, d_ff=2, bias=True),
        residual_dropout=0.5,
    )

    def constant(path, parameter):
        one = path.endswith(("o_bias", "/bo", "_norm/scale"))
        return jnp.full(parameter.shape, float(one))

    batch = small.lm_batch(2, 9)
    transformer = Transformer(model)
    _, seen = transformer.apply(
        {"params": map_table(constant, parameters(model))},
        batch,
        dropout_key=jax.random.key(0),
        mutable=[INTERMEDIATES],
    )
    first, second = np.asarray(seen[INTERMEDIATES]["decoder"]["layers"]["ffn"]["input"])

    def counts(rows):
        """The stream before its norm, in units of one sublayer."""
        return np.rint(rows / np.where(rows > 0, rows, np.inf).min(axis=-1, keepdims=True))

    attention_0 = counts(first)
    between = counts(second) - attention_0  # the FFN of layer 0 and the attention of layer 1
    assert set(np.unique(attention_0)) == {0, 1}
    # Independent masks: binomial, whatever the first one is. 4σ of some 570 draws is 0.09.
    for kept in (0, 1):
        own = between[attention_0 == kept]
        shares = [(own == count).mean() for count in (0, 1, 2)]
        np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=0.09)
