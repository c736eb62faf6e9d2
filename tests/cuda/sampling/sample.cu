// The sampler against the reference: tests/fixtures/cuda/sampling.bin holds what runtime/sampling makes of generated rows (its
// examples/expected.rs writes the file and defines the rows). Then speed. Arguments: the file; "planted" draws every random number one
// too far, which must fail; "unmasked" forgets the masks, "unbiased" the biases and "unbounded" top_n_sigma, which must too.
#include "core/common.cuh"
#include "kernels/sample.cuh"

using namespace monomorph;

struct Case {
    uint64_t row_seed, seed, draw;
    uint32_t vocabulary, kind, used, offset, top_k;
    int32_t top_logprobs;
    float scale, temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int32_t id;
    float logprob;
    uint32_t top_count;
    int32_t top_id[20];
    float top_logprob[20];
    uint32_t mask_stride, mask_width;  // of every so many ids so many may be chosen; 0 = any may
    float top_n_sigma;
    uint32_t biased, reserved[2];  // how many ids have a bias
};
// What is left out, or wrong.
enum class Defect { NONE, DRAW, MASK, BIAS, SIGMA };
static_assert(sizeof(Case) == 272, "the file's record");

struct Row {
    uint64_t seed;
    uint32_t kind;
    float scale;
};

__device__ float generated_logit(Row row, unsigned id) {
    const uint4 words = random_words(row.seed, id);
    const unsigned long long bits = (static_cast<unsigned long long>(words.x) << 32 | words.y) >> 11;
    unsigned sum = 0;
    for (int field = 0; field < 4; ++field) sum += bits >> (13 * field) & 0x1fff;
    const float x = __fmul_rn(__fsub_rn(float(sum), 16382.0f), row.scale);
    const unsigned chance = unsigned(bits >> 32);
    switch (row.kind) {
        case 1: return floorf(__fmul_rn(x, 2.0f)) * 0.5f;
        case 2: return chance % 64 == 0 ? __uint_as_float(0x7fc00000) : chance % 64 == 1 ? negative_infinity() : chance % 64 == 2 ? -0.0f : chance % 64 == 3 ? 0.0f : x;
        case 3: return row.scale;
        case 4: return chance % 4096 == 0 ? __fadd_rn(x, 12.0f) : x;
        case 5: return chance % 2 == 0 ? __uint_as_float(0x7fc00000) : negative_infinity();
        case 6: return __fmul_rn(__fmul_rn(x, x), x);
        case 7: return chance % 512 == 0 ? -negative_infinity() : x;
        case 8: return chance % 2 == 0 ? 0.0f : -0.0f;
        default: return x;
    }
}

__global__ void generate(const Row* rows, float* logits, int vocabulary) {
    for (int id = blockIdx.x * blockDim.x + threadIdx.x; id < vocabulary; id += gridDim.x * blockDim.x) {
        logits[size_t(blockIdx.y) * vocabulary + id] = generated_logit(rows[blockIdx.y], id);
    }
}

template <int V, int T, int S, int G>
struct Shape {
    static constexpr int VOCABULARY = V, THREADS = T, SPLITS = S, GROUPS = G, SCRATCH_BYTES = sizeof(SampleScratch);
};

// Device state of one test: poisoned outputs, scratch that every launch must leave clean.
struct Bench {
    test::Buffer<Step> step{1};
    test::Buffer<TokenUse> history{size_t(MAX_SEQUENCES) * (2048 + 262144 / 64)};  // and behind them masks
    test::Buffer<SampleScratch> scratch{1};
    test::Buffer<int> sampled_ids{MAX_SEQUENCES};
    test::Buffer<Sampled> sampled{MAX_SEQUENCES};
    Step host = {};
    cudaStream_t stream;
    Bench() {
        CHECK(cudaStreamCreate(&stream));
        scratch.zero();
    }
    template <class C>
    void enqueue(const float* logits) {
        test::launch(sample_kernel<C, C::THREADS, sample_shared_bytes<C>(), 2>, dim3(C::SPLITS, C::GROUPS), C::THREADS, sample_shared_bytes<C>(), stream, step.pointer, history.pointer, logits,
                     static_cast<void*>(scratch.pointer), sampled_ids.pointer, sampled.pointer);
    }
    bool clean() const {
        const SampleScratch s = scratch.download()[0];
        unsigned left = 0;
        for (const auto& group : s.group) {
            left |= group.arrived | group.left | group.listed;
            for (const auto& bins : group.bins)
                for (unsigned bin : bins) left |= bin;
        }
        for (unsigned finished : s.finished) left |= finished;
        return left == 0;
    }
};

