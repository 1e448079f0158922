"""Small experiments whose sizes divide over every mesh of eight devices."""

from glu_lab.spec import variant
from glu_lab.spec.execution import Execution
from glu_lab.spec.experiment import Data, Experiment, Optimizer
from glu_lab.spec.model import Attention, Model, Positions
from tests.training.small import small_experiment, small_training

D, F, N, V, H, K = 16, 24, 2, 384, 8, 4
LAYERS, ENCODER_LAYERS = 3, 2
BATCH, LENGTH, TARGETS = 16, 32, 12


def experiment(
    kind: str = "decoder",
    mesh: str = "data=2,fsdp=2,model=2",
    remat: str = "none",
    optimizer: str = "adamw",
    batch_size: int = BATCH,
    **training,
) -> Experiment:
    """An experiment that no data are prepared for."""
    pair = kind == "encoder_decoder"
    model = Model(
        kind=kind,
        vocab_size=V,
        d_model=D,
        num_layers=LAYERS,
        num_encoder_layers=ENCODER_LAYERS if pair else 0,
        max_length=64,
        attention=Attention(num_heads=H, num_kv_heads=H, head_dim=K, dropout=0.1),
        ffn=variant("swiglu", d_model=D, d_ff=F),
        positions=Positions(kind="relative", num_buckets=8, max_distance=12)
        if pair
        else Positions(),
        residual_dropout=0.1,
        tie_embeddings=pair,
    )
    data = Data(
        corpus="text",
        path="nowhere",
        vocab_size=320,
        num_sentinels=64 if pair else 0,
        input_length=LENGTH,
        target_length=TARGETS if pair else 0,
        objective="span_corruption" if pair else "causal_lm",
    )
    return small_experiment(
        data,
        model=model,
        training=small_training(
            batch_size=batch_size, optimizer=Optimizer(kind=optimizer, clip_norm=1.0), **training
        ),
        execution=Execution(mesh=mesh, remat=remat),
        eval_batch_size=batch_size,
    )
