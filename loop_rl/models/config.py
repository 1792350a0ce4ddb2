"""Configuration of a looped model, and the three named sizes of the paper (Table 1)."""

from typing import Any

from transformers import PretrainedConfig

from loop_rl.errors import UserError

INJECTIONS = ("deq_qkv", "huginn_linear", "parcae", "parcae_no_norm", "ortho")

#: width, FFN width, query heads, key-value heads (head dim 64, vocabulary 64,256, layout 1+2xR+1)
NAMED_SIZES = {"S": (1536, 4352, 24, 6), "M": (3072, 8704, 48, 12), "L": (6144, 17408, 96, 24)}


class LoopedConfig(PretrainedConfig):
    """Layout prelude + core x depth + coda of Llama blocks.

    `depth` is the default number of recurrences R; every forward may override it. `initial_state_std` is the standard
    deviation of the Gaussian z0, `initial_state_seed` the seed used when a forward is given neither state nor seeds.
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
        **kwargs: Any,
    ) -> None:
        if injection not in INJECTIONS:
            raise UserError(f"injection {injection!r} is unknown: choose one of {', '.join(INJECTIONS)}")
        if num_attention_heads % num_key_value_heads:
            raise UserError(
                f"num_attention_heads ({num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({num_key_value_heads})"
            )
        if depth < 1 or core_layers < 1:
            raise UserError(f"depth ({depth}) and core_layers ({core_layers}) must be at least 1")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.prelude_layers = prelude_layers
        self.core_layers = core_layers
        self.coda_layers = coda_layers
        self.num_hidden_layers = prelude_layers + core_layers + coda_layers
        self.depth = depth
        self.injection = injection
        self.rms_norm_eps = rms_norm_eps
        self.rope_theta = rope_theta
        self.max_position_embeddings = max_position_embeddings
        self.initial_state_std = initial_state_std
        self.initial_state_seed = initial_state_seed
        self.initializer_range = initializer_range
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
