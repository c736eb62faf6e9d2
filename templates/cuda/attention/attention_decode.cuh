// attention_decode: one token a sequence. Norms and rotary of its heads, its K/V into the cache, attention over the context, all in
// one launch.
//
// Work: block (split, K/V head, row) of the grid (SPLITS, KV_HEADS, rows of the bucket), DECODE_WARPS warps. The context of
// n tokens, without the tiles that lie wholly behind the window, is cut into chunks of whole warp tiles, as many as SPLITS but none
// below MIN_CHUNK; blocks without a chunk end. All
// query heads of the K/V head are one tile of 16 rows, so K and V are read once. A warp takes every DECODE_WARPS-th tile of 16
// tokens of the chunk and keeps its own running maximum, sum and context vector; the block's warps meet in shared memory, the
// blocks of a (row, K/V head) in `partials`: the last to arrive at the counter adds all of them up in the order of the splits
// and sets the counter back to zero. A chunk that is the whole context goes to `out` at once.
//
// Products run on the tensor cores straight from registers: a lane's 16-byte load of a key row is the B fragment of two
// m16n8k16 steps if q's columns (A, a row a head) are permuted alike; value rows become A fragments (a row a column of V) by
// pairing two tokens' halves with one byte permute, and the scores' fragment is the B fragment of their weights. Nothing passes
// through shared memory, no element is converted, and the products of a tile take a tenth of the time its bytes do. Therefore q
// and the softmax weights enter as two terms, rounded to 16 bits plus what that lost: 16 bits of mantissa. With up to 8
// query heads q's second term fills the tile's other 8 rows. An f32 cache is multiplied as two bf16 terms. Codes of an fp8 cache become
// f16 in registers, two an instruction: of keys as they lie, of values once two tokens' are side by side. Codes of groups become codes of
// fp8 first (grouped.cuh), and then products with their scales. Queries are rotated where keys are; context vectors are rotated back
// once, before their gates.
//
// The token's own K/V row is never read from memory: the block whose chunk holds its position (the last) computes it, writes it
// to the cache, and puts it into the registers of the tile it belongs to.
// TOKENS > 1: rows are TOKENS adjacent ones a sequence, at consecutive positions. A block whose chunk reaches the step's tokens makes the K/V of
// the rows before its own too, each of which only its own row's block writes: a few norms more in place of a launch's boundary. Keys and values of
// the context are asked for by TOKENS blocks at about the same time, and come from the second-level cache to all but the first.
//
// Latency: header, block table and K/V are a chain of three reads; the first tile's loads are issued before the prologue's
// arithmetic, each tile's before the previous tile's products that do not need the registers.
//
// Barriers: one after the prologue, one before the warps meet; two more where blocks meet; one before context vectors are rotated back.
// Shared memory: DecodeShared.
// Scratch: partials decode_partials_bytes, counters decode_counters (ints, zero before the first launch, left zero).
#pragma once

#include "attention/attention_decode_combine.cuh"

