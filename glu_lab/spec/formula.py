"""An FFN Spec as a formula for people."""

import math

from glu_lab.spec.ffn import FFN, Branch, Clamp


def formula(spec: FFN) -> str:
    """An FFN's hidden state as text, ``silu(xW₁) ⊙ (xW₂)``; biases and initialisers aside."""
    digits = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
    parts = []
    for index, branch in enumerate(spec.branches, start=1):
        weight = "xW" if spec.num_branches == 1 else f"xW{str(index).translate(digits)}"
        parts.append(_branch(branch, weight))
    return " ⊙ ".join(parts)


def _branch(branch: Branch, argument: str) -> str:
    if branch.scale != 1.0:
        argument = f"{branch.scale:g}·{argument}"
    if branch.pre is not None:
        argument = _clamp(argument, branch.pre)
    linear = str(branch.activation) == "linear"
    text = f"({argument})" if linear else f"{branch.activation}({argument})"
    if branch.post is not None:
        text = _clamp(text, branch.post)
    return f"({text} {branch.offset:+g})" if branch.offset else text


def _clamp(text: str, clamp: Clamp) -> str:
    low, high = clamp
    if math.isinf(low):
        return f"min({text}, {high:g})"
    if math.isinf(high):
        return f"max({text}, {low:g})"
    return f"clip({text}, {low:g}, {high:g})"