static const char* const KINDS[] = {"normal", "tied", "nan inf -0", "flat", "peaked", "nothing", "heavy", "infinite", "zeros"};

// Runs all cases of one vocabulary as one batch, twice over.
template <class C>
void check(Bench& bench, const std::vector<Case>& all, const float* logits, Defect defect) {
    std::vector<Case> cases;
    for (const Case& c : all)
        if (int(c.vocabulary) == C::VOCABULARY) cases.push_back(c);
    const int count = int(cases.size());
    std::vector<TokenUse> history(bench.history.count);
    const int words = (C::VOCABULARY + 31) / 32;
    bench.host = {};
    bench.host.outputs = count;
    for (int i = 0; i < count; i++) {
        const Case& c = cases[i];
        const int start = i * 2048 + 7, biases = i * 2048 + 1900;
        for (unsigned j = 0; j < c.used; j++) history[start + j] = {int((uint64_t(c.offset) + uint64_t(j) * 7919) % c.vocabulary), int(j % 4)};
        TokenBias* const list = reinterpret_cast<TokenBias*>(history.data() + biases);
        for (unsigned j = 0; j < c.biased; j++) {
            const float bias = j % 11 == 4 ? -100.0f : j % 11 == 10 ? 100.0f : (float(j % 7) - 3.0f) * 2.5f;
            list[j] = {int((uint64_t(c.offset) + 3 + uint64_t(j) * 104729) % c.vocabulary), bias};
        }
        int mask = -1;
        if (c.mask_stride > 0 && defect != Defect::MASK) {
            const int first = MAX_SEQUENCES * 2048 + i * ((words + 1) / 2);  // in uses, of two words each
            mask = 2 * first;
            unsigned* const bits = reinterpret_cast<unsigned*>(history.data() + first);
            for (unsigned id = 0; id < c.vocabulary; id++)
                if ((id + c.offset) % c.mask_stride < c.mask_width) bits[id / 32] |= 1u << id % 32;
        }
        bench.host.sampling[i] = {c.temperature, c.top_p, c.min_p, c.repetition_penalty, c.presence_penalty, c.frequency_penalty, c.top_k,
                                  c.top_logprobs, c.seed, c.draw + (defect == Defect::DRAW ? 1 : 0), i % 3 == 2 ? -1 : count - 1 - i, start, int(c.used), mask,
                                  biases, defect == Defect::BIAS ? 0 : int(c.biased), defect == Defect::SIGMA ? 0.0f : c.top_n_sigma, 0};
    }
    bench.history.upload(history);
    bench.step.upload({bench.host});
    for (int repeat = 0; repeat < 2; repeat++) {
        bench.sampled.poison();
        bench.sampled_ids.poison();
        bench.enqueue<C>(logits);
        CHECK(cudaStreamSynchronize(bench.stream));
        const auto sampled = bench.sampled.download();
        const auto ids = bench.sampled_ids.download();
        int wrong = 0, inexact = 0;
        for (int i = 0; i < count; i++) {
            const Case& c = cases[i];
            const Sampled& s = sampled[i];
            auto near = [&](float out, float expected) {
                if (out == expected) return true;
                inexact++;
                return std::fabs(out - expected) <= 3e-7f * std::fabs(expected);
            };
            const int slot = i % 3 == 2 ? -1 : count - 1 - i;
            bool good = s.id == c.id && s.top_count == int(c.top_count) && near(s.logprob, c.logprob) && (slot < 0 || ids[slot] == c.id);
            for (unsigned j = 0; j < c.top_count; j++) good = good && s.top_id[j] == c.top_id[j] && near(s.top_logprob[j], c.top_logprob[j]);
            if (!good && wrong++ < 6) {
                std::printf("  case %d (%s) T %g top_k %u top_p %g min_p %g sigmas %g history %u biases %u mask %u of %u logprobs %d: id %d not %d, logprob %.8g not %.8g, %d alternatives not %u\n",
                            i, KINDS[c.kind], c.temperature, c.top_k, c.top_p, c.min_p, c.top_n_sigma, c.used, c.biased, c.mask_width, c.mask_stride, c.top_logprobs, s.id, c.id, s.logprob, c.logprob, s.top_count, c.top_count);
            }
        }
        int unasked = 0;  // slots nobody owns must stay as they were
        for (int i = 0; i < count; i++) unasked += i % 3 == 2 && ids[count - 1 - i] != -1;
        const bool clean = bench.clean(), intact = bench.sampled.intact() && bench.sampled_ids.intact() && bench.scratch.intact();
        const bool passed = wrong == 0 && unasked == 0 && clean && intact && count > 0;
        std::printf("%s sample: vocabulary %d, %d threads x %d splits x %d groups: %d of %d rows wrong, %d logprobs not to the bit%s%s%s\n", passed ? "ok  " : "FAIL",
                    C::VOCABULARY, C::THREADS, C::SPLITS, C::GROUPS, wrong, count, inexact, clean ? "" : "  SCRATCH LEFT DIRTY",
                    intact ? "" : "  WROTE BEHIND THE END", unasked ? "  WROTE A SLOT UNASKED" : "");
        if (!passed) test::failures++;
    }
}

