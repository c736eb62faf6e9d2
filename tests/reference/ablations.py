"""Models with a part left out: a golden tests a part only if leaving it out moves the logits."""

import contextlib
import functools
import sys
from unittest.mock import patch

import torch

import delta


def linear_layers(model):
    return [layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn")]


def attention_layers(model):
    return [layer.self_attn for layer in model.model.layers if hasattr(layer, "self_attn")]


def sparse_layers(model):
    return [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "experts")]


@contextlib.contextmanager
def hooked(modules, change):
    """Passes every module's output through `change(module, arguments, output)`."""
    hooks = [module.register_forward_hook(change) for module in modules]
    yield
    for hook in hooks:
        hook.remove()


@contextlib.contextmanager
def changed(tensors, change):
    """Replaces every tensor by `change(tensor)`."""
    before = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(change(tensor))
    yield
    with torch.no_grad():
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)


def rule(model, *leave_out):
    """Replaces transformers' delta rule by our own, with parts left out."""
    replacement = functools.partial(delta.gated_delta_rule, leave_out=leave_out)
    return patch.object(sys.modules[type(model).__module__], "torch_chunk_gated_delta_rule", replacement)


def current_tap(weight):
    only = torch.zeros_like(weight)
    only[..., -1] = 1.0
    return only


def frequencies(model, dims):
    """The default rope's over `dims` dimensions."""
    theta = model.config.rope_parameters["rope_theta"]
    return 1.0 / theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)


def whole_head(model):
    """Rotates the whole head instead of a part of it."""
    return patch.object(model.model.rotary_emb, "inv_freq", frequencies(model, attention_layers(model)[0].head_dim))


def ungated(norm, given, _):
    x = given[0]
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


@contextlib.contextmanager
def gates_open(model):
    """Sets the gate half of every head's q_proj output to a value whose sigmoid is 1."""
    with contextlib.ExitStack() as stack:
        for attention in attention_layers(model):

            def change(_, __, projected, dim=attention.head_dim):
                heads = projected.unflatten(-1, (-1, 2, dim)).clone()
                heads[..., 1, :] = 1e4
                return heads.flatten(-3)

            stack.enter_context(hooked([attention.q_proj], change))
        yield


def renormalised(yes):
    def change(_, __, routed):
        logits, _, ids = routed
        weights = logits.softmax(-1, dtype=torch.float32).gather(-1, ids)
        return logits, weights / weights.sum(-1, keepdim=True) if yes else weights, ids

    return change


def scores_summed(_, __, routed):
    """Sigmoids that are not divided by their sum."""
    logits, _, ids = routed
    return logits, logits.float().sigmoid().gather(-1, ids), ids


def over_heads(dim):
    """Norms each head by itself, with the weights of the row."""

    def change(norm, given, _):
        heads = given[0].unflatten(-1, (-1, dim))
        normed = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
        return norm.weight * normed.flatten(-2)

    return change


def even(_, __, routed):
    logits, weights, ids = routed
    return logits, torch.full_like(weights, 1.0 / weights.shape[-1]), ids


def ablations(model, layout):
    """For every part that this model has: its name, and a context that leaves it out."""
    text = layout.text
    found = {}
    if linear := linear_layers(model):
        parts = ["decay", "beta", "correction", "key_norm", "memory"]
        if linear[0].num_k_heads not in (1, linear[0].num_v_heads):
            parts.append("pairing")
        found |= {part: rule(model, part) for part in parts}
        found["convolution"] = changed([layer.conv1d.weight for layer in linear], current_tap)
        found["dt_bias"] = changed([layer.dt_bias for layer in linear], torch.zeros_like)
        found["delta_norm_plus_one"] = changed([layer.norm.weight for layer in linear], lambda w: w + 1)
        found["delta_gate"] = hooked([layer.norm for layer in linear], ungated)
    if not layout.plain:
        found["attention_gate"] = gates_open(model)
        norms = [m.weight for name, m in model.named_modules() if name.endswith(("layernorm", "q_norm", "k_norm"))]
        found["one_plus_norms"] = changed(norms, lambda w: w - 1)
    found["rope"] = patch.object(model.model.rotary_emb, "inv_freq", 0 * model.model.rotary_emb.inv_freq)
    if len(model.model.rotary_emb.inv_freq) * 2 < layout.head_dim:
        found["partial_rope"] = whole_head(model)
    if sparse := sparse_layers(model):
        if text["num_experts_per_tok"] > 1:
            found["router_weights"] = hooked([block.gate for block in sparse], even)
        yes = text.get("norm_topk_prob", layout.family != "qwen3_moe")
        change = scores_summed if layout.minimax else renormalised(not yes)
        found["renormalise"] = hooked([block.gate for block in sparse], change)
        if layout.minimax:
            corrections = [block.e_score_correction_bias for block in sparse]
            found["correction"] = changed(corrections, torch.zeros_like)
            norms = [norm for layer in attention_layers(model) for norm in (layer.q_norm, layer.k_norm)]
            found["row_norms"] = hooked(norms, over_heads(layout.head_dim))
        found["experts"] = hooked([block.experts for block in sparse], lambda *given: 0 * given[-1])
        if hasattr(sparse[0], "shared_expert"):
            found["shared_expert"] = hooked([block.shared_expert for block in sparse], lambda *given: 0 * given[-1])
            gates = [block.shared_expert_gate for block in sparse]
            found["shared_gate"] = hooked(gates, lambda *given: torch.full_like(given[-1], 1e4))
    return found
