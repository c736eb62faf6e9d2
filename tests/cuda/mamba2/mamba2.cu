// The Mamba-2 kernels against the double-precision reference: decode in every division, drafts verified and taken back, plain (odd shapes,
// exact), prefill in chunks (mixed sequences, cached prefixes, short pieces), each going on where another left off. nvcc as in
// common.cuh, or on a processor as in core/host.cuh (fewer heads). PART selects a third of the instantiations.
#include "mamba2/mamba2_case.cuh"

using namespace test;

template <int HEADS_, int GROUPS_, int DIM, int STATE_, int DRAFTS_ = 0>
struct Layer : Mamba2Defaults {
    static constexpr int HEADS = HEADS_, GROUPS = GROUPS_, HEAD_DIM = DIM, STATE = STATE_;
    static constexpr int DRAFTS = DRAFTS_, WINDOW = DRAFTS_ > 0 ? 8 : 4;
    static constexpr int PROJECTED = 2 * HEADS_ * DIM + 2 * GROUPS_ * STATE_ + HEADS_;
    static constexpr bool STATE_BEFORE_WAIT = true;
};
template <class Base, int SPLIT_, int THREADS_, int TOKENS_ = 1>
struct Decode : Base {
    static constexpr int SPLIT = SPLIT_, THREADS = THREADS_, TOKENS = TOKENS_;
};
template <class Base>
struct Apart : Base {
    static constexpr bool APART = true;
};
template <class Base, int SLOTS_>
struct Chunks : Base {
    static constexpr int SLOTS = SLOTS_;
};
template <class Base>
struct Exact : Base {
    static constexpr bool EXACT = true;
};
template <class Base, int TAPS_, int WINDOW_>
struct Taps : Base {
    static constexpr int TAPS = TAPS_, WINDOW = WINDOW_;
};
template <class Base, int MORE>
struct Wider : Base {
    static constexpr int PROJECTED = Base::PROJECTED + MORE;
};

#ifdef MONOMORPH_HOST
constexpr int GROUPS = 2;  // of a fast kernel's layer
#else
constexpr int GROUPS = 8;
#endif
// Limits: rounding of f32 sums; of f16 operands.
[[maybe_unused]] constexpr double F32 = 2e-6, CHUNKED = 3e-3;

// The same steps by every division: from nothing, on and on, in a bucket with room to spare.
template <class L, class K>
void decode(const char* name, uint64_t seed) {
    Session<L> s(name, 5, seed);
    for (int i = 0; i < 6; i++) s.template step<K>(Way::DECODE, {{3, 1}, {0, 1}}, 3, F32, F32);
    s.template step<K>(Way::DECODE, {{1, 1}, {3, 1}, {4, 1}}, 4, F32, F32);
}

// Drafts: some kept, some not, none, one; then steps that stay.
template <class L, class V, class K>
void verify(const char* name, Way way, uint64_t seed) {
    Session<L> s(name, 3, seed);
    const double limit = 4 * F32;
    s.template step<V>(way, {{0, 4, 2}, {2, 4, 4}}, 4, limit);
    s.template step<V>(way, {{2, 3, 1}, {0, 4, 3}}, 4, limit);
    s.template step<V>(way, {{0, 4, 1}, {2, 1, 1}}, 4, limit);
    s.template step<V>(way, {{0, 2, 2}, {2, 4, 3}}, 4, limit);
    s.template step<K>(way, {{0, 1}, {2, 1}}, 4, limit);
    s.template step<V>(way, {{0, 4, 4}}, 4, limit);
    s.template step<K>(way, {{0, 1}, {2, 1}}, 4, limit);
    s.template step<K>(way, {{0, 1}, {1, 1}, {2, 1}}, 4, limit);
}

