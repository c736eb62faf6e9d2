"""The step header (templates/cuda/core/step.cuh): what a forward pass is about, for the steps that are measured."""

import struct


def token_id(index):
    """Another one for every sequence and position, so that rows choose experts of their own; all in any vocabulary."""
    return 11 + 5 * index % 499


def header(most, tokens, sequences, outputs, blocks):
    """`sequences` as (first token, count, position, first block); greedy sampling of each of `outputs` rows."""
    data = struct.pack("<4i", tokens, len(sequences), outputs, 16 + most * (4 + 32 + 64))
    data += struct.pack(f"<{most}i", *range(outputs), *[0] * (most - outputs))
    for index in range(most):
        if index < len(sequences):
            first, count, position, block = sequences[index]
            # Slot, place among those that are drafted for, and the id that follows.
            data += struct.pack("<8i", first, count, position, block, token_id(index), index, -1, -1)
        else:
            data += bytes(32)
    for index in range(most):
        # Temperature, top_p, min_p and penalties; top_k and top_logprobs; seed and draw; slot, history, mask.
        data += struct.pack("<6fIiQQ4i", 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, -1, index, 0, -1, 0, 0, -1)
    return data + struct.pack(f"<{len(blocks)}i", *blocks)


def decode(most, rows, context, block_tokens):
    """Each of `rows` sequences feeds one token after `context` others. The header, and how many K/V blocks it names."""
    each = -(-(context + 1) // block_tokens)
    sequences = [(row, 1, context, row * each) for row in range(rows)]
    return header(most, rows, sequences, rows, range(rows * each)), rows * each


def prefill(most, tokens, block_tokens):
    """One prompt of `tokens`, nothing cached. The header, the token rows, and how many K/V blocks it names."""
    blocks = -(-tokens // block_tokens)
    rows = b"".join(struct.pack("<2i", token_id(at), 0) for at in range(tokens))
    return header(most, tokens, [(0, tokens, 0, 0)], 0, range(blocks)), rows, blocks
