"""The gated delta rule, one token after another, in the precision of its arguments.

Takes the arguments of transformers' `torch_chunk_gated_delta_rule`, and so can take its place: as an
independent form of the same rule in float64, and, with a part left out, to show what that part does.
"""

import torch


def gated_delta_rule(
    query,
    key,
    value,
    g,
    beta,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=True,
    leave_out=(),
    **_,
):
    """query, key [batch, tokens, key heads, key dim], value [batch, tokens, value heads, value dim], g (log decay)
    and beta [batch, tokens, value heads]; gives an output shaped like value, and the state
    [batch, value heads, key dim, value dim] or None.

    `leave_out` names parts to do without: "decay", "beta", "correction" (what the state predicts is not taken from
    the value), "key_norm", "pairing" (value head j takes key head j mod n, not j div r), "memory" (the state is
    cleared every 64 tokens).
    """
    assert use_qk_l2norm_in_kernel
    if "key_norm" not in leave_out:
        query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    ratio = value.shape[2] // key.shape[2]
    if "pairing" in leave_out:
        query, key = (x.repeat(1, 1, ratio, 1) for x in (query, key))
    else:
        query, key = (x.repeat_interleave(ratio, 2) for x in (query, key))
    decay = torch.ones_like(g) if "decay" in leave_out else g.exp()
    beta = torch.ones_like(beta) if "beta" in leave_out else beta
    batch, tokens, heads, width = value.shape
    state = value.new_zeros(batch, heads, key.shape[-1], width) if initial_state is None else initial_state.to(value)
    out = torch.empty_like(value)
    for t in range(tokens):
        if "memory" in leave_out and t % 64 == 0:
            state = torch.zeros_like(state)
        state = state * decay[:, t, :, None, None].to(value)
        predicted = torch.einsum("bhkv,bhk->bhv", state, key[:, t])
        if "correction" in leave_out:
            predicted = torch.zeros_like(predicted)
        written = beta[:, t, :, None] * (value[:, t] - predicted)
        state = state + torch.einsum("bhk,bhv->bhkv", key[:, t], written)
        out[:, t] = torch.einsum("bhkv,bhk->bhv", state, query[:, t])
    return out, state if output_final_state else None