// The same where the step names every row as a sequence of its own.
template <class L, class V, class K>
void verify_apart(const char* name, Way way, uint64_t seed) {
    Session<L> s(name, 3, seed);
    const double limit = 4 * F32;
    s.template step<V>(way, {{0, 4, 2}, {2, 4, 4}}, 4, limit);
    s.template step<V>(way, {{2, 4, 1}, {0, 4, 3}}, 4, limit);
    s.template step<V>(way, {{0, 4, 1}}, 4, limit);
    s.template step<K>(way, {{0, 1}, {2, 1}}, 4, limit);
    s.template step<V>(way, {{2, 4, 4}, {0, 4, 4}, {1, 4, 1}}, 4, limit);
    s.template step<K>(way, {{0, 1}, {1, 1}, {2, 1}}, 4, limit);
}

template <class L, class P>
void plain(const char* name, double limit, uint64_t seed) {
    Session<L> s(name, 4, seed);
    s.template step<P>(Way::PLAIN, {{2, 7}, {0, 1}}, 8, limit, F32);
    s.template step<P>(Way::PLAIN, {{0, 1}, {2, 1}, {1, 2}}, 8, limit);
    s.template step<P>(Way::PLAIN, {{1, 3}, {0, 5}}, 8, limit);
    s.template step<P>(Way::PLAIN, {{0, 1}, {1, 1}, {2, 1}}, 8, limit);
}

// Prompts in pieces of any length, several sequences at a time, tokens between them, and sequences of one token among them.
template <class L, class P, class K>
void chunks(const char* name, uint64_t seed) {
    Session<L> s(name, 4, seed);
    const double limit = CHUNKED;
    s.template step<P>(Way::CHUNKS, {{3, 130}}, 1, limit, CHUNKED);
    s.template step<P>(Way::CHUNKS, {{0, 1}, {3, 64}, {1, 2}}, 1, limit, CHUNKED, 3);
    s.template step<K>(Way::DECODE, {{0, 1}, {3, 1}}, 2, limit, CHUNKED);
    s.template step<P>(Way::CHUNKS, {{1, 63}, {0, 70}, {2, 5}, {3, 1}}, 1, limit, CHUNKED, 1);
    s.template step<K>(Way::DECODE, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, 4, limit, CHUNKED);
    s.template step<P>(Way::CHUNKS, {{2, 3}, {1, 1}}, 1, limit, CHUNKED);
}

#ifndef PART
#error "compile with -DPART=0, 1 and 2"
#endif

