"""The looped language model: prelude, one core applied R times, coda, as a Hugging Face model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from loop_rl.errors import UserError
from loop_rl.models.attention.cached import CachedContext
from loop_rl.models.attention.context import Context
from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.blocks import Block, RMSNorm
from loop_rl.models.config import LoopedConfig
from loop_rl.models.exits import exit_distribution
from loop_rl.models.initial_state import initial_state, truncated_initial_state
from loop_rl.models.injections import make_injection
from loop_rl.models.injections.parcae import ParcaeNoNorm
from loop_rl.models.keywords import cache_keyword, check_keywords


@dataclass(frozen=True)
class PreludeOutput:
    """What a pass computes once of its tokens, for every recurrence and the coda.

    injected: as the injection prepared it, [B, T, width] (deq_qkv: [core_layers, B, T, q+k+v]). embeddings:
    [B, T, width], scaled. value_embeddings: by physical layer, [B, T, key-value heads * head_dim].
    """

    injected: Tensor
    embeddings: Tensor
    value_embeddings: Mapping[int, Tensor]


@dataclass
class LoopedOutput(BaseModelOutputWithPast):
    """`last_hidden_state` is after the final norm; `endpoint` is z^R; both [batch, tokens, width]."""

    endpoint: torch.FloatTensor | None = None


class LoopedPreTrainedModel(PreTrainedModel):
    """What transformers has to know of the family."""

    config_class = LoopedConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]
    _supports_sdpa = True
    _supports_cache_class = True
    supports_gradient_checkpointing = True
    _skip_keys_device_placement = "cache"

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        """Called by gradient_checkpointing_enable and _disable; every block of a `forward` in training, or none."""
        if every_n_layers != 1:
            raise UserError(f"every_n_layers is {every_n_layers}: all blocks are checkpointed or none; leave it at 1")
        super()._set_gradient_checkpointing(enable, gradient_checkpointing_func)

    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, ParcaeNoNorm):
            # An isometry in expectation: the injected input arrives at the scale of the prelude's output.
            init.normal_(module.projection.weight, mean=0.0, std=self.config.hidden_size**-0.5)
            fresh = type(module)(self.config)
            init.copy_(module.delta_raw, fresh.delta_raw)
            init.copy_(module.alpha_raw, fresh.alpha_raw)
        elif isinstance(module, nn.Linear):
            init.normal_(module.weight, mean=0.0, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, mean=0.0, std=std)
        elif isinstance(module, RMSNorm) and module.weight is not None:
            init.ones_(module.weight)


class LoopedModel(LoopedPreTrainedModel):
    """Prelude, core and coda without the language-model head."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        layers = [
            Block(config, value_embedding=layer in config.value_embedding_layers)
            for layer in range(config.num_hidden_layers)
        ]
        first, last = config.prelude_layers, config.prelude_layers + config.core_layers
        self.prelude = nn.ModuleList(layers[:first])
        self.injection = make_injection(config)
        self.core = nn.ModuleList(layers[first:last])
        self.readout = nn.Linear(width, width, bias=False) if config.readout else nn.Identity()
        self.coda = nn.ModuleList(layers[last:])
        self.norm = RMSNorm(width, config.rms_norm_eps)
        values = config.num_key_value_heads * config.head_dim
        self.value_embeddings = nn.ModuleDict(
            {str(layer): nn.Embedding(config.vocab_size, values) for layer in config.value_embedding_layers}
        )
        self.exit_gate = nn.Linear(width, 1) if config.exit_gate else None
        self.gradient_checkpointing = False
        self.post_init()

    def prelude_forward(self, input_ids: Tensor, context: Context) -> PreludeOutput:
        """What the pass's tokens, int64 [B, T], give to its recurrences and its coda."""
        embeddings = x = self.embed_tokens(input_ids) * self.config.embedding_multiplier
        values = {int(layer): embedding(input_ids) for layer, embedding in self.value_embeddings.items()}
        for layer, block in enumerate(self.prelude):
            x = self._run(block, x, context, layer, 0, None, values.get(layer))
        return PreludeOutput(self.injection.prepare(x), embeddings, values)

    def recur(
        self,
        z: Tensor,
        prelude: PreludeOutput,
        context: Context,
        recurrence: int = 0,
        blocks: nn.ModuleList | None = None,
    ) -> Tensor:
        """One recurrence, F(z; e); [B, T, width] -> [B, T, width]. `blocks`: others in place of the core's, as many."""
        x = self.injection.enter(z, prelude.injected)
        for index, block in enumerate(self.core if blocks is None else blocks):
            layer = self.config.prelude_layers + index
            injected = self.injection.qkv(index, prelude.injected)
            x = self._run(block, x, context, layer, recurrence, injected, prelude.value_embeddings.get(layer))
        x = self.injection.leave(x)
        return self.norm(x) if self.config.final_norm == "in_loop" else x

    def coda_forward(self, z: Tensor, context: Context, prelude: PreludeOutput | None = None) -> Tensor:
        """What the head reads, after the final norm; [B, T, width] -> [B, T, width].

        Raises:
            ValueError: no `prelude`, and a layer of the coda has value embeddings.
        """
        placement = self.config.final_norm
        first = self.config.prelude_layers + self.config.core_layers
        values = {} if prelude is None else prelude.value_embeddings
        if prelude is None and any(layer >= first for layer in self.config.value_embedding_layers):
            raise ValueError("this model's coda reads value embeddings: pass it what prelude_forward returned")
        x = self.readout(z)
        if placement == "around_coda":
            x = self.norm(x)
        for index, block in enumerate(self.coda):
            x = self._run(block, x, context, first + index, 0, None, values.get(first + index))
        return x if placement == "in_loop" else self.norm(x)

    def _run(self, block: nn.Module, x: Tensor, context: Context, *arguments: Any) -> Tensor:
        """A block's output, its activations kept or not as the context says."""
        if context.checkpointed:
            return self._gradient_checkpointing_func(block, x, context, *arguments)
        return block(x, context, *arguments)

    def draw_initial_state(
        self, position_ids: Tensor, row_seeds: Tensor | None = None, prelude: PreludeOutput | None = None
    ) -> Tensor:
        """z0 at these positions, in the model's dtype and device; every row's seed defaults to the config's.

        Raises:
            ValueError: no `prelude`, and the initial state is the tokens' embedding.
        """
        if self.config.initial_state == "embedding":
            if prelude is None:
                raise ValueError("this model starts from its tokens' embedding: pass what prelude_forward returned")
            return prelude.embeddings
        device, dtype = self.embed_tokens.weight.device, self.embed_tokens.weight.dtype
        if row_seeds is None:
            row_seeds = torch.full((position_ids.shape[0],), self.config.initial_state_seed)
        draw = {"normal": initial_state, "truncated_normal": truncated_initial_state}[self.config.initial_state]
        return draw(row_seeds, position_ids.to(device), self.config.hidden_size, self.config.initial_state_std, dtype)

    def endpoint(self, prelude: PreludeOutput, z0: Tensor, context: Context) -> Tensor:
        """z^R at the context's depth, by plain iteration."""
        z = z0
        for recurrence in range(context.depth):
            z = self.recur(z, prelude, context, recurrence)
        return z

    def exit_distribution(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, depth: int | None = None
    ) -> Tensor:
        """Probability that the exit gate gives to leaving after each of `depth` recurrences; [B, T, depth].

        Raises:
            ValueError: the model has no exit gate.
        """
        if self.exit_gate is None:
            raise ValueError("the model has no exit gate (config.exit_gate)")
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        context = PaddedContext(self.config, mask, None, self.dtype, self.config.depth if depth is None else depth)
        prelude = self.prelude_forward(input_ids, context)
        z, logits = self.draw_initial_state(context.position_ids, prelude=prelude), []
        for recurrence in range(context.depth):
            z = self.recur(z, prelude, context, recurrence)
            logits.append(self.exit_gate(z)[..., 0])
        stacked = torch.stack(logits)
        return exit_distribution(stacked if stacked.dtype == torch.float64 else stacked.float())

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        depth: int | None = None,
        initial_state: Tensor | None = None,
        **kwargs: Any,
    ) -> LoopedOutput:
        """Embed, iterate the core `depth` times from `initial_state`, read out.

        Args:
            input_ids: int64 [B, T].
            attention_mask: [B, past + T], 1 at real tokens; padding on either side.
            depth: recurrences, the config's by default. A cache is good for one depth.
            initial_state: z0 [B, T, width]; by default drawn from the config's seed at each token's position.
            kwargs: `past_key_values`, an older name of `cache`, and what transformers and TRL pass to any model.

        Raises:
            TypeError: a keyword that would be ignored. UserError: a cache that is not a DynamicCache.
        """
        cache = cache_keyword(cache, kwargs)
        check_keywords(self, kwargs)
        depth = self.config.depth if depth is None else depth
        batch, tokens = input_ids.shape
        dtype = self.embed_tokens.weight.dtype
        past = cache.get_seq_length() if cache is not None else 0
        if attention_mask is None:
            attention_mask = torch.ones(batch, past + tokens, dtype=torch.long, device=input_ids.device)
        context: Context
        if use_cache or cache is not None:
            if cache is None:
                cache = DynamicCache()
            if not isinstance(cache, DynamicCache):
                raise UserError(
                    f"a {type(cache).__name__} has one slot a layer, a looped model writes one a layer and recurrence: "
                    "use a DynamicCache (generate: leave cache_implementation out)"
                )
            # generate sizes the cache by the config's blocks; ours grows to one layer per (block, recurrence).
            cache.layer_class_to_replicate = DynamicLayer
            context = CachedContext(self.config, cache, attention_mask, tokens, position_ids, dtype, depth)
        else:
            context = PaddedContext(self.config, attention_mask, position_ids, dtype, depth)
            # Only here, where every block is differentiated once: an estimator's repeated products at an endpoint, and
            # contexts that keep banks, go through the parts with contexts of their own.
            context.checkpointed = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        prelude = self.prelude_forward(input_ids, context)
        z0 = initial_state
        if z0 is None:
            z0 = self.draw_initial_state(context.position_ids, prelude=prelude)
        z = self.endpoint(prelude, z0, context)
        return LoopedOutput(last_hidden_state=self.coda_forward(z, context, prelude), cache=cache, endpoint=z)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value


class LoopedForCausalLM(LoopedPreTrainedModel, GenerationMixin):
    """A looped model with its head; loads, saves, generates and trains as any Hugging Face causal model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # in effect if config.tie_word_embeddings

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__(config)
        self.model = LoopedModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        depth: int | None = None,
        initial_state: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """See LoopedModel.forward; `labels` int64 [B, T] with -100 where no loss is wanted."""
        cache = cache_keyword(cache, kwargs)
        loss_keywords = check_keywords(self, kwargs)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            use_cache=use_cache,
            depth=depth,
            initial_state=initial_state,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else logits_to_keep
        hidden = outputs.last_hidden_state
        logits = self.lm_head(hidden if isinstance(kept, int) else hidden[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **loss_keywords)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=outputs.cache)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value
