"""Turbo Sparse's from-scratch comparison (Song et al. 2024, arXiv 2406.05955, appendix A.1).

A Llama-2-like decoder of about 300M parameters, dReLU against SwiGLU at the same intermediate size,
5B tokens of FineWeb, AdamW with β 0.9 and 0.95, cosine schedule, weight decay 0.01.

    glu-lab train --config=configs/lm_300m.py:drelu --workdir=RUN \
        --config.data.path='fineweb/*.jsonl.zst'

The paper reports train loss 3.154 and WikiText-2 perplexity 28.45 for dReLU, 3.146 and 28.48 for
SwiGLU, with its own tokenizer and data: not to be mixed with numbers of this file. It does not
print every width; here 24 layers, d_model 1024, 16 heads and d_ff 2816 (8/3 · d_model rounded up to
256) give 308,331,520 parameters outside of the two embedding tables. Cost: about a day of one
accelerator.
"""

from glu_lab.configs import experiment_config


def get_config(variant: str = "drelu"):
    init = {"distribution": "normal", "scale": 0.02, "fan": "none"}
    sequence, batch, tokens = 1024, 512, 5_000_000_000
    return experiment_config(
        name=f"lm_300m/{variant}",
        model=dict(
            kind="decoder",
            vocab_size=32_000,
            d_model=1024,
            num_layers=24,
            max_length=sequence,
            attention=dict(
                num_heads=16, num_kv_heads=16, head_dim=64, **{f"{n}_init": init for n in "qkvo"}
            ),
            ffn=dict(variant=variant, d_ff=2816, wi_init=init, wo_init=init),
            norm=dict(kind="rmsnorm", eps=1e-5),
            positions=dict(kind="rope"),
            tie_embeddings=False,
            embedding_init=init,
            logits_init=init,
            depth_scaled_output=True,
        ),
        data=dict(
            corpus="text",
            path="fineweb/*.jsonl.zst",
            vocab_size=32_000,
            objective="causal_lm",
            input_length=sequence,
            logical_shards=64,
        ),
        training=dict(
            steps=tokens // (sequence * batch),
            batch_size=batch,
            microbatches=16,
            optimizer=dict(kind="adamw", b1=0.9, b2=0.95, weight_decay=0.01, clip_norm=1.0),
            schedule=dict(
                kind="cosine", peak=5e-4, warmup_steps=500, warmup="linear", final_fraction=0.1
            ),
        ),
        numerics=dict(compute_dtype="bfloat16"),
        execution=dict(remat="dots"),
        recording=dict(log_every=20, eval_every=1_000, telemetry_every=1_000, checkpoint_every=500),
        eval_batch_size=64,
    )
