"""GLU Variants Improve Transformer (Shazeer 2020, arXiv 2002.05202): the paper's whole contract.

T5-base without dropout, span filling on C4, 524,288 steps of 128 sequences (512 in, 114 out),
Adafactor, inverse square root schedule held at 0.01 for 10,000 steps, learning rate decayed
linearly over the last 10 % of the steps. Two-matrix FFNs have d_ff 3072, gated ones 2048:
222,903,552 parameters each.

    glu-lab train --config=configs/t5_base_c4.py:swiglu --workdir=RUN --config.data.path=TFDS_FOLDER

Expected held-out log-perplexity at 524,288 steps, from the paper: ReLU 1.677, GELU 1.679, Swish
1.683, GLU 1.663, Bilinear 1.648, ReGLU 1.645, GEGLU 1.633, SwiGLU 1.636. Its `gelu` is most likely
the tanh form (Mesh-TensorFlow's). Cost: accelerator-days; three steps at batch 2 run on a laptop:

    glu-lab train --config=configs/t5_base_c4.py:swiglu --workdir=/tmp/t5_base \
        --config.data.corpus=sotu --config.training.batch_size=2 --config.training.steps=3
"""

from glu_lab.configs import experiment_config, matched_ffn

D_MODEL = 768
HEAD_DIM = 64


def get_config(variant: str = "swiglu"):
    fan_in = {"distribution": "normal", "scale": 1.0, "fan": "in"}
    return experiment_config(
        name=f"t5_base_c4/{variant}",
        model=dict(
            kind="encoder_decoder",
            vocab_size=32_128,
            d_model=D_MODEL,
            num_layers=12,
            num_encoder_layers=12,
            max_length=512,
            attention=dict(
                num_heads=12,
                num_kv_heads=12,
                head_dim=HEAD_DIM,
                scale_scores=False,
                q_init={**fan_in, "scale": 1.0 / HEAD_DIM},
            ),
            ffn=matched_ffn(variant, d_model=D_MODEL, baseline_d_ff=3072),
            positions=dict(kind="relative", num_buckets=32, max_distance=128),
            tie_embeddings=True,
            logits_scale=D_MODEL**-0.5,
        ),
        data=dict(
            corpus="c4",
            path="~/tensorflow_datasets",
            tokenizer="tests/data/assets/t5_spiece.model",
            vocab_size=32_000,
            num_sentinels=100,
            objective="span_corruption",
            input_length=512,
            target_length=114,
            noise_density=0.15,
            mean_span_length=3.0,
            logical_shards=128,
        ),
        training=dict(
            steps=524_288,
            batch_size=128,
            optimizer=dict(kind="adafactor"),
            schedule=dict(
                kind="inverse_sqrt",
                peak=0.01,
                warmup_steps=10_000,
                warmup="constant",
                decay_fraction=0.1,
            ),
        ),
        recording=dict(
            log_every=100, eval_every=16_384, telemetry_every=16_384, checkpoint_every=4_096
        ),
        eval_batch_size=128,
    )