int main(int argc, char**) {
    // Nano's and Super's groups.
    using Nano = Layer<8 * GROUPS, GROUPS, 64, 128>;
    using Super = Layer<16 * GROUPS, GROUPS, 64, 128>;
#if PART == 0
#if !defined(MONOMORPH_NO_CLUSTERS)
    decode<Nano, Decode<Nano, 8, 256>>("decode 8 heads a group, cluster of 8", 1);
    decode<Nano, Decode<Nano, 2, 256>>("decode 8 heads a group, cluster of 2", 2);
    decode<Super, Decode<Super, 8, 256>>("decode 16 heads a group, cluster of 8", 3);
    decode<Super, Decode<Wider<Super, 12>, 4, 256>>("decode 16 heads a group, wider rows, cluster of 4", 4);
#endif
    decode<Nano, Decode<Nano, 1, 256>>("decode 8 heads a group", 5);
    decode<Super, Decode<Super, 1, 256>>("decode 16 heads a group", 6);
    using E = Taps<Layer<6, 2, 16, 32>, 2, 3>;
    decode<E, Decode<E, 1, 64>>("decode 3 heads of 32 x 16 a group, 2 taps, 64 threads", 7);
    {
        Session<Nano> s("planted: a wrong B must be seen", 1, 8);
        s.defect = true;
        s.step<Decode<Nano, 1, 256>>(Way::DECODE, {{0, 1}}, 1, F32);
    }
#elif PART == 1
    using A = Layer<8 * GROUPS, GROUPS, 64, 128, 4>;
    using B = Layer<16 * GROUPS, GROUPS, 64, 128, 4>;
    verify<A, Decode<A, 1, 256, 4>, Decode<A, 1, 256>>("drafts", Way::DECODE, 20);
#if !defined(MONOMORPH_NO_CLUSTERS)
    verify<A, Decode<A, 8, 256, 4>, Decode<A, 8, 256>>("drafts, cluster of 8", Way::DECODE, 21);
    verify<B, Decode<B, 8, 256, 4>, Decode<B, 2, 256>>("drafts, cluster of 8, then one of 2", Way::DECODE, 22);
#endif
    verify<B, Decode<B, 1, 256, 4>, B>("drafts, 16 heads a group", Way::DECODE, 31);
    using O = Layer<6, 3, 10, 6, 4>;
    verify<O, Decode<O, 1, 0, 4>, O>("drafts, plain 6/3 heads of 6 x 10", Way::PLAIN, 23);
    verify_apart<A, Apart<Decode<A, 1, 256, 4>>, Decode<A, 1, 256>>("drafts, rows apart", Way::DECODE, 29);
    verify_apart<O, Apart<Decode<O, 1, 0, 4>>, O>("drafts, rows apart, plain 6/3 heads of 6 x 10", Way::PLAIN, 30);
    plain<Layer<3, 3, 10, 6>, Layer<3, 3, 10, 6>>("plain 3/3 heads of 6 x 10", F32, 24);
    plain<Layer<8, 2, 16, 24>, Layer<8, 2, 16, 24>>("plain 8/2 heads of 24 x 16", F32, 25);
    plain<Layer<3, 1, 24, 16>, Exact<Layer<3, 1, 24, 16>>>("plain 3/1 heads of 16 x 24, exact", 6e-7, 26);
    plain<Taps<Layer<2, 2, 6, 10>, 3, 5>, Exact<Taps<Layer<2, 2, 6, 10>, 3, 5>>>("plain 2/2 heads of 10 x 6, 3 taps, exact", 6e-7, 27);
    plain<Layer<4, 1, 64, 128>, Layer<4, 1, 64, 128>>("plain 4/1 heads of 128 x 64", F32, 28);
#else
    using D = Layer<8 * GROUPS, GROUPS, 64, 128, 4>;
    using Narrow = Layer<8 * GROUPS, GROUPS, 32, 128>;
    chunks<Nano, Chunks<Nano, 6>, Decode<Nano, 1, 256>>("chunks 8 heads a group, ring of 6", 40);
    chunks<Super, Chunks<Wider<Super, 12>, 4>, Decode<Super, 1, 256>>("chunks 16 heads a group, wider rows, ring of 4", 41);
    chunks<Narrow, Chunks<Narrow, 8>, Decode<Narrow, 1, 256>>("chunks heads of 32, ring of 8", 42);
    {
        Session<D> s("drafts, then chunks, then drafts", 3, 43);
        s.step<Decode<D, 1, 256, 4>>(Way::DECODE, {{0, 4, 2}, {2, 4, 4}}, 2, F32);
        s.step<Chunks<D, 5>>(Way::CHUNKS, {{2, 70}, {0, 9}, {1, 3}}, 8, CHUNKED);
        s.step<Decode<D, 1, 256, 4>>(Way::DECODE, {{0, 4, 1}, {1, 2, 2}}, 2, CHUNKED);
        s.step<Decode<D, 1, 256>>(Way::DECODE, {{0, 1}, {1, 1}, {2, 1}}, 4, CHUNKED);
    }
    {
        Session<Nano> s("chunks of tokens that are alike, and on", 1, 45);
        s.alike = true;
        for (int i = 0; i < 3; i++) s.step<Chunks<Nano, 5>>(Way::CHUNKS, {{0, 320}}, 1, CHUNKED);
        s.step<Decode<Nano, 1, 256>>(Way::DECODE, {{0, 1}}, 1, CHUNKED);
    }
    {
        Session<Nano> s("planted: a wrong B must be seen by chunks", 1, 44);
        s.defect = true;
        s.step<Chunks<Nano, 6>>(Way::CHUNKS, {{0, 40}}, 1, CHUNKED / 10);
    }
#endif
    (void)argc;
    std::printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures != 0;
}
