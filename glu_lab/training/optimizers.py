"""Update rules from optax, applied matrix by matrix.

Layers and branches are stacked in one array each. An optimiser that looks at a whole matrix
(Adafactor's factored moments and block RMS, Muon's orthogonalisation) must see one layer and one
branch at a time, with heads folded into rows or columns: the parameter table says how. Updates are
returned per unit of learning rate, so that the rate is data to the compiled step.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from glu_lab.layers.dtypes import resolve
from glu_lab.layers.params import STACK_AXES, Parameter, Table, flatten, leaves, unflatten
from glu_lab.layers.placement import partition_spec
from glu_lab.spec.experiment import Optimizer
from glu_lab.spec.numerics import Numerics
from glu_lab.spec.sharding import Rules

Flat = dict[str, Array]


class Rule(NamedTuple):
    """An update rule over parameter trees.

    Attributes:
        init: parameters → state.
        update: (gradients, state, parameters) → (direction, state); the step subtracts
            ``learning_rate · direction``.
        layouts: (shapes of a state, rules) → the layout of each of its arrays: that of its
            parameter, as far as the array has the parameter's dimensions.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, Any, Any], tuple[Any, Any]]
    layouts: Callable[[Any, Rules], Any]


class _View:
    """One parameter as (stack, rows, columns) or (stack, elements), and back."""

    def __init__(self, parameter: Parameter):
        axes = parameter.axes
        groups = [[a for a in axes if a in STACK_AXES]]
        rest = [a for a in axes if a not in STACK_AXES]
        if parameter.role == "vector":
            groups.append(rest)
        else:
            groups.append([a for a in rest if a in parameter.inputs])
            groups.append([a for a in rest if a in parameter.outputs])
        self._groups = groups
        self._order = [axes.index(a) for group in groups for a in group]
        self.stack = parameter.size(tuple(groups[0]))
        self._shape = tuple(parameter.size(tuple(group)) for group in groups)
        self._moved = tuple(parameter.shape[i] for i in self._order)

    def layout(self, shape: tuple[int, ...], rules: Rules) -> PartitionSpec:
        """The layout of a moment of the view: all its dimensions, or the stack and one other.

        Of folded dimensions the first one's split counts: it is the outermost.
        """
        splits = [rules.splits(group[:1])[0] if group else () for group in self._groups]
        whole = list(zip(self._shape, splits, strict=True))
        if shape == self._shape:
            return partition_spec(tuple(splits))
        if len(shape) == 2 and shape[0] == self.stack:
            # A factored moment keeps rows or columns; where these are equally many, either fits.
            for size, split in reversed(whole[1:]):
                if size == shape[1]:
                    return partition_spec((splits[0], split))
        return PartitionSpec()

    def forward(self, x: Array) -> Array:
        return x.transpose(self._order).reshape(self._shape)

    def backward(self, x: Array) -> Array:
        inverse = sorted(range(len(self._order)), key=self._order.__getitem__)
        return x.reshape(self._moved).transpose(inverse)


