// Times of the delta-net kernels: `delta_bench` [decode] [prefill], both where none is named. Launches walk over enough layers that the
// second-level cache never holds the next one's state. Predictions stand in the kernels' headers; 4.54 TB/s is what one H200 reads.
#include "core/recurrent_bench.cuh"
#include "delta_net/delta_case.cuh"

using namespace test;

template <int KEYS_, int VALUES_, int SPLIT_, int THREADS_, int TOKENS_ = 1>
struct Decode : DeltaDefaults {
    static constexpr int KEY_HEADS = KEYS_, VALUE_HEADS = VALUES_, KEY_DIM = 128, VALUE_DIM = 128;
    static constexpr int PROJECTED = 256 * (KEYS_ + VALUES_);
    static constexpr int SPLIT = SPLIT_, THREADS = THREADS_, TOKENS = TOKENS_, DRAFTS = TOKENS_ > 1 ? TOKENS_ : 0, WINDOW = TOKENS_ + 3;
    static constexpr bool STATE_BEFORE_WAIT = true;
};
template <int KEYS_, int VALUES_, int CHUNK_SPLIT_, int SLOTS_>
struct Prefill : DeltaDefaults {
    static constexpr int KEY_HEADS = KEYS_, VALUE_HEADS = VALUES_, KEY_DIM = 128, VALUE_DIM = 128;
    static constexpr int PROJECTED = 256 * (KEYS_ + VALUES_);
    static constexpr int CHUNK_SPLIT = CHUNK_SPLIT_, SLOTS = SLOTS_;
};

template <class C>
struct Layer {
    using D = DeltaShape<C>;
    Filled convolution{size_t(D::CHANNELS) * C::TAPS}, a_log{size_t(C::VALUE_HEADS), 1.0f, -2.0f}, dt_bias{size_t(C::VALUE_HEADS)}, norm{size_t(C::VALUE_DIM)};
    DeltaWeights weights() const { return {convolution, a_log, dt_bias, norm}; }
};

// Half of the states are S's reads, half its writes; projections and windows are a hundredth of them.
template <class C>
void decode(const char* name) {
    using D = DeltaShape<C>;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    Layer<C> layer;
    for (int batch : {1, 2, 4, 8, 16, 32, 64, 128}) {
        const double bytes = 2.0 * batch * D::STATE * 4;
        const int layers = std::max(4, std::min(64, int(512e6 / bytes)));
        Filled states(size_t(layers) * batch * D::STATE, 0.1f), windows(batch * D::WINDOW_STRIDE), projected(size_t(batch) * C::TOKENS * C::PROJECTED),
            gates(size_t(batch) * C::TOKENS * 2 * C::VALUE_HEADS);
        Buffer<float> journals(size_t(batch) * D::JOURNAL_ROWS * D::JOURNAL_WIDTH + 1);
        // Rows of the journal all say that S stands at position 16, which is where the step begins.
        std::vector<float> journal(journals.count);
        const int base = 16;
        for (float& word : journal) std::memcpy(&word, &base, 4);
        journals.upload(journal);
        Buffer<float> out(size_t(batch) * C::TOKENS * D::VALUES);
        Buffer<Step> step(steps(std::vector<int>(batch, C::TOKENS), base));
        const float total = time_graph(stream, [&] {
            for (int l = 0; l < layers; l++)
                launch_clusters(decode_kernel<C>, dim3(C::SPLIT, C::VALUE_HEADS, batch), C::SPLIT, C::THREADS, delta_decode_shared_bytes<C>(), stream,
                      step.pointer, projected.pointer, gates.pointer, layer.weights().convolution, layer.weights().a_log,
                      layer.weights().dt_bias, layer.weights().norm, states.pointer + size_t(l) * batch * D::STATE, windows.pointer,
                      journals.pointer, out.pointer);
        });
        const double each = total / layers;
        // A step that may be taken back does not write S where nothing was pending: it reads only.
        const double moved = C::TOKENS > 1 ? bytes / 2 : bytes;
        std::printf("decode %-24s batch %3d  %8.2f us a layer  %5.0f GB/s  %3.0f %% of 4,540\n", name, batch, each * 1e3, moved / each / 1e6, moved / each / 1e6 / 45.4);
    }
    CHECK(cudaStreamDestroy(stream));
}

