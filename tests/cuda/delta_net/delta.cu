// The delta-net kernels against the double-precision reference: decode in every division, drafts verified and taken back, plain (odd
// shapes, exact), prefill in chunks (mixed sequences, cached prefixes, short pieces), each going on where another left off. nvcc as in
// common.cuh, or on a processor as in core/host.cuh (fewer heads). PART selects a third of the instantiations.
#include "delta_net/delta_case.cuh"

using namespace test;

template <int KEYS_, int VALUES_, int K, int V, int DRAFTS_ = 0>
struct Layer : DeltaDefaults {
    static constexpr int KEY_HEADS = KEYS_, VALUE_HEADS = VALUES_, KEY_DIM = K, VALUE_DIM = V;
    static constexpr int DRAFTS = DRAFTS_, WINDOW = DRAFTS_ > 0 ? 8 : 4;
    static constexpr int PROJECTED = 2 * KEYS_ * K + 2 * VALUES_ * V;
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
template <class Base, int CHUNK_SPLIT_, int SLOTS_>
struct Chunks : Base {
    static constexpr int CHUNK_SPLIT = CHUNK_SPLIT_, SLOTS = SLOTS_;
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
constexpr int KEYS = 2;  // key heads of a fast kernel's layer
#else
constexpr int KEYS = 16;
#endif
// Limits: rounding of f32 sums; of f16 operands.
[[maybe_unused]] constexpr double F32 = 2e-6, CHUNKED = 3e-3;

// The same steps by every division: from nothing, on and on, in a bucket with room to spare.
template <class L, class K>
void decode(const char* name, uint64_t seed) {
    Session<L> s(name, 5, seed);
    const double limit = F32;
    for (int i = 0; i < 6; i++) s.template step<K>(Way::DECODE, {{3, 1}, {0, 1}}, 3, limit, F32);
    s.template step<K>(Way::DECODE, {{1, 1}, {3, 1}, {4, 1}}, 4, limit, F32);
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
#if PART == 0
    using A = Layer<KEYS, 2 * KEYS, 128, 128>;
#if !defined(MONOMORPH_NO_CLUSTERS)
    decode<A, Decode<A, 4, 128>>("decode ratio 2, cluster of 4, 128 threads", 1);
    decode<A, Decode<A, 4, 128>>("decode ratio 2, cluster of 4", 2);
    decode<A, Decode<A, 2, 256>>("decode ratio 2, cluster of 2, 256 threads", 3);
#endif
    decode<A, Decode<A, 1, 512>>("decode ratio 2, 512 threads", 4);
    decode<A, Decode<A, 1, 256>>("decode ratio 2, 256 threads", 5);
    using B = Wider<Layer<KEYS, 3 * KEYS, 128, 128>, 12>;
    decode<B, Decode<B, 1, 512>>("decode ratio 3, wider rows", 6);
    using E = Taps<Layer<1, 3, 64, 32>, 2, 3>;
    decode<E, Decode<E, 1, 64>>("decode 1/3 heads of 64 x 32, 2 taps, padded", 7);
    {
        Session<A> s("planted: a wrong key must be seen", 1, 8);
        s.defect = true;
        s.step<Decode<A, 1, 512>>(Way::DECODE, {{0, 1}}, 1, F32);
    }
#elif PART == 1
    using A = Layer<KEYS, 2 * KEYS, 128, 128, 4>;
    verify<A, Decode<A, 1, 512, 4>, Decode<A, 1, 512>>("drafts, 512 threads", Way::DECODE, 20);
#if !defined(MONOMORPH_NO_CLUSTERS)
    verify<A, Decode<A, 4, 128, 4>, Decode<A, 4, 128>>("drafts, cluster of 4", Way::DECODE, 21);
    verify<A, Decode<A, 4, 128, 4>, Decode<A, 1, 512>>("drafts, cluster of 4, then one of 512", Way::DECODE, 22);
#endif
    using O = Layer<3, 6, 6, 10, 4>;
    verify<O, Decode<O, 1, 0, 4>, O>("drafts, plain 3/6 heads of 6 x 10", Way::PLAIN, 23);
    verify_apart<A, Apart<Decode<A, 1, 512, 4>>, Decode<A, 1, 512>>("drafts, rows apart, 512 threads", Way::DECODE, 29);
    verify_apart<O, Apart<Decode<O, 1, 0, 4>>, O>("drafts, rows apart, plain 3/6 heads of 6 x 10", Way::PLAIN, 30);
    plain<Layer<3, 3, 6, 10>, Layer<3, 3, 6, 10>>("plain 3/3 heads of 6 x 10", F32, 24);
    plain<Layer<2, 8, 24, 16>, Layer<2, 8, 24, 16>>("plain 2/8 heads of 24 x 16", F32, 25);
    plain<Layer<1, 3, 16, 24>, Exact<Layer<1, 3, 16, 24>>>("plain 1/3 heads of 16 x 24, exact", 6e-7, 26);
    plain<Taps<Layer<2, 2, 10, 6>, 3, 5>, Exact<Taps<Layer<2, 2, 10, 6>, 3, 5>>>("plain 2/2 heads of 10 x 6, 3 taps, exact", 6e-7, 27);
    plain<Layer<1, 2, 128, 128>, Layer<1, 2, 128, 128>>("plain 1/2 heads of 128", F32, 28);
#else
    using A = Layer<KEYS, 2 * KEYS, 128, 128>;
    using B = Layer<KEYS, 3 * KEYS, 128, 128>;
    using D = Layer<KEYS / 2, 2 * KEYS, 128, 128, 4>;
    chunks<A, Chunks<A, 2, 8>, Decode<A, 1, 512>>("chunks ratio 2, 64 columns, ring of 8", 40);
    chunks<A, Chunks<A, 1, 5>, Decode<A, 1, 512>>("chunks ratio 2, 128 columns, ring of 5", 41);
    chunks<B, Chunks<Wider<B, 12>, 4, 6>, Decode<B, 1, 256>>("chunks ratio 3, wider rows, 32 columns", 42);
    {
        Session<D> s("drafts, then chunks, then drafts", 3, 43);
        s.step<Decode<D, 1, 512, 4>>(Way::DECODE, {{0, 4, 2}, {2, 4, 4}}, 2, F32);
        s.step<Chunks<D, 2, 5>>(Way::CHUNKS, {{2, 70}, {0, 9}, {1, 3}}, 8, CHUNKED);
        s.step<Decode<D, 1, 512, 4>>(Way::DECODE, {{0, 4, 1}, {1, 2, 2}}, 2, CHUNKED);
        s.step<Decode<D, 1, 512>>(Way::DECODE, {{0, 1}, {1, 1}, {2, 1}}, 4, CHUNKED);
    }
    {
        Session<A> s("chunks of tokens that are alike, and on", 1, 45);
        s.alike = true;
        for (int i = 0; i < 3; i++) s.step<Chunks<A, 1, 5>>(Way::CHUNKS, {{0, 320}}, 1, CHUNKED);
        s.step<Decode<A, 1, 512>>(Way::DECODE, {{0, 1}}, 1, CHUNKED);
    }
    {
        Session<A> s("planted: a wrong key must be seen by chunks", 1, 44);
        s.defect = true;
        s.step<Chunks<A, 2, 8>>(Way::CHUNKS, {{0, 40}}, 1, CHUNKED / 10);
    }
#endif
    (void)argc;
    std::printf(failures ? "%d FAILED\n" : "all passed\n", failures);
    return failures != 0;
}