namespace monomorph {

// step; qkv f32 [rows, QKV_WIDTH]; q_norm, k_norm f32 [HEAD_DIM] or null; rotary f32 [positions][pairs][2];
// layer: the cache's base of this layer; partials, counters: see above (null if SPLITS is 1); out f32 [rows, WIDTH].
template <class C>
__device__ __forceinline__ void attention_decode(const Step* step, const float* qkv, const float* q_norm, const float* k_norm,
                                                 const float* rotary, typename C::Kv* layer, float* partials, int* counters,
                                                 float* out) {
    using A = AttentionShape<C>;
    using S = DecodeShape<C>;
    using Kv = typename C::Kv;
    using Operand = typename A::Operand;
    constexpr int D = C::HEAD_DIM, GROUP = S::GROUP, WARPS = S::WARPS;
    constexpr bool ROTATED_KEYS = is_rotated<Kv, Side::Keys>(), ROTATED_VALUES = is_rotated<Kv, Side::Values>();
    MONOMORPH_DYNAMIC_SHARED(shared_bytes, 16);
    DecodeShared<C>& shared = *reinterpret_cast<DecodeShared<C>*>(shared_bytes);

    launch_dependents();
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, c = lane % 4;
    const int split = blockIdx.x, kv_head = blockIdx.y, row = blockIdx.z;
    const float key_scale = static_scale<C>(layer, Side::Keys, kv_head), value_scale = static_scale<C>(layer, Side::Values, kv_head);

    // Constants of the model, and the parts of shared memory that stay zero.
    HeadVector<C> q_weight, k_weight;
    if constexpr (C::Q_NORM != HeadNorm::None) q_weight.load(q_norm, lane);
    if constexpr (C::K_NORM != HeadNorm::None) k_weight.load(k_norm, lane);
    for (int i = thread; i < S::HEAD_SETS * S::Q_FRAGMENTS * 32; i += S::THREADS)
        reinterpret_cast<uint4*>(shared.q)[i] = make_uint4(0, 0, 0, 0);
    if constexpr (!GROUPED<Kv>) {
#pragma unroll
        for (int t = 0; t < C::TOKENS; ++t) {
            for (int i = D + thread; i < S::KEY_STEPS * 32; i += S::THREADS) shared.key[t][i] = Kv(0.0f);
            for (int i = D + thread; i < S::VALUE_STEPS * 64; i += S::THREADS) shared.value[t][i] = Kv(0.0f);
        }
    }
    __syncthreads();  // q's zeros stand before q

    if constexpr (!C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
    const int sequences = step->sequences;
    const int position = step->sequence[row].position, block_start = table_start<C>(step, row);
    const int before = C::TOKENS == 1 ? 0 : row % C::TOKENS, cached = position - before;  // rows of the step and tokens of the cache before this one
    // Items of the prologue: the query heads, then key and value of the step's tokens from the first of the sequence on.
    const auto token_of = [&](int item) { return (item - GROUP) / 2; };
    const auto is_value = [&](int item) { return (item - GROUP) % 2 != 0; };
    constexpr int HELD = S::TOGETHER ? S::ITEMS : 1;
    HeadVector<C> heads[HELD];
    auto load_head = [&](HeadVector<C>& head, int item) {
        const int from = item < GROUP ? kv_head * GROUP + item : kv_head + (is_value(item) ? A::FIRST_VALUE : A::FIRST_KEY);
        const int at = C::TOKENS == 1 || item < GROUP ? row : row - before + token_of(item);
        if (item < GROUP || token_of(item) <= before) head.load(qkv + static_cast<size_t>(at) * A::QKV_WIDTH + from * D, lane);
    };
    auto load_heads = [&] {
#pragma unroll
        for (int i = 0; i < HELD; ++i) load_head(heads[i], warp + i * WARPS);
    };
    if constexpr (!C::CONTEXT_BEFORE_WAIT) load_heads();

    // This block's chunk, in tiles of 16 tokens: first .. last of the sequence's.
    const int seen = Window<C>::first(position), base = seen / 16;
    const int tiles = position / 16 + 1 - base;
    const int even_share = (tiles + C::SPLITS - 1) / C::SPLITS;
    const int chunk = C::SPLITS == 1 ? tiles : max(C::MIN_CHUNK / 16, (even_share + WARPS - 1) / WARPS * WARPS);
    const int used = (tiles + chunk - 1) / chunk;
    const int first = base + split * chunk, last = min(base + tiles, first + chunk);
    if (row >= sequences || split >= used) {
        if constexpr (C::CONTEXT_BEFORE_WAIT) wait_for_predecessors();
        return;
    }
    const bool owner = split == used - 1;
    const bool makes_keys = C::TOKENS == 1 ? owner : last * 16 > cached;

    // The warp's first tile: its loads are under way while the prologue computes.
    constexpr int TILES = C::BLOCK_TOKENS / 16;  // of a block
    const int* blocks = step->blocks() + block_start;
    int tile = first + warp;
    int block = tile < last ? blocks[tile / TILES] : 0;
    int next_block = tile + WARPS < last ? blocks[(tile + WARPS) / TILES] : 0;
    constexpr int ROTATIONS = C::TOKENS == 1 ? 1 : HELD;
    Rotation<C> rotations[ROTATIONS];
    auto load_rotation = [&](Rotation<C>& rotation, int item) {
        rotation.load(rotary, C::TOKENS == 1 || item < GROUP ? position : cached + min(token_of(item), before), lane);
    };
#pragma unroll
    for (int i = 0; i < ROTATIONS; ++i) load_rotation(rotations[i], warp + i * WARPS);
    using HeldKey = typename S::HeldKey;
    using HeldValue = typename S::HeldValue;
    typename HeldKey::Type keys[2][HeldKey::COUNT] = {};
    typename HeldValue::Type values[S::VALUE_STEPS / S::VALUE_PIECE][4] = {};
    // Where a lane's chunks of groups stand, and their scales.
    const auto key_at = [&](int step) { return c * S::KEY_STEPS + step; };
    const auto key_scale_at = [&](int step) { return c / 2 * S::KEY_STEPS + step; };
    const auto value_at = [&](int h) { return g * S::VALUE_STEPS + h; };
    const auto value_scale_at = [&](int h) { return g / 2 * S::VALUE_STEPS + h; };
    // Chunks of rows that are not cached keep what they hold: the token's own row is put in later, the rest never counts. Loads
    // behind the last tile are switched off one by one: a branch around them would end in copies that wait for them.
    auto load_keys = [&](typename HeldKey::Type* to, int tile, int block, int n, int step) {
        const int live = tile < last ? cached - tile * 16 : 0;
        if constexpr (GROUPED<Kv>) {
            if constexpr (!S::EARLY) *to = {};
            to->template load<true>(g + 8 * n < live, kept_place<C, Side::Keys>(layer, block, kv_head, tile % TILES * 16 + g + 8 * n), key_at(step), key_scale_at(step));
        } else {
            const Kv* rows = cached_row<C, const Kv*>(layer, block, kv_head, tile % TILES * 16) + (g * D + S::key_column(step, c));
#pragma unroll
            for (int s = 0; s < S::KEY_PIECE; ++s)
                if constexpr (!S::EARLY) to[s] = {};  // so that the registers are free in between
#pragma unroll
            for (int s = 0; s < S::KEY_PIECE; s += S::KEY_PAIRS ? 2 : 1) {
                const Kv* from = rows + (8 * n * D + S::key_column(s, 0));
                if constexpr (S::KEY_PAIRS) load_pair<C>(to[s], to[s + 1], from, g + 8 * n < live);
                else load_chunk<C>(to[s], from, S::key_column(step + s, c), g + 8 * n < live);
            }
        }
    };
    auto load_values = [&](int tile, int block, int h) {
        const int live = tile < last ? cached - tile * 16 : 0;
        if constexpr (GROUPED<Kv>) {
            if (h % S::VALUE_PIECE != 0) return;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = 2 * c + i % 2 + i / 2 * 8;
                auto& to = values[h / S::VALUE_PIECE][i];
                if constexpr (!S::EARLY) to = {};
                to.template load<true>(token < live, kept_place<C, Side::Values>(layer, block, kv_head, tile % TILES * 16 + token), value_at(h), value_scale_at(h));
            }
        } else {
            if (S::VALUE_PAIRS && h % 2 != 0) return;
            const Kv* rows = cached_row<C, const Kv*>(layer, block, kv_head, tile % TILES * 16) + (A::VALUES + 2 * c * D + S::value_column(h, g));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = 2 * c + i % 2 + i / 2 * 8;
                const Kv* from = rows + (i % 2 + i / 2 * 8) * D;
                if constexpr (!S::EARLY) values[h][i] = {};
                if constexpr (S::VALUE_PAIRS) {
                    if constexpr (!S::EARLY) values[h + 1][i] = {};
                    load_pair<C>(values[h][i], values[h + 1][i], from, token < live);
                } else {
                    load_chunk<C>(values[h][i], from, S::value_column(h, g), token < live);
                }
            }
        }
    };
    auto load_all_keys = [&](int tile, int block) {
        load_keys(keys[0], tile, block, 0, 0);
        load_keys(keys[1], tile, block, 1, 0);
    };
    auto load_all_values = [&](int tile, int block) {
#pragma unroll
        for (int h = 0; h < S::VALUE_STEPS; ++h) load_values(tile, block, h);
    };
    if constexpr (!S::PIECEWISE) load_all_keys(tile, block);
    if constexpr (S::EARLY) load_all_values(tile, block);
    // A short context's second tile comes into the second-level cache meanwhile. (Doing so where more follow costs a tenth of
    // the bandwidth.) A tile's keys of a head are contiguous, as are its values.
    if (tile + WARPS < last && last - first <= 2 * WARPS) {
        const int token = (tile + WARPS) % TILES * 16;
        if constexpr (GROUPED<Kv>) {
            const KeptPlace keys_at = kept_place<C, Side::Keys>(layer, next_block, kv_head, token), values_at = kept_place<C, Side::Values>(layer, next_block, kv_head, token);
            const auto ask = [&](const unsigned char* from, int bytes) {
                for (int byte = lane * 128; byte < bytes; byte += 32 * 128) prefetch(from + byte);
            };
            ask(keys_at.codes, 16 * KeptRow<C, Side::Keys>::CODES), ask(keys_at.scales, 16 * KeptRow<C, Side::Keys>::SCALES);
            ask(values_at.codes, 16 * KeptRow<C, Side::Values>::CODES), ask(values_at.scales, 16 * KeptRow<C, Side::Values>::SCALES);
        } else {
            const Kv* rows = cached_row<C, const Kv*>(layer, next_block, kv_head, token);
            for (int byte = lane * 128; byte < 16 * S::ROW_BYTES; byte += 32 * 128) {
                prefetch(reinterpret_cast<const char*>(rows) + byte);
                prefetch(reinterpret_cast<const char*>(rows + A::VALUES) + byte);
            }
        }
    }
    const int own_block = owner ? blocks[position / C::BLOCK_TOKENS] : 0;
    if constexpr (C::CONTEXT_BEFORE_WAIT) {
        wait_for_predecessors();
        load_heads();
    }

