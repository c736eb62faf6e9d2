// Times of the Mamba-2 kernels: `mamba2_bench` [decode] [prefill], both where none is named. Launches walk over enough layers that the
// second-level cache never holds the next one's state. Predictions stand in the kernels' headers; 4.54 TB/s is what one H200 reads.
#include "core/recurrent_bench.cuh"
#include "mamba2/mamba2_case.cuh"

using namespace test;

// Nano has 64 heads and Super 128, both 8 groups.
template <int HEADS_, int SPLIT_, int TOKENS_ = 1>
struct Decode : Mamba2Defaults {
    static constexpr int HEADS = HEADS_, GROUPS = 8, HEAD_DIM = 64, STATE = 128, PROJECTED = HEADS_ * 129 + 2048;
    static constexpr int SPLIT = SPLIT_, TOKENS = TOKENS_, DRAFTS = TOKENS_ > 1 ? TOKENS_ : 0, WINDOW = TOKENS_ + 3;
    static constexpr bool STATE_BEFORE_WAIT = true;
};
template <int HEADS_, int SLOTS_>
struct Prefill : Mamba2Defaults {
    static constexpr int HEADS = HEADS_, GROUPS = 8, HEAD_DIM = 64, STATE = 128, PROJECTED = HEADS_ * 129 + 2048;
    static constexpr int SLOTS = SLOTS_;
};

template <class C>
struct Layer {
    using M = Mamba2Shape<C>;
    Filled convolution{size_t(M::CHANNELS) * C::TAPS}, convolution_bias{size_t(M::CHANNELS), 0.1f}, a_log{size_t(C::HEADS), 1.0f, -2.0f};
    Filled dt_bias{size_t(C::HEADS), 1.0f, -2.0f}, d{size_t(C::HEADS)}, norm{size_t(M::VALUES)};
};

