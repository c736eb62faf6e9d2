"""The draft (MTP) layer of Qwen3.5 and Qwen3-Next, which transformers does not have.

For the tokens 0 .. n-1 and the main model's hidden states of them, AFTER its final norm, pair t (of n - 1) is made of
the embedding of token t+1 and the hidden state of token t, and drafts token t+2:

    x = fc [ (1 + w_e) rms(embedding of token t+1) ; (1 + w_h) rms(hidden of token t) ]
    x = one decoder layer with gated attention (x over all pairs up to t; pair t has rotary position t)
    logits = head ((1 + w_n) rms(x))

The embedding and the head are the main model's. Plain torch, in the precision of its arguments; nothing of transformers.
"""

import torch
from torch.nn import functional


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


def rotate(x, theta, dims):
    """x [..., heads, positions, head_dim] with its first `dims` dimensions rotated by position, in pairs (i, i +
    dims/2)."""
    frequencies = 1.0 / theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


def gated_attention(weight, x, text):
    heads, kv_heads, dim = text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
    rope, eps = text["rope_parameters"], text["rms_norm_eps"]
    dims = int(dim * rope.get("partial_rotary_factor", 0.25))

    def project(name, count):
        return (x @ weight(f"self_attn.{name}.weight").T).unflatten(-1, (count, -1)).transpose(-2, -3)

    # Per head [query | gate].
    q, gate = project("q_proj", heads).chunk(2, -1)
    k, v = project("k_proj", kv_heads), project("v_proj", kv_heads)
    q = rotate(rms(q, weight("self_attn.q_norm.weight"), eps), rope["rope_theta"], dims)
    k = rotate(rms(k, weight("self_attn.k_norm.weight"), eps), rope["rope_theta"], dims)
    k, v = (y.repeat_interleave(heads // kv_heads, -3) for y in (k, v))
    scores = q @ k.transpose(-1, -2) * dim**-0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    context = scores.masked_fill(later, float("-inf")).softmax(-1) @ v * gate.sigmoid()
    return context.transpose(-2, -3).flatten(-2) @ weight("self_attn.o_proj.weight").T


def swiglu(weight, prefix, x):
    inner = functional.silu(x @ weight(f"{prefix}gate_proj.weight").T) * (x @ weight(f"{prefix}up_proj.weight").T)
    return inner @ weight(f"{prefix}down_proj.weight").T


def mixture(weight, x, text):
    """Router logits [..., experts] beside the output."""
    router = x @ weight("mlp.gate.weight").T
    chosen, ids = router.softmax(-1).topk(text["num_experts_per_tok"])
    if text.get("norm_topk_prob", True):
        chosen = chosen / chosen.sum(-1, keepdim=True)
    shares = torch.zeros_like(router).scatter(-1, ids, chosen)
    out = swiglu(weight, "mlp.shared_expert.", x) * (x @ weight("mlp.shared_expert_gate.weight").T).sigmoid()
    for e in range(text["num_experts"]):
        out = out + shares[..., e, None] * swiglu(weight, f"mlp.experts.{e}.", x)
    return out, router


def layer(tensors, x, text):
    """`mtp.layers.0` of x [..., pairs, hidden]; also router logits, or None if the layer is dense."""

    def weight(name):
        return tensors[f"mtp.layers.0.{name}"].to(x)

    eps = text["rms_norm_eps"]
    x = x + gated_attention(weight, rms(x, weight("input_layernorm.weight"), eps), text)
    normed = rms(x, weight("post_attention_layernorm.weight"), eps)
    mixed, router = mixture(weight, normed, text) if "num_experts" in text else (swiglu(weight, "mlp.", normed), None)
    return x + mixed, router


def draft(tensors, text, tokens, hidden, embedding, head):
    """tokens [..., n], hidden [..., n, hidden size] after the final norm, embedding and head [vocabulary, hidden size]:
    draft logits [..., n - 1, vocabulary] and router logits [..., n - 1, experts] or None."""
    eps = text["rms_norm_eps"]

    def weight(name):
        return tensors[f"mtp.{name}.weight"].to(hidden)

    following = rms(embedding[tokens[..., 1:]], weight("pre_fc_norm_embedding"), eps)
    so_far = rms(hidden[..., :-1, :], weight("pre_fc_norm_hidden"), eps)
    x, router = layer(tensors, torch.cat([following, so_far], -1) @ weight("fc").T, text)
    return rms(x, weight("norm"), eps) @ head.T, router