    // Prologue: q to shared memory in the precision of the products; the token's own K/V to shared memory and to the cache.
    auto prepare = [&](int item, HeadVector<C>& head, const Rotation<C>& rotation) {
        if (item < GROUP) {
            norm_head<C, C::Q_NORM, false>(head, q_weight, C::Q_EPS);
            rotate_head<C>(head, rotation, lane);
            if constexpr (ROTATED_KEYS) rotate_kept(head, lane);
            head.each(lane, [&](int e, float v) {
                const float scaled = v * (C::SCALE * 1.4426950408889634f);
                const Operand high = round_to<Operand>(scaled);
                // Column e is of pair (e / 2 % 4) of its lane's eight: two pairs a fragment.
                auto place = [&](int fragments, int row_half) -> Operand& {
                    return shared.q[fragments][S::key_step(e) * 2 + e / 4 % 2][item % 8 * 4 + S::key_lane(e)][e / 2 % 2 * 4 + row_half * 2 + e % 2];
                };
                const Operand low = round_to<Operand>(scaled - widen(high));
                place(0, S::HEAD_SETS == 1 ? 0 : item / 8) = high;
                place(S::HEAD_SETS - 1, S::HEAD_SETS == 1 ? 1 : item / 8) = low;
            });
        } else if (token_of(item) <= before && makes_keys) {
            const bool is_key = !is_value(item), own = C::TOKENS == 1 || (token_of(item) == before && owner);
            if (is_key) {
                norm_head<C, C::K_NORM, false>(head, k_weight, C::K_EPS);
                rotate_head<C>(head, rotation, lane);
                if constexpr (ROTATED_KEYS) rotate_kept(head, lane);
            } else {
                norm_head<C, ValueNorm<C>::NORM, false>(head, k_weight, ValueNorm<C>::EPS);
                if constexpr (ROTATED_VALUES) rotate_kept(head, lane);
            }
            const int token = C::TOKENS == 1 ? 0 : token_of(item);
            if constexpr (GROUPED<Kv>) {
                const auto keep_side = [&](auto row, const KeptPlace& to, Kv* staged, float scale) {
                    using Row = decltype(row);
                    const KeptPlace here = Row::shared(reinterpret_cast<unsigned char*>(staged));
                    encode_groups<typename Row::E>(head, scale, shared.context[warp], lane, [&](int group, const auto& codes) {
                        codes.template store<Row>(here, group);
                        if (own) codes.template store<Row>(to, group);
                    });
                };
                const int at = position % C::BLOCK_TOKENS;
                if (is_key) keep_side(KeptRow<C, Side::Keys>(), kept_place<C, Side::Keys>(layer, own_block, kv_head, at), shared.key[token], key_scale);
                else keep_side(KeptRow<C, Side::Values>(), kept_place<C, Side::Values>(layer, own_block, kv_head, at), shared.value[token], value_scale);
            } else {
                Kv* to = cached_row<C>(layer, own_block, kv_head, position % C::BLOCK_TOKENS) + (is_key ? 0 : A::VALUES);
                head.each(lane, [&](int e, float v) {
                    const Kv rounded = keep<Kv>(v, is_key ? key_scale : value_scale);
                    (is_key ? shared.key[token] : shared.value[token])[e] = rounded;
                    if (own) to[e] = rounded;
                });
            }
        }
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) prepare(warp + i * WARPS, heads[i], rotations[i % ROTATIONS]);
    if constexpr (!S::TOGETHER) {
#pragma unroll 1  // each takes the registers of the one before
        for (int item = warp + WARPS; item < GROUP + 2 * C::TOKENS; item += WARPS) {
            load_head(heads[0], item);
            load_rotation(rotations[0], item);
            prepare(item, heads[0], rotations[0]);
        }
    }
    __syncthreads();

