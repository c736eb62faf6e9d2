// attention_prefill: causal attention of all tokens of a step over their sequences' cached K/V (their own included), after
// attention_write.
//
// Work: a tile is ROWS rows (token, query head) of one sequence and one K/V head: PREFILL_TOKENS consecutive tokens times the
// query heads that share the K/V head, so a K/V tile in shared memory serves all of them and short prompts fill a tile. A
// sequence has ceil(count / PREFILL_TOKENS) tiles: no tile spans two sequences. Units (tile, K/V head) are numbered over the
// whole grid and blocks take every (number of blocks)-th, so any grid is correct; ideal is a block a unit. Later tiles of a
// sequence have more keys and go first.
//
// Of a window's keys, tiles that no row of the unit attends to are passed over, and of the first tile the blocks before it: nothing
// there is read.
//
// Four warps; a warp owns ROWS / 4 rows and all keys (mma m16n8k16, f32 sums, online softmax in f32 with the maximum in score
// units; weights rounded to the operand format). The sums of heads beyond 256 do not fit a warp's registers: there two warps have the
// same rows, and half of the columns of their sums each. Both compute all scores, half as many products again as if they exchanged
// halves: for those, a card of 99 KB has no room beside two stages. Keys and values come in tiles of KEYS tokens, gathered from their blocks with
// cp.async two tiles deep: the next tile is under way while one is multiplied. An f32 cache is rounded to bf16 as it is staged, and
// codes of fp8 become f16, as codes of groups do with their scales (a turbo8's bf16); heads whose rows are not whole 16-byte chunks and these
// caches are staged with ordinary loads. Context vectors of values that are kept rotated are rotated back before they are stored, eight rows at
// a time, which take the place of the warp's queries.
//
// Shared memory (PrefillShared): q tile, 2 x (keys, values), rows of HEAD_DIM_16 + 8 elements: an odd number of 16-byte chunks,
// so ldmatrix meets no bank conflict and addresses stay linear. Barriers: one a key tile, one a unit.
#pragma once

#include "attention/attention.cuh"

namespace monomorph {

template <class C>
struct PrefillShape {
    using A = AttentionShape<C>;
    static constexpr int D = A::HEAD_DIM_16, WARPS = 4, THREADS = 128;
    static constexpr int WARP_TILES = D <= 128 ? 2 : 1;  // m16 tiles of a warp: what the registers of its sums allow
    static constexpr int COLUMN_WARPS = D <= 256 ? 1 : 2, COLUMNS = D / COLUMN_WARPS;  // warps that share rows; columns of each one's sums
    static constexpr int ROWS = 16 * WARP_TILES * WARPS / COLUMN_WARPS, TOKENS = ROWS / A::GROUP;
    static constexpr int KEYS = C::PREFILL_KEYS, STRIDE = D + 8;
    static constexpr int CHUNKS = D / 8;  // 16-byte chunks of a row
    static constexpr int BLOCKS = KEYS > C::BLOCK_TOKENS ? KEYS / C::BLOCK_TOKENS : 1;  // K/V blocks a key tile touches
    static constexpr bool ASYNCHRONOUS = sizeof(typename C::Kv) == 2 && C::HEAD_DIM % 8 == 0;
    static constexpr bool ROTATED_VALUES = is_rotated<typename C::Kv, Side::Values>();
    static_assert(KEYS % 16 == 0 && (KEYS % C::BLOCK_TOKENS == 0 || C::BLOCK_TOKENS % KEYS == 0), "key tiles and blocks nest");
    static_assert(C::HEAD_DIM % 2 == 0, "context vectors are stored in pairs");
    static_assert(COLUMNS % 16 == 0 && COLUMNS <= 256, "a warp's columns are whole tiles, and its registers hold them");
};

template <class C>
struct PrefillShared {
    using S = PrefillShape<C>;
    using Operand = typename AttentionShape<C>::Operand;
    alignas(16) Operand q[S::ROWS * S::STRIDE];
    struct {
        alignas(16) Operand keys[S::KEYS * S::STRIDE];
        alignas(16) Operand values[S::KEYS * S::STRIDE];
    } stage[2];
    int blocks[2][S::BLOCKS];
};

// Tokens of a tile: the divisor of the grid.
template <class C>
constexpr int PREFILL_TOKENS = PrefillShape<C>::TOKENS;
template <class C>
constexpr size_t prefill_shared_bytes() { return sizeof(PrefillShared<C>); }

// Of a tile: its first row, its tokens, its first token's position, where its sequence's table of blocks begins, which sequence that is.
struct PrefillTile {
    int row, tokens, position, block_start, sequence;
};

// Tiles of lane's sequence `base + lane`, summed up to and including it.
template <int TOKENS>
__device__ __forceinline__ int scan_tiles(const Step* step, int base, int lane) {
    int tiles = base + lane < step->sequences ? (step->sequence[base + lane].count + TOKENS - 1) / TOKENS : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, tiles, distance);
        if (lane >= distance) tiles += before;
    }
    return tiles;
}

