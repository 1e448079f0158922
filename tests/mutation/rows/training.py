"""Faults in a step: losses, learning rate, optimiser, accumulation, masks of dropout."""

from tests.mutation.mutation import Mutation

_LOSS = "glu_lab/layers/loss.py"
_PROGRAMS = "glu_lab/training/programs.py"
_OPTIMIZERS = "glu_lab/training/optimizers.py"
_SCHEDULE = "glu_lab/training/schedule.py"
_EVALUATION = "glu_lab/training/evaluation.py"
_T_LOSS = "tests/layers/test_loss_and_norm.py"
_T_GRADIENTS = "tests/training/test_gradients.py"
_T_OPTIMIZERS = "tests/training/test_optimizers.py"
_T_SCHEDULE = "tests/training/test_schedule.py"
_T_EVALUATION = "tests/training/test_evaluation.py"

ROWS = (
    Mutation(
        id="padding-counts",
        area="loss averaging",
        file=_LOSS,
        old="return jnp.sum(jnp.where(counted, values, jnp.zeros_like(values)))",
        new="return jnp.sum(values)",
        why="padding enters the loss; a longer row has another number",
        tests=(f"{_T_LOSS}::test_every_sum_is_what_it_says",),
    ),
    Mutation(
        id="padding-is-a-token",
        area="loss averaging",
        file=_LOSS,
        old='"tokens": jnp.sum(counted.astype(jnp.int32))',
        new='"tokens": jnp.sum(jnp.ones_like(weights))',
        why="the mean loss is over padding too, and looks better than it is",
        tests=(f"{_T_LOSS}::test_every_sum_is_what_it_says",),
    ),
    Mutation(
        id="mean-of-means",
        area="loss averaging",
        file=_PROGRAMS,
        old="return total / tokens.astype(total.dtype), sums",
        new='return total / (sums["tokens"] * key.microbatches).astype(total.dtype), sums',
        why="a micro-batch with few tokens pulls as hard as one with many",
        tests=(f"{_T_GRADIENTS}::test_microbatches_of_11_and_101_tokens_equal_one_batch_of_112",),
    ),
    Mutation(
        id="z-loss-sign",
        area="loss averaging",
        file=_PROGRAMS,
        old='total = total + key.z_loss * sums["z_squared"]',
        new='total = total - key.z_loss * sums["z_squared"]',
        why="the term that should keep logits small drives them apart",
        tests=(f"{_T_GRADIENTS}::test_gradient_is_the_slope_of_the_reference_loss[0.1]",),
    ),
    Mutation(
        id="error-of-the-mean",
        area="loss averaging",
        file=_EVALUATION,
        old="return math.sqrt(variance / (self.tokens - 1))",
        new="return math.sqrt(variance)",
        why="a standard deviation is shown as a standard error",
        tests=(f"{_T_EVALUATION}::test_standard_error_is_that_of_the_mean_over_all_tokens",),
    ),
    Mutation(
        id="bits-in-nats",
        area="loss averaging",
        file=_EVALUATION,
        old="return nats / math.log(2) / utf8_bytes",
        new="return nats / utf8_bytes",
        why="bits per byte that no other project's compare with",
        tests=(f"{_T_EVALUATION}::test_a_uniform_guess_over_bytes_costs_eight_bits_a_byte",),
    ),
    Mutation(
        id="warm-up-from-zero",
        area="learning rate",
        file=_SCHEDULE,
        old="return schedule.peak * (step + 1) / warmup",
        new="return schedule.peak * step / warmup",
        why="the first step does nothing, and the curve is one step late",
        tests=(_T_SCHEDULE,),
    ),
    Mutation(
        id="inverse-square-root-not-held",
        area="learning rate",
        file=_SCHEDULE,
        old="math.sqrt(max(warmup, 1) / max(step, warmup, 1))",
        new="math.sqrt(max(warmup, 1) / max(step, 1))",
        why="T5's constant warm-up starts a hundred times too high",
        tests=(_T_SCHEDULE,),
    ),
    Mutation(
        id="cosine-without-its-floor",
        area="learning rate",
        file=_SCHEDULE,
        old="return rate * (floor + (1 - floor) * 0.5",
        new="return rate * ((1 - floor) * 0.5",
        why="the rate ends at zero, where a tenth was asked for",
        tests=(_T_SCHEDULE,),
    ),
    Mutation(
        id="decay-starts-late",
        area="learning rate",
        file=_SCHEDULE,
        old="left = (steps - step) / (decay + 1)",
        new="left = (steps - step) / decay",
        why="the last step of a decayed run is off by one",
        tests=(_T_SCHEDULE,),
    ),
    Mutation(
        id="last-microbatch-only",
        area="optimiser and accumulation",
        file=_PROGRAMS,
        old="lambda t, g: t + g.astype(t.dtype), total, grads)",
        new="lambda t, g: g.astype(t.dtype), total, grads)",
        why="accumulation keeps the gradient of the last micro-batch",
        tests=(f"{_T_GRADIENTS}::test_microbatches_of_11_and_101_tokens_equal_one_batch_of_112",),
    ),
    Mutation(
        id="clipping-always-scales",
        area="optimiser and accumulation",
        file=_PROGRAMS,
        old="shrink = jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-12))",
        new="shrink = limit / jnp.maximum(norm, 1e-12)",
        why="small gradients are blown up to the clipping norm",
        tests=(
            f"{_T_GRADIENTS}::test_a_step_clips_by_the_global_norm_and_moves_against_the_gradient[100.0]",
        ),
    ),
    Mutation(
        id="ascent",
        area="optimiser and accumulation",
        file=_PROGRAMS,
        old='jax.tree.map(jnp.subtract, state["params"], update)',
        new='jax.tree.map(jnp.add, state["params"], update)',
        why="steps go up the loss",
        tests=(
            f"{_T_GRADIENTS}::test_a_step_clips_by_the_global_norm_and_moves_against_the_gradient[0.01]",
        ),
    ),
    Mutation(
        id="bad-step-is-kept",
        area="optimiser and accumulation",
        file=_PROGRAMS,
        old="lambda a, b: jnp.where(finite, a, b), value, state[name])",
        new="lambda a, b: a, value, state[name])",
        why="the state after a non-finite step is NaN, and with it the next checkpoint",
        tests=(
            "tests/training/test_divergence.py"
            "::test_a_bad_step_changes_nothing_and_neither_do_those_after_it",
        ),
    ),
    Mutation(
        id="norms-decay",
        area="optimiser and accumulation",
        file=_OPTIMIZERS,
        old='decayed = {path for path, p in parameters.items() if p.role in ("matrix", "head")}',
        new="decayed = set(parameters)",
        why="weight decay pulls norm scales and embeddings to zero",
        tests=(f"{_T_OPTIMIZERS}::test_adamw_equals_torch",),
    ),
    Mutation(
        id="second-moment-rate",
        area="optimiser and accumulation",
        file=_OPTIMIZERS,
        old="b2=spec.b2",
        new="b2=spec.b1",
        why="Adam with β2 = 0.9: noisy, and no longer the stated run",
        tests=(f"{_T_OPTIMIZERS}::test_adamw_equals_torch",),
    ),
    Mutation(
        id="adafactor-unclipped",
        area="optimiser and accumulation",
        file=_OPTIMIZERS,
        old="        optax.clip_by_block_rms(1.0),\n",
        new="",
        why="T5's optimiser without its update clipping: early steps are far too large",
        tests=(f"{_T_OPTIMIZERS}::test_adafactor_sees_one_layer_and_one_branch_at_a_time",),
    ),
    Mutation(
        id="muon-scale",
        area="optimiser and accumulation",
        file=_OPTIMIZERS,
        old="0.2 * max(u.shape) ** 0.5 * u",
        new="0.2 * min(u.shape) ** 0.5 * u",
        why="Muon's steps of a tall matrix are smaller than AdamW's",
        tests=(
            f"{_T_OPTIMIZERS}::test_muon_orthogonalises_each_matrix_and_leaves_the_rest_to_adam",
        ),
    ),
    Mutation(
        id="same-mask-every-step",
        area="dropout",
        file=_PROGRAMS,
        old="jax.random.fold_in(jax.random.fold_in(rng, 1), step), microbatch)",
        new="jax.random.fold_in(rng, 1), microbatch)",
        why="one subnetwork is trained in place of many",
        tests=(
            "tests/training/test_programs.py"
            "::test_dropout_differs_between_steps_microbatches_and_seeds",
        ),
    ),
    Mutation(
        id="evaluation-with-dropout",
        area="dropout",
        file=_PROGRAMS,
        old='"evaluate": (lambda p, b: self._sums(p, b, None),',
        new='"evaluate": (lambda p, b: self._sums(p, b, jax.random.key(0)),',
        why="validation is of a thinned network, worse than the model is",
        tests=(f"{_T_EVALUATION}::test_validation_loss_is_that_of_a_float64_log_softmax",),
    ),
    Mutation(
        id="validation-loses-its-last-batch",
        area="loss averaging",
        file=_EVALUATION,
        old="""    if previous is not None:
        totals.add(previous)
    return totals""",
        new="    return totals",
        why="a part of the validation text is never scored",
        tests=(f"{_T_EVALUATION}::test_validation_counts_every_token_once",),
    ),
)
