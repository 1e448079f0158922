"""A tiny T5 that fills spans in State of the Union addresses.

The smallest model in which the variants can be told apart on two CPU cores. Two-matrix FFNs have
d_ff 384, gated ones 256: the same number of parameters exactly.

    glu-lab train --config=configs/t5_tiny_sotu.py:swiglu --workdir=/tmp/swiglu

Cost: about half a minute a run on 2 cores. Expected number: see results/quickstart/table.md.
"""

from glu_lab.configs import experiment_config, matched_ffn

D_MODEL = 64
HEAD_DIM = 16


def get_config(variant: str = "swiglu"):
    fan_in = {"distribution": "normal", "scale": 1.0, "fan": "in"}
    return experiment_config(
        name=f"t5_tiny_sotu/{variant}",
        model=dict(
            kind="encoder_decoder",
            vocab_size=2048 + 32,
            d_model=D_MODEL,
            num_layers=2,
            num_encoder_layers=2,
            max_length=128,
            attention=dict(
                num_heads=4,
                num_kv_heads=4,
                head_dim=HEAD_DIM,
                # T5 folds the 1/√K of the scores into the query's initial values.
                scale_scores=False,
                q_init={**fan_in, "scale": 1.0 / HEAD_DIM},
            ),
            ffn=matched_ffn(variant, d_model=D_MODEL, baseline_d_ff=384),
            positions=dict(kind="relative"),
            logits_scale=D_MODEL**-0.5,
        ),
        data=dict(
            corpus="sotu",
            vocab_size=2048,
            num_sentinels=32,
            objective="span_corruption",
            input_length=64,
        ),
        training=dict(
            steps=400,
            batch_size=16,
            optimizer=dict(kind="adafactor", clip_norm=1.0),
            schedule=dict(
                kind="inverse_sqrt", peak=0.1, warmup_steps=50, warmup="linear", decay_fraction=0.1
            ),
        ),
        recording=dict(log_every=20),
        eval_batch_size=32,
    )
