"""An ordinary Llama made into a looped model: some of its layers become the prelude, some the core, some the coda.

The injection starts such that depth 1 is the source with the layers that were not chosen left out, exactly:

| injection | starts as | one recurrence of the core's layers C |
|---|---|---|
| linear | W = [0, 1] | F(z; e) = C(e), whatever z |
| ortho | Lambda = 1/2, q = e | F(0; e) = C(e); the state's part along e is replaced by e |
| parcae_no_norm | Lambda = 1/2, Delta W = 1 | F(z; e) = C(z / 2 + e) |
| deq_qkv | W_e = 0 | F(z; e) = C(z), from z0 = the embedding |
| none | | F(z) = C(z), from z0 = the embedding |

Those that add to a state start from z0 = 0. The last two read the input from z0 alone, so they need an empty prelude.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from loop_rl.errors import UserError
from loop_rl.models.config import LLAMA3_ROPE, LoopedConfig
from loop_rl.models.injections import Injection, make_injection
from loop_rl.models.looped import LoopedForCausalLM

INJECTIONS = ("linear", "ortho", "parcae_no_norm", "deq_qkv", "none")
#: injections that leave z0 to bring the input in
_FROM_EMBEDDING = ("deq_qkv", "none")
#: families of transformers' whose layers are our blocks; others add biases, norms or windows to them
_FAMILIES = ("llama", "mistral")

#: a layer's tensors, by our names
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    **{f"attn.{name}_proj.weight": f"self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"mlp.{name}_proj.weight": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
}


@dataclass(frozen=True)
class Cut:
    """The source's layers that become prelude, core and coda, by index from 0; the others are left out."""

    prelude: range
    core: range
    coda: range

    @property
    def kept(self) -> list[int]:
        return [*self.prelude, *self.core, *self.coda]

    def skipped(self, layers: int) -> list[int]:
        """Those of a source of so many layers that are left out."""
        return sorted(set(range(layers)) - set(self.kept))

    def check(self, layers: int) -> None:
        """UserError where the cut is not one of a source of so many layers, in its order."""
        if not self.core:
            raise UserError("the core needs at least one layer")
        kept = self.kept
        if kept != sorted(set(kept)):
            raise UserError("prelude, core and coda must follow one another without overlap, as in the source")
        if kept[-1] >= layers:
            raise UserError(f"there is no layer {kept[-1]}: the source has the layers 0-{layers - 1}")


def retrofit(source: PreTrainedModel, cut: Cut, depth: int, injection: str) -> LoopedForCausalLM:
    """The looped model, in the source's dtype and on its device; it shares the source's tensors.

    Raises:
        UserError: the source is of a kind that our blocks are not, or the cut or the injection does not fit it.
    """
    config = retrofit_config(source.config, cut, depth, injection)
    config.dtype = source.dtype
    theirs = source.state_dict()
    state = {name: theirs[name] for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}
    for place, layer in zip(_places(cut), cut.kept, strict=True):
        state |= _layer_state(theirs, place, layer)
    state |= {f"model.injection.{name}": value.to(source.device) for name, value in _start(config).state_dict().items()}
    with torch.device("meta"):
        model = LoopedForCausalLM(config)
    model.load_state_dict({name: value.to(source.dtype) for name, value in state.items()}, assign=True)
    model.tie_weights()
    model.generation_config = source.generation_config
    return model.eval()


def retrofit_config(source: PretrainedConfig, cut: Cut, depth: int, injection: str) -> LoopedConfig:
    """The looped model's configuration; UserError as in `retrofit`."""
    check_source(source)
    cut.check(source.num_hidden_layers)
    if injection not in INJECTIONS:
        raise UserError(
            f"injection {injection!r} can't start as the source; choose one of {', '.join(INJECTIONS)} "
            "(a norm of the state or the input would change the scale that the layers are used to)"
        )
    if injection in _FROM_EMBEDDING and cut.prelude:
        raise UserError(f"injection {injection} brings the input in by the initial state alone: leave the prelude out")
    rope = source.rope_parameters
    return LoopedConfig(
        vocab_size=source.vocab_size,
        hidden_size=source.hidden_size,
        intermediate_size=source.intermediate_size,
        num_attention_heads=source.num_attention_heads,
        num_key_value_heads=source.num_key_value_heads,
        head_dim=source.head_dim,
        prelude_layers=len(cut.prelude),
        core_layers=len(cut.core),
        coda_layers=len(cut.coda),
        depth=depth,
        injection=injection,
        rms_norm_eps=source.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        llama3_rope={key: rope[key] for key in LLAMA3_ROPE} if rope["rope_type"] == "llama3" else None,
        max_position_embeddings=source.max_position_embeddings,
        initial_state="embedding" if injection in _FROM_EMBEDDING else "normal",
        initial_state_std=0.0,
        initializer_range=source.initializer_range,
        bos_token_id=source.bos_token_id,
        eos_token_id=source.eos_token_id,
        pad_token_id=source.pad_token_id,
        tie_word_embeddings=source.tie_word_embeddings,
    )


def check_source(source: PretrainedConfig) -> None:
    """UserError, in one line, for a model whose layers are more than our blocks are."""
    if source.model_type not in _FAMILIES:
        known = " and ".join(_FAMILIES)
        raise UserError(f"a {source.model_type} model: only the layers of {known} models can be taken over exactly")
    for name in ("attention_bias", "mlp_bias", "quantization_config"):
        if getattr(source, name, None):
            raise UserError(f"the config sets {name}, which a looped model's blocks do not have")
    if source.hidden_act != "silu":
        raise UserError(f"the config's hidden_act is {source.hidden_act}; a looped model's blocks have silu")
    window = getattr(source, "sliding_window", None)
    if window is not None and window < source.max_position_embeddings:
        raise UserError(f"the config's sliding_window ({window}) is shorter than its context; blocks attend to all")
    rope: dict[str, Any] = source.rope_parameters
    if rope["rope_type"] not in ("default", "llama3") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"the config's rope ({rope}) is neither plain nor llama3's")


def _places(cut: Cut) -> list[str]:
    """Where each kept layer goes, in order."""
    parts = {"prelude": cut.prelude, "core": cut.core, "coda": cut.coda}
    return [f"model.{name}.{index}" for name, layers in parts.items() for index in range(len(layers))]


def _layer_state(theirs: dict[str, Tensor], place: str, layer: int) -> dict[str, Tensor]:
    """One layer's tensors by our names; UserError for one that our blocks have no place for."""
    prefix = f"model.layers.{layer}."
    left_over = {name for name in theirs if name.startswith(prefix)} - {prefix + name for name in _LAYER.values()}
    if left_over:
        raise UserError(f"the source has {min(left_over)}, which a looped model's blocks do not have")
    return {f"{place}.{ours}": theirs[prefix + name] for ours, name in _LAYER.items()}


def _start(config: LoopedConfig) -> Injection:
    """The injection that makes depth 1 the source."""
    injection, width = make_injection(config), config.hidden_size
    with torch.no_grad():
        if config.injection == "linear":
            injection.linear.weight.copy_(torch.cat((torch.zeros(width, width), torch.eye(width)), dim=1))
        elif config.injection in ("ortho", "parcae_no_norm"):
            injection.projection.weight.copy_(torch.eye(width))
        elif config.injection == "deq_qkv":
            for projection in injection.projections:
                projection.weight.zero_()
    return injection
