"""A ``config.json`` of Hugging Face as a Model Spec, and a Model Spec as such a config.

What a config leaves out is taken from nowhere but the definition of its ``model_type``; what it
states and a Spec cannot say is refused by name.
"""

from collections.abc import Mapping
from typing import Any, Literal

from glu_lab.errors import LayoutError
from glu_lab.layouts import branches_from_config, find
from glu_lab.layouts.function import fit
from glu_lab.pretrained.agreement import differences
from glu_lab.pretrained.attributes import Attributes
from glu_lab.pretrained.families import family_of
from glu_lab.pretrained.weights import ffn_layout
from glu_lab.spec.ffn import FFN
from glu_lab.spec.model import Attention, Model, Norm, Positions
from glu_lab.spec.variants import with_bias

#: Attributes that change no logits: tokens, initialisation, bookkeeping, how the code runs.
NEUTRAL = frozenset(
    """
    _attn_implementation _commit_hash _name_or_path architectures bos_token_id classifier_dropout
    chunk_size_feed_forward decoder_start_token_id dtype eos_token_id finetuning_task id2label
    initializer_factor initializer_range is_encoder_decoder is_llama_config label2id
    max_window_layers model_type n_positions output_attentions output_hidden_states output_past
    pad_token_id pretraining_tp problem_type rope_interleaved return_dict task_specific_params
    tokenizer_class torch_dtype transformers.js_config transformers_version unk_token_id use_cache
    use_return_dict
    """.split()
)

#: Model types of the Llama family → which projections of attention have biases, and whether queries
#: and keys are normed. ``attention_bias`` asks the config.
_LLAMA: Mapping[str, tuple[str, str, bool]] = {
    "llama": ("attention_bias", "attention_bias", False),
    "mistral": ("never", "never", False),
    "qwen2": ("always", "never", False),
    "qwen3": ("attention_bias", "attention_bias", True),
}


def read_model(config: Mapping[str, Any], source: str = "the config") -> Model:
    """The function that a config states; initialisers and dropouts are the defaults of a Spec.

    Args:
        config: of a ``llama``, ``mistral``, ``qwen2``, ``qwen3`` or ``t5``.
        source: what it is, for messages.

    Raises:
        LayoutError: for attributes that are missing or cannot be said in a Spec.
        UnknownNameError: for an activation that is not known.
    """
    attributes = Attributes(config, source)
    kind = attributes.take("model_type")
    if kind in _LLAMA:
        model = _llama(attributes, config, kind)
    elif kind == "t5":
        model = _t5(attributes, config)
    else:
        raise LayoutError(
            f"{source} is of model_type {kind!r}; read are {', '.join((*_LLAMA, 't5'))}."
        )
    attributes.finish(NEUTRAL)
    return model


def _llama(a: Attributes, config: Mapping[str, Any], kind: str) -> Model:
    D, heads = a.integer("hidden_size"), a.integer("num_attention_heads")
    qkv, output, qk_norm = _LLAMA[kind]
    stated = a.flag("attention_bias", False)
    biases = {"always": True, "never": False, "attention_bias": stated}
    if stated and "attention_bias" not in (qkv, output):
        raise LayoutError(f"{kind} has no attribute attention_bias, and the config sets it.")
    max_length = a.integer("max_position_embeddings")
    _full_attention(a, kind, max_length)
    branches = branches_from_config(find("hf-llama"), config)
    a.take("hidden_act")
    mlp_bias = a.flag("mlp_bias", False)
    if mlp_bias and kind != "llama":
        raise LayoutError(f"{kind} has no attribute mlp_bias, and the config sets it.")
    return Model(
        kind="decoder",
        vocab_size=a.integer("vocab_size"),
        d_model=D,
        num_layers=a.integer("num_hidden_layers"),
        max_length=max_length,
        attention=Attention(
            num_heads=heads,
            num_kv_heads=a.integer("num_key_value_heads", heads),
            head_dim=_head_dim(a, D, heads),
            qkv_bias=biases[qkv],
            output_bias=biases[output],
            qk_norm=qk_norm,
            dropout=a.number("attention_dropout", 0.0),
        ),
        ffn=FFN(
            branches=with_bias(branches, mlp_bias),
            d_model=D,
            d_ff=a.integer("intermediate_size"),
            output_bias=mlp_bias,
        ),
        norm=Norm(kind="rmsnorm", eps=a.number("rms_norm_eps")),
        positions=Positions(kind="rope", rope_theta=_rope_theta(a)),
        # Written whenever it differs from PretrainedConfig's own default, true; Llama's is false.
        tie_embeddings=a.flag("tie_word_embeddings", True),
    )