    float context[S::VALUE_STEPS][4][S::HEAD_SETS][4] = {};  // column value_column(h, g) + 2m + i / 2 of head 8r + 2c + i % 2
    float maximum[S::HEAD_SETS], sum[S::HEAD_SETS];          // of head 8r + g; the sum is of this lane's tokens
#pragma unroll
    for (int r = 0; r < S::HEAD_SETS; ++r) maximum[r] = -INFINITY, sum[r] = 0.0f;
    for (; tile < last; tile += WARPS) {
        const int own = position - tile * 16;     // below 16 only in the sequence's last tile: the token's own row in it
        const int first_own = cached - tile * 16;  // the first of the step's tokens; own where TOKENS is 1
        float scores[2][S::SCORES][4] = {};  // of two times 8 tokens
        // Of the keys' steps from `step` on, which are in `piece`.
        auto multiply_piece = [&](typename HeldKey::Type* piece, int n, int step) {
            const int key_token = g + 8 * n - first_own;  // of the step's
            if (C::TOKENS == 1 ? key_token == 0 : key_token >= 0 && key_token <= before) {
                Kv* own_row = shared.key[C::TOKENS == 1 ? 0 : key_token];
                if constexpr (GROUPED<Kv>) {
                    piece->template load<false>(true, KeptRow<C, Side::Keys>::shared(reinterpret_cast<unsigned char*>(own_row)), key_at(step), key_scale_at(step));
                } else {
#pragma unroll
                    for (int s = 0; s < S::KEY_PIECE; ++s) load_own(piece[s], &own_row[S::key_column(step + s, c)]);
                }
            }
#pragma unroll
            for (int s = 0; s < S::KEY_PIECE; ++s) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    uint4 q[S::HEAD_SETS];
#pragma unroll
                    for (int i = 0; i < S::HEAD_SETS; ++i) q[i] = *reinterpret_cast<const uint4*>(shared.q[i][2 * (step + s) + half][lane]);
                    if constexpr (GROUPED<Kv>) {
                        using E = typename KeptRow<C, Side::Keys>::E;
                        uint32_t codes[2], pairs[2], first[E::TERMS], second[E::TERMS];
                        piece->eight(s, key_at(step), codes);  // the same of both halves
                        const auto by = PairScale<E>::both(piece->scale_bits(s, key_scale_at(step)));
                        unpack_e4m3(codes[half], pairs[0], pairs[1]);
                        multiply_pair<A::F16>(pairs[0], by, first);
                        multiply_pair<A::F16>(pairs[1], by, second);
#pragma unroll
                        for (int t = 0; t < E::TERMS; ++t) multiply_keys<C>(scores[n][half % S::SCORES], q, first[t], second[t]);
                    } else {
                        const uint32_t* words = &piece[s].word[sizeof(Kv) * half];
                        if constexpr (sizeof(Kv) == 1) {
                            uint32_t first, second;
                            unpack_e4m3(words[0], first, second);
                            multiply_keys<C>(scores[n][half % S::SCORES], q, first, second);
                        } else if constexpr (sizeof(Kv) == 2) {
                            multiply_keys<C>(scores[n][half % S::SCORES], q, words[0], words[1]);
                        } else {
                            uint32_t first[2], second[2];
#pragma unroll
                            for (int i = 0; i < 2; ++i)
                                split_pair<Operand>(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]), first[i], second[i]);
                            multiply_keys<C>(scores[n][half % S::SCORES], q, first[0], first[1]);
                            multiply_keys<C>(scores[n][half % S::SCORES], q, second[0], second[1]);
                        }
                    }
                }
            }
        };
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            if constexpr (S::KEY_PIECE < S::KEY_STEPS) {
                typename HeldKey::Type piece[HeldKey::COUNT];
#pragma unroll 1  // the next piece takes the registers of this one
                for (int step = 0; step < S::KEY_STEPS; step += S::KEY_PIECE) {
                    load_keys(piece, tile, block, n, step);
                    multiply_piece(piece, n, step);
                }
            } else {
                if constexpr (S::PIECEWISE) load_keys(keys[n], tile, block, n, 0);
                multiply_piece(keys[n], n, 0);
            }
        }
        const int following = next_block;
        if (tile + 2 * WARPS < last) next_block = blocks[(tile + 2 * WARPS) / TILES];
        if constexpr (S::EARLY)
            load_all_keys(tile + WARPS, following);
        else if constexpr (!S::PIECEWISE)
            load_all_values(tile, block);

        // Softmax over the tile; lane (g, c) has tokens 2c, 2c+1 of both halves of heads 8r + g.
        uint32_t weights[S::HEAD_SETS][2][2];
        float shrink[S::HEAD_SETS];
        bool larger = false;