template <int TOKENS>
__device__ __forceinline__ int count_tiles(const Step* step, int lane) {
    int tiles = 0;
    for (int base = 0; base < step->sequences; base += 32) tiles += __shfl_sync(0xffffffffu, scan_tiles<TOKENS>(step, base, lane), 31);
    return tiles;
}

// Every warp finds it by itself: cheaper than telling the others.
template <class C, int TOKENS>
__device__ __forceinline__ PrefillTile find_tile(const Step* step, int tile, int lane) {
    for (int base = 0;; base += 32) {
        const int ends = scan_tiles<TOKENS>(step, base, lane), all = __shfl_sync(0xffffffffu, ends, 31);
        if (tile < all) {
            const int before = __popc(__ballot_sync(0xffffffffu, ends <= tile));
            const int start = before == 0 ? 0 : __shfl_sync(0xffffffffu, ends, before - 1);
            const Sequence& sequence = step->sequence[base + before];
            const int token = (tile - start) * TOKENS;
            return {sequence.first_token + token, min(TOKENS, sequence.count - token), sequence.position + token,
                    table_start<C>(step, base + before), base + before};
        }
        tile -= all;
    }
}

// Eight e4m3 as f16.
__device__ __forceinline__ uint4 widen_eight(uint2 codes) {
    uint4 halves;
    unpack_e4m3(codes.x, halves.x, halves.y);
    unpack_e4m3(codes.y, halves.z, halves.w);
    return halves;
}

// Eight elements of a K/V row to shared memory in the operand format, zeros where the row is not `live` or has ended.
template <class C>
__device__ __forceinline__ void stage_chunk(typename AttentionShape<C>::Operand* to, const typename C::Kv* row, int column, bool live) {
    if constexpr (PrefillShape<C>::ASYNCHRONOUS) {
        live = live && column < C::HEAD_DIM;
        copy_16(to, row + (live ? column : 0), live ? 16 : 0);
    } else if constexpr (sizeof(typename C::Kv) == 1 && C::HEAD_DIM % 8 == 0) {
        uint2 codes = make_uint2(0, 0);
        if (live && column < C::HEAD_DIM) codes = *reinterpret_cast<const uint2*>(row + column);
        *reinterpret_cast<uint4*>(to) = widen_eight(codes);
    } else {
        using Operand = typename AttentionShape<C>::Operand;
        float v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = live && column + j < C::HEAD_DIM ? widen(row[column + j]) : 0.0f;
        *reinterpret_cast<uint4*>(to) = make_uint4(pack_pair<Operand>(v[0], v[1]), pack_pair<Operand>(v[2], v[3]),
                                                   pack_pair<Operand>(v[4], v[5]), pack_pair<Operand>(v[6], v[7]));
    }
}