def _head_dim(a: Attributes, D: int, heads: int) -> int:
    if "head_dim" not in a and D % heads:
        raise LayoutError(
            f"hidden_size={D} does not divide by num_attention_heads={heads}, and the config "
            "states no head_dim."
        )
    return a.integer("head_dim", D // heads)


def _rope_theta(a: Attributes) -> float:
    """θ, from either form that transformers has written."""
    a.only("rope_scaling")
    if "rope_parameters" not in a:
        return a.number("rope_theta")
    parameters = Attributes(a.take("rope_parameters"), "rope_parameters of the config")
    parameters.only("rope_type", "default")
    parameters.only("partial_rotary_factor", 1.0)
    theta = parameters.number("rope_theta")
    parameters.finish(())
    if "rope_theta" in a and a.number("rope_theta") != theta:
        raise LayoutError("rope_theta and rope_parameters.rope_theta of the config differ.")
    return theta


def _full_attention(a: Attributes, kind: str, max_length: int) -> None:
    """Refuses windows that some query would see the edge of."""
    window = a.take("sliding_window", None)
    off = kind.startswith("qwen") and not a.flag("use_sliding_window", False)
    if window is not None and not off and window < max_length:
        raise LayoutError(
            f"sliding_window={window} is under max_position_embeddings={max_length}; attention "
            "here sees all positions before it."
        )
    layer_types = a.take("layer_types", [])
    if set(layer_types) - {"full_attention"}:
        raise LayoutError(f"layer_types {sorted(set(layer_types))} are not all full_attention.")


def _t5(a: Attributes, config: Mapping[str, Any]) -> Model:
    gated = str(config.get("feed_forward_proj", "")).startswith("gated-")
    branches = branches_from_config(find("hf-t5-gated" if gated else "hf-t5"), config)
    for name in ("feed_forward_proj", "dense_act_fn", "is_gated_act"):
        a.take(name, None)
    a.only("is_decoder", False)
    D, heads = a.integer("d_model"), a.integer("num_heads")
    tied = a.flag("tie_word_embeddings", True)
    # T5 1.0 scales what its tied head reads; a config of 1.1 unties the head and drops the scale.
    scaled = a.flag("scale_decoder_outputs", tied)
    dropout = a.number("dropout_rate", 0.0)
    layers = a.integer("num_layers")
    return Model(
        kind="encoder_decoder",
        vocab_size=a.integer("vocab_size"),
        d_model=D,
        num_layers=a.integer("num_decoder_layers", layers),
        num_encoder_layers=layers,
        attention=Attention(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=a.integer("d_kv"),
            scale_scores=False,
            dropout=dropout,
        ),
        ffn=FFN(branches=branches, d_model=D, d_ff=a.integer("d_ff"), hidden_dropout=dropout),
        norm=Norm(kind="rmsnorm", eps=a.number("layer_norm_epsilon")),
        positions=Positions(
            kind="relative",
            num_buckets=a.integer("relative_attention_num_buckets"),
            max_distance=a.integer("relative_attention_max_distance", 128),
        ),
        tie_embeddings=tied,
        logits_scale=D**-0.5 if scaled else 1.0,
        residual_dropout=dropout,
        embedding_dropout=dropout,
        final_dropout=dropout,
    )


ModelType = Literal["llama", "mistral", "qwen2", "qwen3", "t5"]


def write_config(model: Model, model_type: ModelType) -> dict[str, Any]:
    """The config with which transformers computes a model.

    Args:
        model: what it shall compute.
        model_type: as which architecture.

    Raises:
        LayoutError: when that architecture does not compute it, with what differs.
    """
    family = family_of("hf", model_type)
    settings = dict(fit(ffn_layout(family, model), model.ffn).settings)
    heads = model.attention
    common = {
        "model_type": model_type,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tie_embeddings,
        **settings,
    }
    if model_type == "t5":
        config = {
            **common,
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "d_model": model.d_model,
            "d_kv": heads.head_dim,
            "d_ff": model.ffn.d_ff,
            "num_layers": model.num_encoder_layers or model.num_layers,
            "num_decoder_layers": model.num_layers,
            "num_heads": heads.num_heads,
            "relative_attention_num_buckets": model.positions.num_buckets,
            "relative_attention_max_distance": model.positions.max_distance,
            "layer_norm_epsilon": model.norm.eps,
            "dropout_rate": model.residual_dropout,
            "scale_decoder_outputs": model.logits_scale != 1.0,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
        }
    else:
        config = {
            **common,
            "architectures": [f"{model_type.capitalize()}ForCausalLM"],
            "hidden_size": model.d_model,
            "intermediate_size": model.ffn.d_ff,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": heads.num_heads,
            "num_key_value_heads": heads.num_kv_heads,
            "head_dim": heads.head_dim,
            "max_position_embeddings": model.max_length,
            "rms_norm_eps": model.norm.eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": model.positions.rope_theta},
        }
        if model_type in ("llama", "qwen3"):
            config["attention_bias"] = heads.qkv_bias
        if model_type == "llama":
            config["mlp_bias"] = model.ffn.output_bias
        if model_type == "mistral":
            config["sliding_window"] = None
    if different := differences(model, read_model(config)):
        raise LayoutError(f"{model_type} does not compute this model: {'; '.join(different)}.")
    return config