@contextlib.contextmanager
def _optax_promotion() -> Iterator[None]:
    """JAX's default promotion, which optax is written for, where a user has set strict rules."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def per_matrix(transformation: optax.GradientTransformation, table: Table) -> Rule:
    """Applies a transformation to every layer and branch by itself.

    Args:
        transformation: from optax; sees each matrix as (inputs, outputs), heads folded, and each
            vector flat.
        table: the model's parameters, or a part of them.

    Returns:
        A rule over flat dicts of arrays.
    """
    views = {path: _View(parameter) for path, parameter in leaves(table)}
    groups: dict[int, list[str]] = {}
    for path, view in views.items():
        groups.setdefault(view.stack, []).append(path)

    def split(flat: Flat) -> dict[str, Flat]:
        return {
            str(stack): {path: views[path].forward(flat[path]) for path in paths}
            for stack, paths in groups.items()
        }

    def init(params: Flat) -> Any:
        with _optax_promotion():
            return {
                stack: jax.vmap(transformation.init)(group)
                for stack, group in split(params).items()
            }

    def update(grads: Flat, state: Any, params: Flat) -> tuple[Flat, Any]:
        grad_groups, param_groups = split(grads), split(params)
        directions, new_state = {}, {}
        for stack, group in grad_groups.items():
            with _optax_promotion():
                out, new_state[stack] = jax.vmap(transformation.update)(
                    group, state[stack], param_groups[stack]
                )
            flat = cast(Flat, out)
            directions.update({path: views[path].backward(x) for path, x in flat.items()})
        return directions, new_state

    def layouts(state: Any, rules: Rules) -> Any:
        def one(path: Any, x: Any) -> PartitionSpec:
            names = [str(getattr(entry, "key", "")) for entry in path]
            owner = next((name for name in names if name in views), None)
            return PartitionSpec() if owner is None else views[owner].layout(x.shape, rules)

        return jax.tree_util.tree_map_with_path(one, state)

    return Rule(init, update, layouts)


def _adafactor(spec: Optimizer) -> optax.GradientTransformation:
    """Shazeer & Stern 2018 (arXiv 1804.04235) without momentum, relative step by the caller."""
    return optax.chain(
        optax.scale_by_factored_rms(decay_rate=spec.decay_exponent),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(),
    )


def _adam(spec: Optimizer) -> optax.GradientTransformation:
    return optax.scale_by_adam(b1=spec.b1, b2=spec.b2, eps=spec.eps)


def _muon(spec: Optimizer) -> optax.GradientTransformation:
    """Jordan et al. 2024, scaled to AdamW's update size (Liu et al. 2025, arXiv 2502.16982)."""

    def matrices(updates: Any) -> Any:
        # Said for each leaf: the default, None for "all are matrices", fails on a tree in
        # optax 0.2.8.
        return jax.tree.map(
            lambda _: optax.contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=1), updates
        )

    return optax.chain(
        optax.contrib.scale_by_muon(
            beta=spec.momentum, nesterov=True, weight_dimension_numbers=matrices
        ),
        optax.stateless(
            lambda updates, params: jax.tree.map(lambda u: 0.2 * max(u.shape) ** 0.5 * u, updates)
        ),
    )


def _cast(tree: Any, dtype: Any) -> Any:
    """Floating leaves in a dtype; integers as they are."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def build(spec: Optimizer, table: Table, numerics: Numerics) -> Rule:
    """The update rule of a run.

    Args:
        spec: which optimiser.
        table: the model's parameters.
        numerics: ``optimizer_state_dtype`` is how moments are stored; arithmetic is float32 at
            least.

    Returns:
        A rule over parameter trees. Gradients are clipped by their global norm before it, outside.
    """
    parameters = dict(leaves(table))
    if spec.kind == "muon":
        matrices = {path: p for path, p in parameters.items() if p.role == "matrix"}
        others = {path: p for path, p in parameters.items() if p.role != "matrix"}
        parts = {"muon": (matrices, _muon(spec)), "adam": (others, _adam(spec))}
    else:
        make = {"adafactor": _adafactor, "adamw": _adam}[spec.kind]
        parts = {spec.kind: (parameters, make(spec))}
    rules_by_name = {name: (part, per_matrix(tx, part)) for name, (part, tx) in parts.items()}
    decayed = {path for path, p in parameters.items() if p.role in ("matrix", "head")}
    store = resolve(numerics.optimizer_state_dtype)
    work = np.promote_types(store, np.float32)
    work = np.promote_types(work, resolve(numerics.parameter_dtype))

    def init(params: Any) -> Any:
        flat = _cast(flatten(params), work)
        state = {
            name: rule.init({path: flat[path] for path in part})
            for name, (part, rule) in rules_by_name.items()
        }
        return _cast(state, store)

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        flat_params, flat_grads = _cast(flatten(params), work), _cast(flatten(grads), work)
        directions, new_state = {}, {}
        for name, (part, rule) in rules_by_name.items():
            out, new = rule.update(
                {path: flat_grads[path] for path in part},
                _cast(state[name], work),
                {path: flat_params[path] for path in part},
            )
            directions.update(out)
            new_state[name] = _cast(new, store)
        if spec.weight_decay:
            for path in decayed:
                directions[path] = directions[path] + spec.weight_decay * flat_params[path]
        return unflatten(directions), new_state

    def layouts(state: Any, rules: Rules) -> Any:
        return {name: rule.layouts(state[name], rules) for name, (_, rule) in rules_by_name.items()}

    return Rule(init, update, layouts)
