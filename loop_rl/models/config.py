"""Configuration of a looped model: its sizes, the parts it is made of, and the paper's named sizes (Table 1)."""

from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig

from loop_rl.errors import UserError

#: the parts that are chosen by name
CHOICES: dict[str, tuple[str | None, ...]] = {
    "injection": ("deq_qkv", "huginn_linear", "parcae", "parcae_no_norm", "ortho", "linear", "none"),
    "norm_placement": ("pre", "post", "sandwich", "sandwich_sum"),
    "final_norm": ("after_coda", "around_coda", "in_loop"),
    "mlp": ("swiglu", "relu_squared"),
    "qk_norm": (None, "full", "head"),
    "rope_layout": ("half", "interleaved"),
    "initial_state": ("normal", "truncated_normal", "embedding"),
}
LLAMA3_ROPE = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")

#: width, FFN width, query heads, key-value heads (head dim 64, vocabulary 64,256, layout 1+2xR+1)
NAMED_SIZES = {"S": (1536, 4352, 24, 6), "M": (3072, 8704, 48, 12), "L": (6144, 17408, 96, 24)}


class LoopedConfig(PretrainedConfig):
    """Layout prelude + core x depth + coda. The defaults are Llama blocks; every part is chosen by itself.

    `depth` is the default number of recurrences R; every forward may override it.

    | part | choices |
    |---|---|
    | `norm_placement` | pre: x + f(n x); post: x + n(f x); sandwich: x + n2(f(n1 x)); sandwich_sum: n2(f(n1 x) + x) |
    | `final_norm` | after_coda; around_coda: the same norm before and after it; in_loop: ending every recurrence |
    | `mlp` | swiglu; relu_squared: down(relu(up x)^2 / 2) |
    | `qk_bias` | a bias on queries and keys, before RoPE |
    | `qk_norm` | RMSNorm of queries and keys: full, over all heads with weights; head, over each without; None |
    | `rope_layout` | the pairs that turn together: half, channel i with i + head_dim / 2; interleaved, 2i with 2i + 1 |
    | `llama3_rope` | Llama 3's frequency scaling, its four numbers; None |
    | `value_embedding_layers` | physical layers, counted through, that add a gated embedding of the token to values |
    | `embedding_multiplier` | the embedding is multiplied by it |
    | `readout` | a linear map between the loop and the coda |
    | `exit_gate` | a linear map to one number, the logit of leaving the loop after a recurrence |
    | `initial_state` | z0: normal; truncated_normal, cut at 3 standard deviations; embedding, the tokens' own |

    `initial_state_std` is the standard deviation of z0, `initial_state_seed` the seed used when a forward is given
    neither state nor seeds. `checkpoint_family` and `checkpoint_config` say which released layout the weights were
    converted from, and hold its config.json for saving in that layout again.
    """

    model_type = "looped"
    keys_to_ignore_at_inference = ["cache"]

    def __init__(
        self,
        vocab_size: int = 512,
        hidden_size: int = 128,
        intermediate_size: int = 352,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        head_dim: int = 32,
        prelude_layers: int = 1,
        core_layers: int = 2,
        coda_layers: int = 1,
        depth: int = 6,
        injection: str = "ortho",
        rms_norm_eps: float = 1e-5,
        rope_theta: float = 10000.0,
        max_position_embeddings: int = 2048,
        initial_state_std: float = 1.0,
        initial_state_seed: int = 0,
        initializer_range: float = 0.02,
        norm_placement: str = "pre",
        final_norm: str = "after_coda",
        mlp: str = "swiglu",
        qk_bias: bool = False,
        qk_norm: str | None = None,
        rope_layout: str = "half",
        llama3_rope: dict[str, float] | None = None,
        value_embedding_layers: Sequence[int] = (),
        embedding_multiplier: float = 1.0,
        readout: bool = False,
        exit_gate: bool = False,
        initial_state: str = "normal",
        checkpoint_family: str | None = None,
        checkpoint_config: dict[str, Any] | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        chosen = locals()
        other = kwargs.get("model_type", kwargs.get("_class_name", self.model_type))
        if other != self.model_type:
            raise UserError(f"this is a configuration of {other}: read its folder with loop_rl.models.load_checkpoint")
        for name in ("rope_scaling", "rope_parameters"):
            if kwargs.get(name):
                raise UserError(
                    f"a looped model's config has no {name}: give rope_theta, and llama3_rope for a scaling"
                )
        for part, choices in CHOICES.items():
            if chosen[part] not in choices:
                names = ", ".join(map(str, choices))
                raise UserError(f"{part} {chosen[part]!r} is unknown: choose one of {names}")
        if num_attention_heads % num_key_value_heads:
            raise UserError(
                f"num_attention_heads ({num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({num_key_value_heads})"
            )
        if head_dim % 2:
            raise UserError(f"head_dim ({head_dim}) must be even: rotary positions turn its channels in pairs")
        if depth < 1 or core_layers < 1:
            raise UserError(f"depth ({depth}) and core_layers ({core_layers}) must be at least 1")
        if llama3_rope is not None and set(llama3_rope) != set(LLAMA3_ROPE):
            raise UserError(f"llama3_rope needs exactly {', '.join(LLAMA3_ROPE)}, got {', '.join(llama3_rope)}")
        layers = prelude_layers + core_layers + coda_layers
        if any(not 0 <= layer < layers for layer in value_embedding_layers):
            raise UserError(f"value_embedding_layers {list(value_embedding_layers)} must lie in 0..{layers - 1}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.prelude_layers = prelude_layers
        self.core_layers = core_layers
        self.coda_layers = coda_layers
        self.num_hidden_layers = layers
        self.depth = depth
        self.injection = injection
        self.rms_norm_eps = rms_norm_eps
        self.rope_theta = rope_theta
        self.max_position_embeddings = max_position_embeddings
        self.initial_state_std = initial_state_std
        self.initial_state_seed = initial_state_seed
        self.initializer_range = initializer_range
        self.norm_placement = norm_placement
        self.final_norm = final_norm
        self.mlp = mlp
        self.qk_bias = qk_bias
        self.qk_norm = qk_norm
        self.rope_layout = rope_layout
        self.llama3_rope = llama3_rope
        self.value_embedding_layers = list(value_embedding_layers)
        self.embedding_multiplier = embedding_multiplier
        self.readout = readout
        self.exit_gate = exit_gate
        self.initial_state = initial_state
        self.checkpoint_family = checkpoint_family
        self.checkpoint_config = checkpoint_config
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.pad_token_id = pad_token_id
        kwargs.pop("num_hidden_layers", None)
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)

    @classmethod
    def named(cls, size: str, **overrides: Any) -> "LoopedConfig":
        """The configuration of size S, M or L."""
        width, ffn, heads, kv_heads = NAMED_SIZES[size]
        values = dict(
            vocab_size=64256,
            hidden_size=width,
            intermediate_size=ffn,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=64,
        )
        return cls(**{**values, **overrides})

    def bank_count(self, depth: int) -> int:
        """Number of KV banks of a full cache at this depth: one per (physical layer, recurrence)."""
        return self.prelude_layers + depth * self.core_layers + self.coda_layers