// A chunk of codes of groups in the operand format. at, scale_at: where it and its scale stand.
template <class C, class Row>
__device__ __forceinline__ uint4 chunk_operands(const Lot<Row, 1>& lot, int at, int scale_at) {
    using E = typename Row::E;
    uint32_t codes[2], words[4];
    lot.eight(0, at, codes);
    const auto by = PairScale<E>::both(lot.scale_bits(0, scale_at));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        uint32_t pairs[2], terms[E::TERMS];
        unpack_e4m3(codes[i], pairs[0], pairs[1]);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            multiply_pair<AttentionShape<C>::F16>(pairs[j], by, terms);
            words[2 * i + j] = terms[0];
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// What stage_chunk does, of a chunk of groups. `from`: of the token.
template <class C, Side SIDE>
__device__ __forceinline__ void stage_codes(typename AttentionShape<C>::Operand* to, const KeptPlace& from, int chunk, bool live) {
    using Row = KeptRow<C, SIDE>;
    const int at = Row::chunk(chunk), scale_at = Row::scale(chunk / 2);
    Lot<Row, 1> lot = {};
    lot.template load<false>(live, from, at, scale_at);
    *reinterpret_cast<uint4*>(to) = chunk_operands<C>(lot, at, scale_at);
}

// Keys and values first .. first + KEYS of the sequence, those wanted, begin .. end; `blocks` are the ids of the blocks they are in.
template <class C>
__device__ __forceinline__ void stage_keys(PrefillShared<C>& shared, int stage, const typename C::Kv* layer, const int* blocks,
                                           int kv_head, int first, int begin, int end) {
    using S = PrefillShape<C>;
    constexpr int AT_ONCE = GROUPED<typename C::Kv> ? 1 : 2;
#pragma unroll AT_ONCE  // more addresses at once would cost the sums their registers
    for (int i = 0; i < S::KEYS * S::CHUNKS; i += S::THREADS) {
        const int item = i + threadIdx.x, token = item / S::CHUNKS, chunk = item % S::CHUNKS;
        if (S::KEYS * S::CHUNKS % S::THREADS != 0 && item >= S::KEYS * S::CHUNKS) break;
        const int block = blocks[S::BLOCKS == 1 ? 0 : token / C::BLOCK_TOKENS], in_block = (first + token) % C::BLOCK_TOKENS;
        const bool live = first + token < end && (!Window<C>::THERE || first + token >= begin);
        const int to = token * S::STRIDE + chunk * 8;
        if constexpr (GROUPED<typename C::Kv>) {
            stage_codes<C, Side::Keys>(&shared.stage[stage].keys[to], kept_place<C, Side::Keys>(layer, block, kv_head, in_block), chunk, live);
            stage_codes<C, Side::Values>(&shared.stage[stage].values[to], kept_place<C, Side::Values>(layer, block, kv_head, in_block), chunk, live);
        } else {
            const typename C::Kv* row = cached_row<C, const typename C::Kv*>(layer, block, kv_head, in_block);
            stage_chunk<C>(&shared.stage[stage].keys[to], row, chunk * 8, live);
            stage_chunk<C>(&shared.stage[stage].values[to], row + AttentionShape<C>::VALUES, chunk * 8, live);
        }
    }
}

// scores[t][n] = q rows 16t .. of the warp times keys 8n .. of the tile. Addresses are ldmatrix lane addresses.
template <class C>
__device__ __forceinline__ void multiply_scores(float (&scores)[PrefillShape<C>::WARP_TILES][PrefillShape<C>::KEYS / 8][4],
                                                unsigned q, unsigned keys) {
    using S = PrefillShape<C>;
    using Operand = typename AttentionShape<C>::Operand;
#pragma unroll
    for (int t = 0; t < S::WARP_TILES; ++t)
#pragma unroll
        for (int n = 0; n < S::KEYS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[t][n][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < S::D; k += 16) {
        unsigned a[S::WARP_TILES][4], b[4];
#pragma unroll
        for (int t = 0; t < S::WARP_TILES; ++t) ldmatrix_4(a[t], q + (16 * t * S::STRIDE + k) * 2);
#pragma unroll
        for (int n = 0; n < S::KEYS; n += 16) {
            ldmatrix_4(b, keys + (n * S::STRIDE + k) * 2);
#pragma unroll
            for (int t = 0; t < S::WARP_TILES; ++t) {
                mma_16<Operand>(scores[t][n / 8], a[t], b[0], b[1]);
                mma_16<Operand>(scores[t][n / 8 + 1], a[t], b[2], b[3]);
            }
        }
    }
}

// context[t][d] += weights (of the operand format's precision) times values, of the warp's columns.
template <class C>
__device__ __forceinline__ void multiply_context(float (&context)[PrefillShape<C>::WARP_TILES][PrefillShape<C>::COLUMNS / 8][4],
                                                 const float (&weights)[PrefillShape<C>::WARP_TILES][PrefillShape<C>::KEYS / 8][4],
                                                 unsigned values) {
    using S = PrefillShape<C>;
    using Operand = typename AttentionShape<C>::Operand;
#pragma unroll
    for (int k = 0; k < S::KEYS; k += 16) {
        uint32_t a[S::WARP_TILES][4];
#pragma unroll
        for (int t = 0; t < S::WARP_TILES; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                a[t][i] = pack_pair<Operand>(weights[t][k / 8 + i / 2][i % 2 * 2], weights[t][k / 8 + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < S::COLUMNS; d += 16) {
            unsigned b[4];
            ldmatrix_4_transposed(b, values + (k * S::STRIDE + d) * 2);
#pragma unroll
            for (int t = 0; t < S::WARP_TILES; ++t) {
                mma_16<Operand>(context[t][d / 8], a[t], b[0], b[1]);
                mma_16<Operand>(context[t][d / 8 + 1], a[t], b[2], b[3]);
            }
        }
    }
}

// step; q [rows, HEADS, HEAD_DIM_16] of the operand format; layer: the cache's base of this layer; out f32 [rows, WIDTH]; qkv: GATED.
template <class C>
__device__ __forceinline__ void attention_prefill(const Step* step, const typename AttentionShape<C>::Operand* q,
                                                  const typename C::Kv* layer, float* out,
                                                  const float* qkv = nullptr) {
    using A = AttentionShape<C>;
    using S = PrefillShape<C>;
    constexpr int GROUP = A::GROUP, WARP_ROWS = 16 * S::WARP_TILES;
    constexpr float SCALE_2 = C::SCALE * 1.4426950408889634f;  // scores to powers of two
    MONOMORPH_DYNAMIC_SHARED(shared_bytes, 16);
    PrefillShared<C>& shared = *reinterpret_cast<PrefillShared<C>*>(shared_bytes);
    launch_dependents();
    wait_for_predecessors();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int first_row = warp / S::COLUMN_WARPS * WARP_ROWS, first_column = warp % S::COLUMN_WARPS * S::COLUMNS;  // of its sums
    const unsigned q_lane = shared_address(&shared.q[(first_row + lane % 16) * S::STRIDE + lane / 16 * 8]);
    const unsigned key_lane = (lane / 16 * 8 + lane % 8) * S::STRIDE * 2 + lane / 8 % 2 * 16;
    const unsigned value_lane = (lane / 8 % 2 * 8 + lane % 8) * S::STRIDE * 2 + lane / 16 * 16 + first_column * 2;

    const int all_tiles = count_tiles<PREFILL_TOKENS<C>>(step, lane);
    for (int unit = blockIdx.x + gridDim.x * blockIdx.y; unit < all_tiles * C::KV_HEADS; unit += gridDim.x * gridDim.y) {
        const int kv_head = unit % C::KV_HEADS;
        const float scale_2 = SCALE_2 * static_scale<C>(layer, Side::Keys, kv_head), value_scale = static_scale<C>(layer, Side::Values, kv_head);
        const PrefillTile tile = find_tile<C, PREFILL_TOKENS<C>>(step, all_tiles - 1 - unit / C::KV_HEADS, lane);
        const int live_rows = tile.tokens * GROUP, keys_end = tile.position + tile.tokens;
        const int key_tiles = (keys_end + S::KEYS - 1) / S::KEYS;
        const int keys_begin = Window<C>::first(tile.position), first_tile = keys_begin / S::KEYS;
        const int* blocks = step->blocks() + tile.block_start;
        // Block ids of a key tile; those of keys that are not wanted are not looked up (nor are these read).
        auto find_block = [&](int key_tile) {
            const int first = key_tile * S::KEYS + static_cast<int>(threadIdx.x) * C::BLOCK_TOKENS;
            const bool wanted = first < keys_end && (!Window<C>::THERE || first / C::BLOCK_TOKENS >= keys_begin / C::BLOCK_TOKENS);
            return wanted ? blocks[first / C::BLOCK_TOKENS] : 0;
        };
        if (thread < S::BLOCKS) {
            shared.blocks[first_tile % 2][thread] = find_block(first_tile);
            shared.blocks[1 - first_tile % 2][thread] = find_block(first_tile + 1);
        }
        for (int i = thread; i < S::ROWS * S::CHUNKS; i += S::THREADS) {
            const int row = i / S::CHUNKS, chunk = i % S::CHUNKS;
            const bool live = row < live_rows;
            const size_t from = static_cast<size_t>(tile.row + (live ? row / GROUP : 0)) * C::HEADS + kv_head * GROUP + row % GROUP;
            copy_16(&shared.q[row * S::STRIDE + chunk * 8], q + from * S::D + chunk * 8, live ? 16 : 0);
        }
        __syncthreads();
        stage_keys<C>(shared, first_tile % 2, layer, shared.blocks[first_tile % 2], kv_head, first_tile * S::KEYS, keys_begin, keys_end);
        copy_commit();

        float context[S::WARP_TILES][S::COLUMNS / 8][4] = {};
        float maximum[S::WARP_TILES][2], sum[S::WARP_TILES][2];
#pragma unroll
        for (int t = 0; t < S::WARP_TILES; ++t)
#pragma unroll
            for (int i = 0; i < 2; ++i) maximum[t][i] = -INFINITY, sum[t][i] = 0.0f;
        const int first_position = tile.position + first_row / GROUP, last_position = tile.position + (first_row + WARP_ROWS - 1) / GROUP;

        for (int key_tile = first_tile; key_tile < key_tiles; ++key_tile) {
            const int stage = key_tile % 2, first_key = key_tile * S::KEYS;
            copy_wait<0>();
            __syncthreads();  // the tile has arrived, and everyone is done with the one before, whose place the next one takes
            if (key_tile + 1 < key_tiles) stage_keys<C>(shared, 1 - stage, layer, shared.blocks[1 - stage], kv_head, first_key + S::KEYS, keys_begin, keys_end);
            copy_commit();
            const int later_block = thread < S::BLOCKS ? find_block(key_tile + 2) : 0;

            const bool is_behind = Window<C>::THERE && first_key + S::KEYS <= Window<C>::first(first_position);  // the warp's rows see none of it
            if (first_row < live_rows && first_key <= last_position && !is_behind) {
                float scores[S::WARP_TILES][S::KEYS / 8][4];
                multiply_scores<C>(scores, q_lane, shared_address(shared.stage[stage].keys) + key_lane);
                const bool is_cut = Window<C>::THERE && first_key < Window<C>::first(last_position);
                if (first_key + S::KEYS - 1 > first_position || is_cut) {
#pragma unroll
                    for (int t = 0; t < S::WARP_TILES; ++t)
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const int position = tile.position + (first_row + 16 * t + g + i / 2 * 8) / GROUP;
                            const int last_key = position - first_key, seen = Window<C>::first(position) - first_key;
#pragma unroll
                            for (int n = 0; n < S::KEYS / 8; ++n) {
                                const int key = 8 * n + 2 * c + i % 2;
                                if (key > last_key || (Window<C>::THERE && key < seen)) scores[t][n][i] = -INFINITY;
                            }
                        }
                }
#pragma unroll
                for (int t = 0; t < S::WARP_TILES; ++t)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float largest = maximum[t][i];
#pragma unroll
                        for (int n = 0; n < S::KEYS / 8; ++n) largest = fmaxf(largest, fmaxf(scores[t][n][2 * i], scores[t][n][2 * i + 1]));
                        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
                        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
                        const float origin = Window<C>::finite(largest);
                        const float shrink = power_of_two((maximum[t][i] - origin) * scale_2), offset = -origin * scale_2;
                        maximum[t][i] = largest;
                        float added = 0.0f;
#pragma unroll
                        for (int n = 0; n < S::KEYS / 8; ++n)
#pragma unroll
                            for (int j = 2 * i; j < 2 * i + 2; ++j) {
                                scores[t][n][j] = power_of_two(fmaf(scores[t][n][j], scale_2, offset));
                                added += scores[t][n][j];
                            }
                        sum[t][i] = sum[t][i] * shrink + added;
#pragma unroll
                        for (int d = 0; d < S::COLUMNS / 8; ++d) context[t][d][2 * i] *= shrink, context[t][d][2 * i + 1] *= shrink;
                    }
                multiply_context<C>(context, scores, shared_address(shared.stage[stage].values) + value_lane);
            }
            if (thread < S::BLOCKS) shared.blocks[stage][thread] = later_block;
        }

#pragma unroll
        for (int t = 0; t < S::WARP_TILES; ++t)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float total = sum[t][i];
                total += __shfl_xor_sync(0xffffffffu, total, 1);
                total += __shfl_xor_sync(0xffffffffu, total, 2);
                const float inverse = value_scale / total;
                const int row = first_row + 16 * t + g + 8 * i;
                if constexpr (S::ROTATED_VALUES) {
                    // The rows of the warp's queries are as wide as half as many of f32. Warps that share rows share these out.
                    float* rows = reinterpret_cast<float*>(&shared.q[first_row * S::STRIDE]);
                    const auto meet = [&] {
                        if constexpr (S::COLUMN_WARPS == 1) __syncwarp();
                        else named_barrier(1 + warp / S::COLUMN_WARPS, 32 * S::COLUMN_WARPS);
                    };
                    meet();
#pragma unroll
                    for (int d = 0; d < S::COLUMNS / 8; ++d)
                        *reinterpret_cast<float2*>(rows + g * S::STRIDE + first_column + 8 * d + 2 * c) = make_float2(context[t][d][2 * i] * inverse, context[t][d][2 * i + 1] * inverse);
                    meet();
                    const int first = first_row + 16 * t + 8 * i;
#pragma unroll 1
                    for (int of_eight = warp % S::COLUMN_WARPS; of_eight < min(8, live_rows - first); of_eight += S::COLUMN_WARPS) {
                        HeadVector<C> vector;
                        vector.load(rows + of_eight * S::STRIDE, lane);
                        const int from = first + of_eight;
                        store_rotated<C>(out, qkv, tile.row + from / GROUP, (kv_head * GROUP + from % GROUP) * C::HEAD_DIM, vector, lane);
                    }
                } else if (row < live_rows) {
                    const int column = (kv_head * GROUP + row % GROUP) * C::HEAD_DIM + first_column + 2 * c;
#pragma unroll
                    for (int d = 0; d < S::COLUMNS / 8; ++d)
                        if (first_column + 8 * d + 2 * c < C::HEAD_DIM) {
                            float pair[2] = {context[t][d][2 * i] * inverse, context[t][d][2 * i + 1] * inverse};
                            gate_context<C>(qkv, tile.row + row / GROUP, column + 8 * d, pair);
                            store_context<C>(out, tile.row + row / GROUP, column + 8 * d, pair);
                        }
                }
            }
        __syncthreads();  // before the next unit's q
    }
}

}  // namespace monomorph
