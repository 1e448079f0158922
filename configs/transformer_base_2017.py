"""Attention Is All You Need (Vaswani et al. 2017, arXiv 1706.03762): the base model.

LayerNorm after each residual sum, sinusoidal positions, biases in the FFN, dropout 0.1, d_model
512, d_ff 2048, 6 + 6 layers, Adam with β₂ 0.98 and ε 1e-9, inverse square root schedule with 4,000
steps of warm-up. The paper translates WMT 2014 with label smoothing 0.1 and 37,000 shared pieces;
here the architecture, optimiser and schedule are the paper's, and the task is span filling without
smoothing, so no number of the paper is to be expected.

    glu-lab train --config=configs/transformer_base_2017.py:relu --workdir=RUN
"""

from glu_lab.configs import experiment_config

D_MODEL = 512


def get_config(variant: str = "relu"):
    glorot = {"distribution": "uniform", "scale": 1.0, "fan": "avg"}
    return experiment_config(
        name=f"transformer_base_2017/{variant}",
        model=dict(
            kind="encoder_decoder",
            vocab_size=8_192 + 100,
            d_model=D_MODEL,
            num_layers=6,
            num_encoder_layers=6,
            max_length=512,
            attention=dict(
                num_heads=8,
                num_kv_heads=8,
                head_dim=64,
                **{f"{name}_init": glorot for name in "qkvo"},
            ),
            ffn=dict(variant=variant, d_ff=2048, bias=True, wi_init=glorot, wo_init=glorot),
            norm=dict(kind="layernorm", bias=True, eps=1e-6, placement="post"),
            positions=dict(kind="sinusoidal"),
            embedding_init={"distribution": "normal", "scale": 1.0, "fan": "in"},
            embedding_scale=D_MODEL**0.5,
            residual_dropout=0.1,
            embedding_dropout=0.1,
        ),
        data=dict(corpus="sotu", vocab_size=8_192, num_sentinels=100, input_length=256),
        training=dict(
            steps=100_000,
            batch_size=96,
            optimizer=dict(kind="adamw", b1=0.9, b2=0.98, eps=1e-9),
            schedule=dict(
                kind="inverse_sqrt",
                peak=(D_MODEL * 4_000) ** -0.5,
                warmup_steps=4_000,
                warmup="linear",
                decay_fraction=0.0,
            ),
        ),
        recording=dict(log_every=100, eval_every=5_000, checkpoint_every=1_000),
    )
