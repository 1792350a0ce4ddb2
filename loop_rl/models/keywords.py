"""Keywords of a forward pass beyond its own: transformers, PEFT and TRL pass some to any model; no other is ignored."""

import inspect
from typing import Any

from torch import nn

#: arguments of transformers' loss function
_LOSS = ("num_items_in_batch", "shift_labels", "ignore_index")
#: what a tokenizer may return beside ids and mask; a looped model has no types of tokens
_WITHOUT_EFFECT = ("token_type_ids",)
#: switches that may be set to what the model does anyway
_SWITCHES = {
    "output_attentions": False,
    "output_hidden_states": False,
    "output_router_logits": False,
    "is_causal": True,
}


def cache_keyword(cache: Any, keywords: dict[str, Any]) -> Any:
    """`cache`, or what was passed under its older name, which is taken out of `keywords`; TypeError for both."""
    older = keywords.pop("past_key_values", None)
    if older is not None and cache is not None:
        raise TypeError("cache and past_key_values are two names of one argument: pass cache")
    return older if cache is None else cache


def check_keywords(model: nn.Module, keywords: dict[str, Any]) -> dict[str, Any]:
    """The loss's keywords among these.

    Raises:
        TypeError: a keyword that the pass would ignore, though it asks for something; None asks for nothing.
    """
    for name, value in keywords.items():
        known = name in _LOSS or name in _WITHOUT_EFFECT or (name in _SWITCHES and value == _SWITCHES[name])
        if value is not None and not known:
            parameters = inspect.signature(model.forward).parameters.values()
            takes = ", ".join(p.name for p in parameters if p.kind != p.VAR_KEYWORD)
            raise TypeError(
                f"{type(model).__name__}.forward can't do anything with {name}={value!r:.40}; it takes {takes} "
                "(depth is the number of recurrences)"
            )
    return {name: keywords[name] for name in _LOSS if keywords.get(name) is not None}
