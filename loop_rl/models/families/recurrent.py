"""Recurrent-Llama, -TinyLlama and -OLMo: pretrained models cut into prelude, core and coda, their blocks kept."""

from loop_rl.models.config import LoopedConfig
from loop_rl.models.families import raven
from loop_rl.models.families.layout import Family, Raw, like_init_std

#: the width for which every retrofit's initial state was scaled
HUGINN_WIDTH = 5280


def present(keys: frozenset[str]) -> bool:
    """Huginn's adapter over blocks of two norms."""
    return raven.ADAPTER in keys and not any(key.endswith((".norm_3.weight", ".norm_4.weight")) for key in keys)


def config(raw: Raw, keys: frozenset[str] | None) -> LoopedConfig:
    """OLMo's blocks are told by their q_norm; without tensor names they are taken for Llama's."""
    olmo = keys is not None and any(key.endswith("attn.q_norm.weight") for key in keys)
    return LoopedConfig(
        **raven.sizes(raw),
        **raven.initial_values(raw, like_init_std(HUGINN_WIDTH), 1.0),
        norm_placement="post" if olmo else "pre",
        qk_norm="full" if olmo else None,
    )


RETROFIT = Family(
    name="retrofit",
    named=raven.named,
    present=present,
    config=config,
    entries=raven.entries,
    depth_key="mean_recurrence",
    embedding="transformer.wte.weight",
)