// Half of the states are S's reads, half its writes; projections and windows are a fiftieth of them.
template <class C>
void decode(const char* name) {
    using M = Mamba2Shape<C>;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    Layer<C> layer;
    for (int batch : {1, 2, 4, 8, 16, 32, 64, 128}) {
        const double bytes = 2.0 * batch * M::STATE * 4;
        const int layers = std::max(4, std::min(64, int(512e6 / bytes)));
        Filled states(size_t(layers) * batch * M::STATE, 0.1f), windows(batch * M::WINDOW_STRIDE), projected(size_t(batch) * C::TOKENS * C::PROJECTED);
        Buffer<float> journals(size_t(batch) * M::JOURNAL_ROWS * M::JOURNAL_WIDTH + 1);
        // Rows of the journal all say that S stands at position 16, which is where the step begins.
        std::vector<float> journal(journals.count);
        const int base = 16;
        for (float& word : journal) std::memcpy(&word, &base, 4);
        journals.upload(journal);
        Buffer<float> out(size_t(batch) * C::TOKENS * M::VALUES);
        Buffer<Step> step(steps(std::vector<int>(batch, C::TOKENS), base));
        const float total = time_graph(stream, [&] {
            for (int l = 0; l < layers; l++)
                launch_clusters(decode_kernel<C>, dim3(C::SPLIT, C::GROUPS, batch), C::SPLIT, C::THREADS, mamba2_decode_shared_bytes<C>(), stream,
                      step.pointer, projected.pointer, layer.convolution.pointer, layer.convolution_bias.pointer, layer.a_log.pointer,
                      layer.dt_bias.pointer, layer.d.pointer, layer.norm.pointer, states.pointer + size_t(l) * batch * M::STATE,
                      windows.pointer, journals.pointer, out.pointer);
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
    using M = Mamba2Shape<C>;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    Layer<C> layer;
    Buffer<Step> step(steps(counts, 0));
    int rows = 0;
    double chunks = 0;
    for (int count : counts) rows += count, chunks += (count + RECURRENT_CHUNK - 1) / RECURRENT_CHUNK;
    const int sequences = int(counts.size());
    Filled states(sequences * M::STATE, 0.1f), windows(sequences * M::WINDOW_STRIDE), projected(size_t(rows) * C::PROJECTED);
    Buffer<float> y(size_t(rows) * M::VALUES), out(size_t(rows) * M::VALUES);
    Buffer<unsigned char> scratch(mamba2_scratch_bytes<C>(rows, sequences));
    int multiprocessors;
    CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    auto prepare = [&] {
        launch_clusters(prepare_kernel<C>, dim3(std::min(3 * multiprocessors, int(chunks) * C::GROUPS)), 1, MAMBA2_PREPARE_THREADS,
              mamba2_prepare_shared_bytes<C>(), stream, step.pointer, projected.pointer, layer.convolution.pointer,
              layer.convolution_bias.pointer, layer.a_log.pointer, layer.dt_bias.pointer, layer.d.pointer, windows.pointer, scratch.pointer);
    };
    auto chunked = [&] {
        launch_clusters(chunks_kernel<C>, dim3(C::HEADS, sequences), 1, Mamba2Chunks<C>::THREADS, mamba2_chunks_shared_bytes<C>(), stream,
              step.pointer, scratch.pointer, states.pointer, nullptr, y.pointer);
    };
    auto gate = [&] {
        launch_clusters(gate_kernel<C>, dim3(rows), 1, MAMBA2_GATE_THREADS, 0, stream, step.pointer, projected.pointer, y.pointer,
              layer.norm.pointer, windows.pointer, out.pointer);
    };
    const float prepare_ms = time_graph(stream, prepare), chunks_ms = time_graph(stream, chunked), gate_ms = time_graph(stream, gate);
    const float all = time_graph(stream, [&] { prepare(), chunked(), gate(); });
    const double input_bytes = 4.0 * rows * M::CHANNELS, scratch_bytes = chunks * Mamba2Scratch<C>::CHUNK, y_bytes = 4.0 * rows * M::VALUES;
    auto rate = [](double bytes, float ms) { return bytes / ms / 1e6; };
    std::printf("prefill %-30s prepare %7.3f ms %5.0f GB/s | chunks %7.3f ms %5.0f GB/s, %.2f us a chunk | gate %7.3f ms %5.0f GB/s | all %7.3f ms\n", name,
                prepare_ms, rate(input_bytes + scratch_bytes, prepare_ms), chunks_ms, rate(scratch_bytes + y_bytes, chunks_ms),
                chunks_ms * 1e3 / ((*std::max_element(counts.begin(), counts.end()) + RECURRENT_CHUNK - 1) / RECURRENT_CHUNK), gate_ms,
                rate(3 * y_bytes, gate_ms), all);
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
        decode<Decode<64, 8>>("64 heads, cluster of 8");
        decode<Decode<64, 4>>("64 heads, cluster of 4");
        decode<Decode<64, 2>>("64 heads, cluster of 2");
        decode<Decode<64, 8, 4>>("64, cluster of 8, 4 drafts");
        decode<Decode<128, 8>>("128 heads, cluster of 8");
        decode<Decode<128, 4>>("128 heads, cluster of 4");
        decode<Decode<128, 2>>("128 heads, cluster of 2");
#endif
        decode<Decode<64, 1>>("64 heads, one block");
        decode<Decode<64, 1, 4>>("64, one block, 4 drafts");
        decode<Decode<128, 1>>("128 heads, one block");
    }
    if (wanted("prefill")) {
        const std::vector<int> mixed(16, 512);
        prefill<Prefill<64, 6>>("64 1 x 8192, ring of 6", {8192});
        prefill<Prefill<128, 6>>("128 1 x 8192, ring of 6", {8192});
        prefill<Prefill<64, 4>>("64 1 x 8192, ring of 4", {8192});
#ifndef MONOMORPH_NO_CLUSTERS  // a ring that a GB10 has no room for
        prefill<Prefill<64, 8>>("64 1 x 8192, ring of 8", {8192});
#endif
        prefill<Prefill<64, 6>>("64 1 x 2048, ring of 6", {2048});
        prefill<Prefill<64, 6>>("64 1 x 512, ring of 6", {512});
        prefill<Prefill<64, 6>>("64 16 x 512, ring of 6", mixed);
        prefill<Prefill<128, 6>>("128 16 x 512, ring of 6", mixed);
    }
    return 0;
}
