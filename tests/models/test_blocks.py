"""Blocks against transformers' Llama with the same weights."""

import torch
from transformers import LlamaConfig, LlamaModel

from loop_rl.models.attention.padded import PaddedContext
from loop_rl.models.blocks import RMSNorm
from tests.models.tiny_looped import tiny_config, tiny_model, tokens
from tests.rounding import rounding

NAMES = {
    "attn_norm": "input_layernorm",
    "attn": "self_attn",
    "mlp_norm": "post_attention_layernorm",
    "mlp": "mlp",
}


def llama_of(model, dtype: torch.dtype) -> LlamaModel:
    """LlamaModel with our embedding, the prelude as its layers, and our final norm."""
    ours = model.config
    config = LlamaConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.prelude_layers,
        num_attention_heads=ours.num_attention_heads,
        num_key_value_heads=ours.num_key_value_heads,
        head_dim=ours.head_dim,
        rms_norm_eps=ours.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": ours.rope_theta},
        attn_implementation="sdpa",  # eager rounds its softmax to float32
        pad_token_id=0,
    )
    llama = LlamaModel(config).to(dtype).eval()
    weights = {"embed_tokens.weight": model.model.embed_tokens.weight, "norm.weight": model.model.norm.weight}
    for index, block in enumerate(model.model.prelude):
        for name, value in block.named_parameters():
            head, _, rest = name.partition(".")
            weights[f"layers.{index}.{NAMES[head]}.{rest}"] = value
    llama.load_state_dict(weights)
    return llama


def run_prelude(model, ids, context):
    x = model.model.embed_tokens(ids)
    for layer, block in enumerate(model.model.prelude):
        x = block(x, context, layer, 0)
    return x


def exact_norms(llama: LlamaModel) -> None:
    """Llama's RMSNorm rounds to float32: put torch's in its place."""
    for module in list(llama.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=torch.float64)
                norm.load_state_dict(child.state_dict())
                setattr(module, name, norm)


def test_blocks_equal_llama_layers_in_float64():
    model = tiny_model(prelude_layers=2)
    llama = llama_of(model, torch.float64)
    exact_norms(llama)
    ids, length, dim = tokens(2, 9), 9, model.config.head_dim
    # rotary tables in float64 (Llama's own are float32), each angle written out
    angles = torch.tensor(
        [[p * model.config.rope_theta ** (-2 * (i % (dim // 2)) / dim) for i in range(dim)] for p in range(length)],
        dtype=torch.float64,
    )[None]
    hidden = llama.embed_tokens(ids)
    mask = torch.full((length, length), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    for layer in llama.layers:
        hidden = layer(hidden, attention_mask=mask, position_embeddings=(angles.cos(), angles.sin()))
    context = PaddedContext(model.config, torch.ones_like(ids), dtype=torch.float64)
    ours = run_prelude(model, ids, context)
    torch.testing.assert_close(ours, hidden, rtol=0, atol=1e-10)
    torch.testing.assert_close(model.model.norm(ours), llama.norm(hidden), rtol=0, atol=1e-10)


def test_prelude_and_norm_equal_llama_model_with_left_padding():
    model = tiny_model(prelude_layers=2, dtype=torch.float32)
    llama = llama_of(model, torch.float32)
    ids = tokens(3, 11)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[1, :1] = 0
    context = PaddedContext(model.config, mask)
    expected = llama(ids, attention_mask=mask, position_ids=context.position_ids).last_hidden_state
    ours = model.model.norm(run_prelude(model, ids, context))
    real = mask.bool()
    bound = rounding(lambda exact: exact.model.norm(run_prelude(exact, ids, PaddedContext(model.config, mask))), model)
    torch.testing.assert_close(ours[real], expected[real], rtol=0, atol=bound)


def test_norm_is_computed_in_float32_for_bfloat16():
    norm = RMSNorm(64, 1e-5).bfloat16()
    x = torch.randn(5, 64).bfloat16()
    exact = x.double() / torch.sqrt(x.double().square().mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(norm(x), exact.bfloat16())
    assert RMSNorm(64, 1e-5, affine=False).weight is None


def test_core_blocks_are_blocks_of_the_same_kind():
    model = tiny_model()
    assert {type(block) for part in ("prelude", "core", "coda") for block in getattr(model.model, part)} == {
        type(model.model.core[0])
    }
    assert len(model.model.core) == tiny_config().core_layers