#pragma unroll
        for (int r = 0; r < S::HEAD_SETS; ++r) {
            float weight[2][2], largest = maximum[r];
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const auto whole_score = [&](int j) { return S::SCORES == 2 ? scores[n][0][j] + scores[n][S::SCORES - 1][j] : scores[n][0][j]; };
                    float score = whole_score(2 * r + i);
                    if constexpr (S::HEAD_SETS == 1) score += whole_score(2 + i);
                    if constexpr (STATIC_SCALES<Kv>) score *= key_scale;
                    const int token = 8 * n + 2 * c + i;
                    weight[n][i] = token > own || (Window<C>::THERE && token < seen - tile * 16) ? -INFINITY : score;
                    largest = fmaxf(largest, weight[n][i]);
                }
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            larger = larger || largest > maximum[r];
            shrink[r] = power_of_two(maximum[r] - largest);
            maximum[r] = largest;
            sum[r] *= shrink[r];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    weight[n][i] = power_of_two(weight[n][i] - largest);
                    sum[r] += weight[n][i];
                }
                split_pair<Operand>(weight[n][0], weight[n][1], weights[r][0][n], weights[r][1][n]);
            }
        }
        if (__any_sync(0xffffffffu, larger)) {
#pragma unroll
            for (int r = 0; r < S::HEAD_SETS; ++r) {
                const float even = __shfl_sync(0xffffffffu, shrink[r], 8 * c), odd = __shfl_sync(0xffffffffu, shrink[r], 8 * c + 4);
#pragma unroll
                for (int h = 0; h < S::VALUE_STEPS; ++h)
#pragma unroll
                    for (int m = 0; m < 4; ++m) {
                        context[h][m][r][0] *= even, context[h][m][r][2] *= even;
                        context[h][m][r][1] *= odd, context[h][m][r][3] *= odd;
                    }
            }
        }
