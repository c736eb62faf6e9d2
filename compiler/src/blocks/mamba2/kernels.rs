//! Mamba-2's kernels.

use crate::blocks::recurrent::{Chunks, EXACT, Journals, States, VERIFIED, Windows};
use crate::kernels::{Declared, Header, Rows, Vector, constants, kernels};

const HEADS: &[Declared] = constants![
    HEADS: int, HEAD_DIM: int, GROUPS: int, STATE: int, TAPS: int, WINDOW: int, NORM_EPS: float,
    PROJECTED: int, DRAFTS: int,
];

kernels! {
    /// The recurrence of a prompt, chunk by chunk.
    mamba2_chunks => Mamba2Chunks in "mamba2/mamba2_chunks.cuh", [HEADS, constants![SLOTS: int]];
    (step: READ Header, scratch: READ Chunks, states: WRITE States, journals: WRITE Journals, y: WRITE Rows)
    check "Mamba2Chunks<{config}>::THREADS == {block} && mamba2_chunks_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::HEADS"
    bytes matrices "4 * Mamba2Shape<{config}>::STATE"
    bytes journals "4 * Mamba2Shape<{config}>::JOURNAL_ROWS * Mamba2Shape<{config}>::JOURNAL_WIDTH"
    body "mamba2_chunks<{config}>(step, scratch, {states, nullptr, journals}, y);";

    /// Convolution, recurrence, gate and norm of a decode step.
    mamba2_decode => Mamba2Decode in "mamba2/mamba2_decode.cuh",
        [HEADS, VERIFIED, constants![SPLIT: int, THREADS: int, STATE_BEFORE_WAIT: bool]];
    (
        step: READ Header, projected: READ Rows, convolution: READ Vector, convolution_bias: READ Vector,
        a_log: READ Vector, dt_bias: READ Vector, d: READ Vector, norm: READ Vector, states: WRITE States,
        windows: WRITE Windows, journals: WRITE Journals, out: WRITE Rows,
    )
    check "{config}::THREADS == {block} && mamba2_decode_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::SPLIT"
    grid y "{config}::GROUPS"
    bytes matrices "4 * Mamba2Shape<{config}>::STATE"
    bytes windows "4 * Mamba2Shape<{config}>::WINDOW_STRIDE"
    bytes journals "4 * Mamba2Shape<{config}>::JOURNAL_ROWS * Mamba2Shape<{config}>::JOURNAL_WIDTH"
    body "mamba2_decode<{config}>(step, projected, {convolution, convolution_bias, a_log, dt_bias, d, norm}, \
          {states, windows, journals}, out);";

    /// Gate and norm after the recurrence.
    mamba2_gate => Mamba2Gate in "mamba2/mamba2_gate.cuh", [HEADS, EXACT];
    (
        step: READ Header, projected: READ Rows, y: READ Rows, norm: READ Vector, windows: WRITE Windows,
        out: WRITE Rows,
    )
    check "MAMBA2_GATE_THREADS == {block}"
    bytes windows "4 * Mamba2Shape<{config}>::WINDOW_STRIDE";

    /// Convolution and recurrence, token by token.
    mamba2_plain => Mamba2Plain in "mamba2/mamba2_plain.cuh", [HEADS, VERIFIED, EXACT];
    (
        step: READ Header, projected: READ Rows, convolution: READ Vector, convolution_bias: READ Vector,
        a_log: READ Vector, dt_bias: READ Vector, d: READ Vector, states: WRITE States, windows: WRITE Windows,
        journals: WRITE Journals, y: WRITE Rows,
    )
    check "MAMBA2_PLAIN_THREADS == {block} && mamba2_plain_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::HEADS"
    bytes matrices "4 * Mamba2Shape<{config}>::STATE"
    bytes windows "4 * Mamba2Shape<{config}>::WINDOW_STRIDE"
    bytes journals "4 * Mamba2Shape<{config}>::JOURNAL_ROWS * Mamba2Shape<{config}>::JOURNAL_WIDTH"
    body "mamba2_plain<{config}>(step, projected, {convolution, convolution_bias, a_log, dt_bias, d, nullptr}, \
          {states, windows, journals}, y);";

    /// The part of a prompt's chunks that needs no state.
    mamba2_prepare => Mamba2Prepare in "mamba2/mamba2_prepare.cuh",
        [HEADS, constants![ROWS: int, SEQUENCES: int]];
    (
        step: READ Header, projected: READ Rows, convolution: READ Vector, convolution_bias: READ Vector,
        a_log: READ Vector, dt_bias: READ Vector, d: READ Vector, windows: READ Windows, scratch: WRITE Chunks,
    )
    check "MAMBA2_PREPARE_THREADS == {block} && mamba2_prepare_shared_bytes<{config}>() <= {shared}"
    bytes windows "4 * Mamba2Shape<{config}>::WINDOW_STRIDE"
    bytes chunks "mamba2_scratch_bytes<{config}>({config}::ROWS, {config}::SEQUENCES)"
    body "mamba2_prepare<{config}>(step, projected, {convolution, convolution_bias, a_log, dt_bias, d, nullptr}, \
          windows, scratch);";
}
