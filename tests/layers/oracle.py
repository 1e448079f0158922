"""The feed-forward formula in float64 NumPy, written from the formula and not from the library.

a_i = pre_i( scale_i · (x W_i + b_i) )
H   = Π_i ( post_i( φ_i(a_i) ) + offset_i ) + b_product
Y   = output_scale · ( dropout(H) W_o + b_o )
"""

import numpy as np

from tests.activations.reference import FORMULAS


def phi(activation, a, scalars):
    """φ by the formulas of the activation tests; constants are written into the name."""
    if activation.name == "swish":
        (beta,) = activation.constants
        return a / (1 + np.exp(-beta * a))
    return FORMULAS[activation.name](a, *scalars)


def ffn(params, x, spec, keep=None):
    """Y for rows x; `keep` is the dropout mask, 1 where an element survives."""
    params = {name: np.asarray(value, np.float64) for name, value in params.items()}
    x = np.asarray(x, np.float64)
    hidden = 1.0
    for i, branch in enumerate(spec.branches):
        a = x @ params["wi"][:, i, :]
        if branch.bias:
            a = a + params[f"bi_{i}"]
        a = branch.scale * a
        if branch.pre is not None:
            a = np.minimum(np.maximum(a, branch.pre[0]), branch.pre[1])
        scalars = [params[f"phi_{i}_{name}"] for name in branch.activation.row.learned]
        factor = phi(branch.activation, a, scalars)
        if branch.post is not None:
            factor = np.minimum(np.maximum(factor, branch.post[0]), branch.post[1])
        hidden = hidden * (factor + branch.offset)
    if spec.product_bias:
        hidden = hidden + params["bp"]
    if keep is not None:
        hidden = hidden * keep / (1 - spec.hidden_dropout)
    y = hidden @ params["wo"]
    if spec.output_bias:
        y = y + params["bo"]
    return spec.output_scale * y