#pragma unroll
        for (int h = 0; h < S::VALUE_STEPS; ++h) {
            if constexpr (S::KEY_PIECE < S::KEY_STEPS) __syncwarp();  // loads do not pass it: these values take the registers of those before
            if constexpr (S::PIECEWISE) load_values(tile, block, h);
            const int piece = h / S::VALUE_PIECE;
            if (first_own < 16 && h % S::VALUE_PIECE == 0) {  // what lies behind the token may be NaN, which a weight of zero would not remove
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int token = 2 * c + i % 2 + i / 2 * 8;
                    if (C::TOKENS == 1 ? token == own : token >= first_own && token <= own) {
                        Kv* own_row = shared.value[C::TOKENS == 1 ? 0 : token - first_own];
                        if constexpr (GROUPED<Kv>)
                            values[piece][i].template load<false>(true, KeptRow<C, Side::Values>::shared(reinterpret_cast<unsigned char*>(own_row)), value_at(h), value_scale_at(h));
                        else
                            load_own(values[h][i], &own_row[S::value_column(h, g)]);
                    }
                    if (token > own) values[piece][i] = {};
                }
            }
            if constexpr (GROUPED<Kv>) {
                using E = typename KeptRow<C, Side::Values>::E;
                const int from = piece * S::VALUE_PIECE;  // the step that the lot begins with
                uint32_t codes[4][2], by_token[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    values[piece][i].eight(h - from, value_at(from), codes[i]);
                    by_token[i] = values[piece][i].scale_bits(h - from, value_scale_at(from));
                }
                const PairScale<E> by[2] = {PairScale<E>::of(by_token[0], by_token[1]), PairScale<E>::of(by_token[2], by_token[3])};
#pragma unroll
                for (int m = 0; m < 4; ++m) multiply_codes<C>(context[h][m], weights, codes, by, m);
            } else {
#pragma unroll
                for (int m = 0; m < 4; ++m) multiply_values<C>(context[h][m], weights, values[h], m);
            }
        }
        if constexpr (S::EARLY)
            load_all_values(tile + WARPS, following);
        else if constexpr (!S::PIECEWISE)
            load_all_keys(tile + WARPS, following);
        block = following;
    }

    leave_warp<C>(shared, context, maximum, sum);
    __syncthreads();
    const bool whole = used == 1;
    float* partial = partials + (static_cast<size_t>(row) * C::KV_HEADS + kv_head) * C::SPLITS * S::PARTIAL;
    constexpr int V = S::VECTOR;
    for (int e = thread * V; e < GROUP * D; e += S::THREADS * V) {
        const int head_row = e / D;
        float largest = -INFINITY, total = 0.0f, v[V] = {};
        ContextGates<C, V> gates;
        if (whole && !ROTATED_VALUES) gates.load(qkv, row, kv_head * GROUP * D + e);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, shared.maximum[w][head_row]);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const float weight = power_of_two(shared.maximum[w][head_row] - largest);
            total += weight * shared.sum[w][head_row];
