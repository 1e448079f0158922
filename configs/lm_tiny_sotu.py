"""A tiny Llama-family language model of State of the Union addresses.

Two-matrix FFNs have d_ff 384, gated ones 256: the same number of parameters exactly. Bits per byte
of its validation text can be compared across tokenizers.

    glu-lab train --config=configs/lm_tiny_sotu.py:swiglu --workdir=/tmp/lm

Cost: about half a minute on 2 cores.
"""

from glu_lab.configs import experiment_config, matched_ffn

D_MODEL = 64


def get_config(variant: str = "swiglu"):
    init = {"distribution": "truncated_normal", "scale": 1.0, "fan": "in"}
    return experiment_config(
        name=f"lm_tiny_sotu/{variant}",
        model=dict(
            kind="decoder",
            vocab_size=2048,
            d_model=D_MODEL,
            num_layers=4,
            max_length=128,
            attention=dict(
                num_heads=4,
                num_kv_heads=2,
                head_dim=16,
                qk_norm=True,
                **{f"{name}_init": init for name in "qkvo"},
            ),
            ffn=matched_ffn(
                variant, d_model=D_MODEL, baseline_d_ff=384, wi_init=init, wo_init=init
            ),
            positions=dict(kind="rope"),
            embedding_init={"distribution": "normal", "scale": 0.02, "fan": "none"},
            depth_scaled_output=True,
        ),
        data=dict(corpus="sotu", vocab_size=2048, objective="causal_lm", input_length=128),
        training=dict(
            steps=300,
            batch_size=16,
            optimizer=dict(kind="adamw", weight_decay=0.1, clip_norm=1.0),
            schedule=dict(
                kind="cosine", peak=4e-3, warmup_steps=30, warmup="linear", final_fraction=0.1
            ),
        ),
        recording=dict(log_every=20),
        eval_batch_size=16,
    )