// Microseconds a launch costs in a chain of dependent launches.
template <class C>
float time(Bench& bench, const float* logits, int rows, Sampling sampling) {
    bench.host = {};
    bench.host.outputs = rows;
    for (int i = 0; i < rows; i++) {
        bench.host.sampling[i] = sampling;
        bench.host.sampling[i].slot = i;
        bench.host.sampling[i].seed = i;
    }
    bench.step.upload({bench.host});
    constexpr int CHAIN = 100;
    return 1000 / float(CHAIN) * test::time_graph(bench.stream, [&] {
        for (int i = 0; i < CHAIN; i++) bench.enqueue<C>(logits);
    }, 9);
}

template <class C>
void speed(Bench& bench, float* logits, const Row* rows_of_kind, int rows) {
    const Sampling greedy = {0, 1, 0, 1, 0, 0, 0, -1, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0};
    Sampling random = greedy, top_k = greedy, top_p = greedy, both = greedy, logprobs = greedy;
    random.temperature = top_k.temperature = top_p.temperature = both.temperature = 0.8f;
    top_k.top_k = both.top_k = 40;
    top_p.top_p = both.top_p = 0.95f;
    logprobs.top_logprobs = 5;
    // A history of 1,024 tokens and behind it a mask of every third one, the same for all rows.
    Sampling penalised = both, masked = greedy;
    std::vector<TokenUse> history(bench.history.count);
    for (int i = 0; i < 1024; i++) history[i] = {int(uint64_t(i) * 7919 % C::VOCABULARY), i % 4};
    unsigned* const mask = reinterpret_cast<unsigned*>(history.data() + 1024);
    for (int id = 0; id < C::VOCABULARY; id += 3) mask[id / 32] |= 1u << id % 32;
    bench.history.upload(history);
    penalised.history_count = 1024, penalised.repetition_penalty = 1.1f, penalised.presence_penalty = 0.5f;
    masked.mask = 2 * 1024;
    for (int kind : {0, 3, 6}) {
        std::vector<Row> host(rows, rows_of_kind[kind]);
        for (int i = 0; i < rows; i++) host[i].seed += i;
        test::Buffer<Row> device(host);
        generate<<<dim3(128, rows), 256>>>(device, logits, C::VOCABULARY);
        CHECK(cudaDeviceSynchronize());
        std::printf("%6d %3d rows %3d x %2d x %2d %-7s", C::VOCABULARY, rows, C::THREADS, C::SPLITS, C::GROUPS, KINDS[kind]);
        for (const Sampling& sampling : {greedy, random, top_k, top_p, both, logprobs, penalised, masked}) std::printf(" %7.2f", time<C>(bench, logits, rows, sampling));
        std::printf("\n");
    }
}

__global__ void empty() {
    launch_dependents();
    wait_for_predecessors();
}