template <class C>
void prefill(const char* name, std::vector<int> counts) {
    using D = DeltaShape<C>;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    Layer<C> layer;
    Buffer<Step> step(steps(counts, 0));
    int rows = 0;
    double chunks = 0;
    for (int count : counts) rows += count, chunks += (count + DELTA_CHUNK - 1) / DELTA_CHUNK;
    const int sequences = int(counts.size());
    Filled states(sequences * D::STATE, 0.1f), windows(sequences * D::WINDOW_STRIDE), projected(size_t(rows) * C::PROJECTED), gates(size_t(rows) * 2 * C::VALUE_HEADS);
    Buffer<float> o(size_t(rows) * D::VALUES);
    Buffer<unsigned char> scratch(delta_scratch_bytes<C>(rows, sequences));
    Buffer<float> out(size_t(rows) * D::VALUES);
    int multiprocessors;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    auto prepare = [&] {
        launch_clusters(prepare_kernel<C>, dim3(std::min(2 * multiprocessors, int(chunks) * C::KEY_HEADS)), 1, DELTA_PREPARE_THREADS, delta_prepare_shared_bytes<C>(),
              stream, step.pointer, projected.pointer, gates.pointer, layer.convolution.pointer, layer.a_log.pointer, layer.dt_bias.pointer,
              windows.pointer, scratch.pointer);
    };
    auto chunked = [&] {
        launch_clusters(chunks_kernel<C>, dim3(C::CHUNK_SPLIT * C::VALUE_HEADS, sequences), 1, DeltaChunks<C>::THREADS, delta_chunks_shared_bytes<C>(), stream,
              step.pointer, scratch.pointer, states.pointer, nullptr, o.pointer);
    };
    auto gate = [&] {
        launch_clusters(gate_kernel<C>, dim3(rows), 1, DELTA_GATE_THREADS, 0, stream, step.pointer, projected.pointer, o.pointer, layer.norm.pointer, windows.pointer, out.pointer);
    };
    const float prepare_ms = time_graph(stream, prepare), chunks_ms = time_graph(stream, chunked), gate_ms = time_graph(stream, gate);
    const float all = time_graph(stream, [&] { prepare(), chunked(), gate(); });
    const double projected_bytes = 4.0 * rows * D::CHANNELS, scratch_bytes = chunks * DeltaScratch<C>::CHUNK, o_bytes = 4.0 * rows * D::VALUES;
    auto rate = [](double bytes, float ms) { return bytes / ms / 1e6; };
    std::printf("prefill %-30s prepare %7.3f ms %5.0f GB/s | chunks %7.3f ms %5.0f GB/s, %.2f us a chunk | gate %7.3f ms %5.0f GB/s | all %7.3f ms\n", name,
                prepare_ms, rate(projected_bytes + scratch_bytes, prepare_ms), chunks_ms, rate(scratch_bytes + o_bytes, chunks_ms),
                chunks_ms * 1e3 / ((*std::max_element(counts.begin(), counts.end()) + DELTA_CHUNK - 1) / DELTA_CHUNK), gate_ms,
                rate(2.5 * o_bytes, gate_ms), all);
    CHECK(cudaStreamDestroy(stream));
}

int main(int argc, char** argv) {
    auto wanted = [&](const char* name) {
        for (int i = 1; i < argc; i++)
            if (std::strcmp(argv[i], name) == 0) return true;
        return argc == 1;
    };
    if (wanted("decode")) {
#ifndef MONOMORPH_NO_CLUSTERS
        decode<Decode<16, 32, 4, 128>>("16/32 cluster 4, 128");
        decode<Decode<16, 32, 2, 256>>("16/32 cluster 2, 256");
        decode<Decode<16, 32, 4, 128, 4>>("16/32 cluster 4, 4 drafts");
        decode<Decode<16, 16, 4, 128>>("16/16 cluster 4, 128");
        decode<Decode<16, 64, 2, 256>>("16/64 cluster 2, 256");
#endif
        decode<Decode<16, 32, 1, 512>>("16/32 one block, 512");
        decode<Decode<16, 32, 1, 256>>("16/32 one block, 256");
        decode<Decode<16, 32, 1, 512, 4>>("16/32 one block, 4 drafts");
        decode<Decode<16, 48, 1, 512>>("16/48 one block, 512");
        decode<Decode<16, 64, 1, 512>>("16/64 one block, 512");
    }
    if (wanted("prefill")) {
        const std::vector<int> mixed(16, 512);
        prefill<Prefill<16, 32, 1, 5>>("16/32 1 x 8192, 128 columns", {8192});
#ifndef MONOMORPH_NO_CLUSTERS  // rings that a GB10 has no room for
        prefill<Prefill<16, 32, 1, 12>>("16/32 1 x 8192, 128 columns, 12", {8192});
        prefill<Prefill<16, 32, 2, 12>>("16/32 1 x 8192, 64 columns, 12", {8192});
        prefill<Prefill<16, 32, 2, 8>>("16/32 1 x 8192, 64 columns, 8", {8192});
        prefill<Prefill<16, 32, 4, 8>>("16/32 1 x 8192, 32 columns, 8", {8192});
        prefill<Prefill<16, 32, 2, 8>>("16/32 1 x 2048, 64 columns, 8", {2048});
        prefill<Prefill<16, 32, 2, 8>>("16/32 1 x 512, 64 columns, 8", {512});
        prefill<Prefill<16, 32, 1, 8>>("16/32 16 x 512, 128 columns, 8", mixed);
        prefill<Prefill<16, 32, 2, 8>>("16/32 16 x 512, 64 columns, 8", mixed);
        prefill<Prefill<16, 64, 2, 8>>("16/64 1 x 8192, 64 columns, 8", {8192});
        prefill<Prefill<16, 48, 2, 8>>("16/48 1 x 8192, 64 columns, 8", {8192});
        prefill<Prefill<16, 16, 4, 8>>("16/16 1 x 8192, 32 columns, 8", {8192});
#endif
        prefill<Prefill<16, 32, 2, 5>>("16/32 1 x 8192, 64 columns, 5", {8192});
        prefill<Prefill<16, 32, 1, 5>>("16/32 16 x 512, 128 columns, 5", mixed);
    }
    return 0;
}
