//! The gated delta-net's kernels.

use crate::blocks::recurrent::{Chunks, EXACT, Journals, States, VERIFIED, Windows};
use crate::kernels::{Declared, Header, Rows, Vector, constants, kernels};

const HEADS: &[Declared] = constants![
    KEY_HEADS: int, VALUE_HEADS: int, KEY_DIM: int, VALUE_DIM: int, TAPS: int, WINDOW: int,
    NORM_EPS: float, PROJECTED: int, DRAFTS: int,
];

kernels! {
    /// The recurrence of a prompt, chunk by chunk.
    delta_chunks => DeltaChunks in "delta_net/delta_chunks.cuh",
        [HEADS, constants![CHUNK_SPLIT: int, SLOTS: int]];
    (step: READ Header, scratch: READ Chunks, states: WRITE States, journals: WRITE Journals, o: WRITE Rows)
    check "DeltaChunks<{config}>::THREADS == {block} && delta_chunks_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::CHUNK_SPLIT * {config}::VALUE_HEADS"
    bytes matrices "4 * DeltaShape<{config}>::STATE"
    bytes journals "4 * DeltaShape<{config}>::JOURNAL_ROWS * DeltaShape<{config}>::JOURNAL_WIDTH"
    body "delta_chunks<{config}>(step, scratch, {states, nullptr, journals}, o);";

    /// Convolution, delta rule, norm and gate of a decode step.
    delta_decode => DeltaDecode in "delta_net/delta_decode.cuh",
        [HEADS, VERIFIED, constants![SPLIT: int, THREADS: int, STATE_BEFORE_WAIT: bool]];
    (
        step: READ Header, projected: READ Rows, gates: READ Rows, convolution: READ Vector, a_log: READ Vector,
        dt_bias: READ Vector, norm: READ Vector, states: WRITE States, windows: WRITE Windows,
        journals: WRITE Journals, out: WRITE Rows,
    )
    check "{config}::THREADS == {block} && delta_decode_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::SPLIT"
    grid y "{config}::VALUE_HEADS"
    bytes matrices "4 * DeltaShape<{config}>::STATE"
    bytes windows "4 * DeltaShape<{config}>::WINDOW_STRIDE"
    bytes journals "4 * DeltaShape<{config}>::JOURNAL_ROWS * DeltaShape<{config}>::JOURNAL_WIDTH"
    body "delta_decode<{config}>(step, projected, gates, {convolution, a_log, dt_bias, norm}, \
          {states, windows, journals}, out);";

    /// Norm and gate after the recurrence.
    delta_gate => DeltaGate in "delta_net/delta_gate.cuh", [HEADS, EXACT];
    (
        step: READ Header, projected: READ Rows, o: READ Rows, norm: READ Vector, windows: WRITE Windows,
        out: WRITE Rows,
    )
    check "DELTA_GATE_THREADS == {block}"
    bytes windows "4 * DeltaShape<{config}>::WINDOW_STRIDE";

    /// Convolution and recurrence, token by token.
    delta_plain => DeltaPlain in "delta_net/delta_plain.cuh", [HEADS, VERIFIED, EXACT];
    (
        step: READ Header, projected: READ Rows, gates: READ Rows, convolution: READ Vector, a_log: READ Vector,
        dt_bias: READ Vector, states: WRITE States, windows: WRITE Windows, journals: WRITE Journals,
        o: WRITE Rows,
    )
    check "DELTA_PLAIN_THREADS == {block} && delta_plain_shared_bytes<{config}>() <= {shared}"
    grid x "{config}::VALUE_HEADS"
    bytes matrices "4 * DeltaShape<{config}>::STATE"
    bytes windows "4 * DeltaShape<{config}>::WINDOW_STRIDE"
    bytes journals "4 * DeltaShape<{config}>::JOURNAL_ROWS * DeltaShape<{config}>::JOURNAL_WIDTH"
    body "delta_plain<{config}>(step, projected, gates, {convolution, a_log, dt_bias, nullptr}, \
          {states, windows, journals}, o);";

    /// The part of a prompt's chunks that needs no state.
    delta_prepare => DeltaPrepare in "delta_net/delta_prepare.cuh",
        [HEADS, constants![ROWS: int, SEQUENCES: int]];
    (
        step: READ Header, projected: READ Rows, gates: READ Rows, convolution: READ Vector, a_log: READ Vector,
        dt_bias: READ Vector, windows: READ Windows, scratch: WRITE Chunks,
    )
    check "DELTA_PREPARE_THREADS == {block} && delta_prepare_shared_bytes<{config}>() <= {shared}"
    bytes windows "4 * DeltaShape<{config}>::WINDOW_STRIDE"
    bytes chunks "delta_scratch_bytes<{config}>({config}::ROWS, {config}::SEQUENCES)"
    body "delta_prepare<{config}>(step, projected, gates, {convolution, a_log, dt_bias, nullptr}, windows, \
          scratch);";
}
