"""Prompts on which rounding stays rounding.

Two things blow it up: two experts whose router logits are all but equal, and an output of the delta rule that is all
but zero, which the norm after it makes large. No token of a prompt does either; the odds are such that most prompts
drawn blindly would.
"""

import contextlib

import torch

import mtp

# Router logits are a few units large. bf16 activations move them by about one hundredth.
LEAD = 0.05
# Root mean square of a head's output before its norm; the median is a tenth.
FLOOR = 0.015
CANDIDATES = 8
RECENT = 16


class Model:
    """A model of transformers with its draft layer, if it has one."""

    def __init__(self, model, layout, tensors):
        self.model, self.layout, self.tensors = model, layout, tensors
        self.drafts = "mtp.fc.weight" in tensors

    @torch.inference_mode()
    def run(self, sequences):
        """Logits [sequences, tokens, vocabulary], draft logits or None; per token, the smallest router margin and the
        smallest output of a linear layer's head [sequences, tokens]."""
        tokens = torch.tensor(sequences)
        with recorded(self.model) as (routed, outputs):
            hidden = self.model.model(tokens, use_cache=False).last_hidden_state
        logits, drafted = self.model.lm_head(hidden).float(), None
        leads, floors = (torch.full(tokens.shape, torch.inf) for _ in range(2))
        for output in outputs:
            size = output.pow(2).mean(-1).sqrt().view(*tokens.shape, -1).amin(-1)
            floors = torch.minimum(floors, size)
        for router in routed:
            leads = torch.minimum(leads, lead(router.view(*tokens.shape, -1), self.layout))
        if self.drafts:
            embedding, head = self.model.model.embed_tokens.weight, self.model.lm_head.weight
            drafted, router = mtp.draft(self.tensors, self.layout.text, tokens, hidden, embedding, head)
            if router is not None:
                # Pair t depends on token t+1.
                leads[:, 1:] = torch.minimum(leads[:, 1:], lead(router, self.layout))
        return logits, drafted, leads, floors


@contextlib.contextmanager
def recorded(model):
    """The router logits of every sparse layer of one forward pass, [tokens, experts] each, and every linear layer's
    output before its norm, [tokens * value heads, value dim]."""
    routed, outputs, hooks = [], [], []
    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            hooks.append(layer.mlp.gate.register_forward_hook(lambda _, given, out: routed.append(keys(given, out))))
        if hasattr(layer, "linear_attn"):
            hooks.append(layer.linear_attn.norm.register_forward_hook(lambda _, x, __: outputs.append(x[0].float())))
    yield routed, outputs
    for hook in hooks:
        hook.remove()


def keys(given, out):
    """What a router chooses by: its logits, or corrected sigmoids, which move a quarter as far at most."""
    logits = out[0].float()
    return logits if len(given) == 1 else 4 * (logits.sigmoid() + given[1])


def lead(router, layout):
    """The margin of the last chosen expert's logit over the first rejected one."""
    active = layout.text["num_experts_per_tok"]
    best = router.topk(active + 1).values
    return best[..., active - 1] - best[..., active]


def clear(models, sequences):
    """Which tokens have a clear choice in all models [sequences, tokens]; logits of the first model."""
    good, logits = torch.ones(len(sequences), len(sequences[0]), dtype=torch.bool), None
    for model in models:
        found, _, leads, floors = model.run(sequences)
        good &= (leads > LEAD) & (floors > FLOOR)
        logits = found if logits is None else logits
    return good, logits


def prompt(models, rng, length):
    """Random tokens, redrawn until every model's choice is clear. Later tokens do not affect earlier ones."""
    done, stuck = [], 0
    for _ in range(1000):
        tails = rng.integers(0, models[0].layout.vocabulary, (CANDIDATES, length - len(done))).tolist()
        sequences = [done + tail for tail in tails]
        good = clear(models, sequences)[0].long().cumprod(-1).sum(-1)
        best = good.argmax().item()
        if good[best] == length:
            return sequences[best]
        stuck = stuck + 1 if good[best] == len(done) else 0
        done = sequences[best][: good[best]]
        if stuck == 8:
            done, stuck = done[:-4], 0
    raise AssertionError(f"no prompt of {length} tokens is clear; another seed may do")


def continuation(models, sequence, steps):
    """Greedy tokens of the first model among those that are clear in all models and differ from the last few: small
    random models soon repeat themselves."""
    logits = clear(models, [sequence])[1][0, -1]
    for _ in range(steps):
        order = logits[: models[0].layout.vocabulary].argsort(descending=True, stable=True).tolist()
        order = [token for token in order if token not in sequence[-RECENT:]]
        for start in range(0, len(order), CANDIDATES):
            tries = order[start : start + CANDIDATES]
            good, after = clear(models, [[*sequence, token] for token in tries])
            if good[:, -1].any():
                first = good[:, -1].long().argmax().item()
                sequence, logits = [*sequence, tries[first]], after[first, -1]
                break
        else:
            raise AssertionError(f"no token after {len(sequence)} is clear")
    return sequence