#pragma unroll
            for (int i = 0; i < V; ++i) v[i] += weight * shared.context[w][e + i];
        }
        if (whole) {
            const float inverse = value_scale / total;
#pragma unroll
            for (int i = 0; i < V; ++i) v[i] *= inverse;
            if constexpr (ROTATED_VALUES) {
#pragma unroll
                for (int i = 0; i < V; ++i) shared.context[0][e + i] = v[i];  // which no other thread reads here
            } else {
                gates.apply(v);
                store_context<C>(out, row, kv_head * GROUP * D + e, v);
            }
        } else {
            float* to = partial + split * S::PARTIAL;
            if constexpr (V == 4)
                *reinterpret_cast<float4*>(to + e) = make_float4(v[0], v[1], v[2], v[3]);
            else
                to[e] = v[0];
            if (e % D == 0) to[GROUP * D + head_row] = largest, to[GROUP * D + GROUP + head_row] = total;
        }
    }
    if constexpr (ROTATED_VALUES) {
        if (whole) store_rotated_heads<C>(shared, qkv, row, kv_head, out);
    }
    if (whole) return;
    if constexpr (C::SPLITS > 1) {
        // The barrier orders the block's partials before thread 0's release, which makes them visible to whoever acquires the
        // counter after it; the last block acquires all of them.
        __syncthreads();
        if (thread == 0) {
            int* counter = counters + row * C::KV_HEADS + kv_head;
            shared.last = static_cast<int>(arrive(reinterpret_cast<unsigned*>(counter))) == used - 1;
            if (shared.last) *counter = 0;
        }
        __syncthreads();
        if (!shared.last) return;
        combine_splits<C>(shared, qkv, partial, used, row, kv_head, value_scale, out);
    }
}

}  // namespace monomorph