int main(int arguments, char** argument) {
    const std::string word = arguments > 2 ? argument[2] : "";
    const Defect defect = word == "planted" ? Defect::DRAW : word == "unmasked" ? Defect::MASK : word == "unbiased" ? Defect::BIAS : word == "unbounded" ? Defect::SIGMA : Defect::NONE;
    FILE* file = arguments > 1 ? std::fopen(argument[1], "rb") : nullptr;
    if (!file) return std::printf("usage: sample sampling.bin [planted | unmasked | unbiased | unbounded | small]\n"), 2;
    std::vector<Case> all(4096);
    all.resize(std::fread(all.data(), sizeof(Case), all.size(), file));
    std::fclose(file);

    Bench bench;
    test::Buffer<float> logits(size_t(MAX_SEQUENCES) * 262144);
    auto prepare = [&](int vocabulary) {
        std::vector<Row> rows;
        for (const Case& c : all)
            if (int(c.vocabulary) == vocabulary) rows.push_back({c.row_seed, c.kind, c.scale});
        test::Buffer<Row> device(rows);
        logits.poison();
        generate<<<dim3(128, rows.size()), 256>>>(device, logits, vocabulary);
        CHECK(cudaDeviceSynchronize());
    };
    prepare(97);
    check<Shape<97, 256, 1, 8>>(bench, all, logits, defect);
    check<Shape<97, 256, 3, 8>>(bench, all, logits, defect);
    prepare(1001);
    check<Shape<1001, 256, 2, 16>>(bench, all, logits, defect);
    if (word == "small") return test::failures != 0;
    prepare(49152);
    check<Shape<49152, 512, 12, 16>>(bench, all, logits, defect);
    prepare(128256);
    check<Shape<128256, 256, 32, 8>>(bench, all, logits, defect);
    check<Shape<128256, 512, 16, 16>>(bench, all, logits, defect);
    check<Shape<128256, 512, 32, 1>>(bench, all, logits, defect);
    check<Shape<128256, 512, 8, 32>>(bench, all, logits, defect);
    prepare(262144);
    check<Shape<262144, 512, 32, 8>>(bench, all, logits, defect);
    check<Shape<262144, 512, 12, 22>>(bench, all, logits, defect);

    if (arguments == 2 && test::failures == 0) {
        const Row rows[] = {{1, 0, 6.34e-4f}, {}, {}, {1, 3, 1.0f}, {}, {}, {1, 6, 2.5e-4f}};
        const float nothing = 10 * test::time_graph(bench.stream, [&] {
            for (int i = 0; i < 100; i++) test::launch(empty, dim3(32), 256, 0, bench.stream);
        }, 9);
        std::printf("microseconds a launch in a chain of dependent launches; an empty kernel takes %.2f\n", nothing);
        std::printf("vocabulary, rows, threads x splits x groups, logits:  greedy  random   top_k   top_p    both logprobs penalty    mask\n");
        speed<Shape<128256, 512, 32, 1>>(bench, logits, rows, 1);
        speed<Shape<49152, 512, 24, 1>>(bench, logits, rows, 1);
        speed<Shape<248320, 512, 32, 1>>(bench, logits, rows, 1);
        speed<Shape<248320, 512, 16, 16>>(bench, logits, rows, 16);
        for (int many : {32, 64, 128}) {
            // Two, three and six rounds of the rows: what division() of blocks/ends/sample.rs chooses, and what it chose before.
            if (many == 32) speed<Shape<248320, 512, 16, 16>>(bench, logits, rows, many);
            if (many != 32) speed<Shape<248320, 512, 12, 22>>(bench, logits, rows, many);
            speed<Shape<248320, 512, 11, 24>>(bench, logits, rows, many);
        }
        speed<Shape<128256, 512, 32, 8>>(bench, logits, rows, 8);
        speed<Shape<128256, 512, 16, 16>>(bench, logits, rows, 16);
        speed<Shape<128256, 512, 8, 32>>(bench, logits, rows, 64);
        speed<Shape<128256, 512, 16, 16>>(bench, logits, rows, 64);
        speed<Shape<128256, 512, 16, 16>>(bench, logits, rows, 128);
    }
    std::printf("%s\n", test::failures == 0 ? "all passed" : "FAILED");
    return test::failures != 0;
}
