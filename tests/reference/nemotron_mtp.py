"""The draft (MTP) head of Nemotron 3 Super, which transformers does not read.

For the tokens 0 .. n-1 and the model's hidden states of them, AFTER its final norm, pair t (of n - 1) is made of the
embedding of token t+1 and the hidden state of token t, and drafts token t+2:

    x = eh_proj [ w_e rms(embedding of token t+1) ; w_h rms(hidden of token t) ]
    x = x + attention(w_0 rms(x))      over all pairs up to t, without positions
    x = x + experts(w_1 rms(x))        corrected sigmoids, a latent width, a shared expert, as in the model's layers
    logits = head (w_n rms(x))

The embedding and the head are the model's. The release's own code ignores these tensors. Their names, the order of the
layers (`mtp_hybrid_override_pattern` "*E"), the order of embedding and hidden state and which state that is were read
in vLLM, vllm/model_executor/models/nemotron_h_mtp.py: what it passes in is what the model returns, which is normed.
Plain torch, in the precision of its arguments; nothing of transformers.
"""

import torch

# Which layer has what.
LETTERS = "*E"
ATTENTION, EXPERTS, LAST = "mtp.layers.0.", "mtp.layers.1.", "mtp.layers.1."


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def attention(weight, x, config):
    heads, kv_heads, dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))

    def project(name, count):
        return (x @ weight(f"mixer.{name}.weight").T).unflatten(-1, (count, -1)).transpose(-2, -3)

    q, k, v = project("q_proj", heads), project("k_proj", kv_heads), project("v_proj", kv_heads)
    k, v = (y.repeat_interleave(heads // kv_heads, -3) for y in (k, v))
    scores = q @ k.transpose(-1, -2) * dim**-0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    context = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
    return context.transpose(-2, -3).flatten(-2) @ weight("mixer.o_proj.weight").T


def squared_relu(weight, prefix, x):
    return (x @ weight(f"mixer.{prefix}up_proj.weight").T).relu().pow(2) @ weight(f"mixer.{prefix}down_proj.weight").T


def mixture(weight, x, config):
    """What the router chooses by [..., experts] beside the output."""
    scores = (x @ weight("mixer.gate.weight").T).sigmoid()
    keys = scores + weight("mixer.gate.e_score_correction_bias")
    ids = keys.topk(config["num_experts_per_tok"]).indices
    chosen = scores.gather(-1, ids)
    chosen = config["routed_scaling_factor"] * chosen / (chosen.sum(-1, keepdim=True) + 1e-20)
    shares = torch.zeros_like(scores).scatter(-1, ids, chosen)
    latent = x @ weight("mixer.fc1_latent_proj.weight").T
    out = torch.zeros_like(latent)
    for e in range(config["n_routed_experts"]):
        out = out + shares[..., e, None] * squared_relu(weight, f"experts.{e}.", latent)
    return out @ weight("mixer.fc2_latent_proj.weight").T + squared_relu(weight, "shared_experts.", x), keys


def layers(tensors, x, config):
    """Both layers, of x [..., pairs, hidden]; also what the router chooses by."""
    eps = config["layer_norm_epsilon"]

    def of(prefix):
        return lambda name: tensors[prefix + name].to(x)

    first, second = of(ATTENTION), of(EXPERTS)
    x = x + attention(first, rms(x, first("norm.weight"), eps), config)
    mixed, keys = mixture(second, rms(x, second("norm.weight"), eps), config)
    return x + mixed, keys


def draft(tensors, config, tokens, hidden, embedding, head):
    """tokens [..., n], hidden [..., n, hidden size] after the final norm, embedding and head [vocabulary, hidden size]:
    draft logits [..., n - 1, vocabulary], and what the router chooses by [..., n - 1, experts]."""
    eps = config["layer_norm_epsilon"]

    def weight(name):
        return tensors[f"{name}.weight"].to(hidden)

    following = rms(embedding[tokens[..., 1:]], weight(ATTENTION + "enorm"), eps)
    so_far = rms(hidden[..., :-1, :], weight(ATTENTION + "hnorm"), eps)
    joined = torch.cat([following, so_far], -1) @ weight(ATTENTION + "eh_proj").T
    x, keys = layers(tensors, joined, config)
    return rms(x, weight(LAST + "final_layernorm"), eps) @ head.T, keys
