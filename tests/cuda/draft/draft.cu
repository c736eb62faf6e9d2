// The kernels of draft passes beside the host: which drafts hold and the headers of the passes, to the bit; the input of a draft head
// against double precision, with and without images. Each check plants a defect of its own.
#include "core/filled.cuh"
#include "kernels/accept.cuh"
#include "kernels/draft_embed.cuh"
#include "kernels/draft_image_rows.cuh"

using namespace monomorph;

static void expect(bool good, const char* what, const char* name) {
    std::printf("%s %s: %s\n", good ? "ok  " : "FAIL", name, what);
    if (!good) test::failures++;
}

// BELOW: of 2^24 drafts, how many hold whatever was sampled; 0 where the samples decide.
template <int TOKENS_, int PASSES_, bool LAYERS_, int SEQUENCES_, unsigned BELOW = 0>
struct Drafts {
    static constexpr int TOKENS = TOKENS_, PASSES = PASSES_, SEQUENCES = SEQUENCES_, SLOTS = SEQUENCES + 3;
    static constexpr int ROWS_AT = SLOTS, DRAFTED_AT = ROWS_AT + MAX_SEQUENCES;  // of ids
    static constexpr bool LAYERS = LAYERS_, FORCED = BELOW > 0;
    static constexpr unsigned FORCED_BELOW = BELOW;
};

// As accept.cuh says it in words.
static bool forced(int slot, int position, unsigned below) {
    uint64_t h = (uint64_t(slot) << 32) + uint32_t(position) + 0x9e3779b97f4a7c15ull;
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    return unsigned((h ^ h >> 31) >> 40) < below;
}

template <class C>
void check_accept(const char* name, int sequences) {
    static uint64_t seed = 1;
    test::Random random(seed++);
    Step step = {};
    step.sequences = sequences * C::TOKENS, step.blocks_at = sizeof(Step);
    std::vector<int> ids(C::DRAFTED_AT + C::PASSES * C::SEQUENCES);
    for (int& id : ids) id = random.below(5);
    std::vector<Step> passes(C::PASSES);
    std::memset(static_cast<void*>(passes.data()), 0xff, passes.size() * sizeof(Step));
    std::vector<int> held(C::SEQUENCES, -1);
    std::vector<int> places(sequences);  // some are not drafted for
    for (int s = 0, next = 0; s < sequences; s++) places[s] = s % 4 == 3 ? -1 : next++;
    std::reverse(places.begin(), places.end());
    for (int s = 0; s < sequences; s++) {
        const int position = random.below(1000), slot = C::SLOTS - 1 - s;
        for (int i = 0; i < C::TOKENS; i++) {
            // Most drafts are what was sampled from the row before.
            const int row = s * C::TOKENS + i, before = i > 0 ? ids[C::ROWS_AT + row - 1] : -1, count = C::TOKENS > 1 ? 1 : 1 + random.below(9);
            step.sequence[row] = {step.tokens, count, position + i, 3 * s, random.below(4) ? before : 7, slot, places[s], -1};
            step.tokens += count;
        }
    }

    test::Buffer<Step> device_step(std::vector<Step>{step}), device_passes(passes);
    test::Buffer<int> device_ids(ids), device_held(held);
    const auto run = [&] { test::launch(accept_kernel<C, MAX_SEQUENCES>, dim3(1), MAX_SEQUENCES, 0, nullptr, device_step.pointer, device_passes.pointer,
                                            device_ids.pointer, device_held.pointer); };
    run();
    CHECK(cudaDeviceSynchronize());

    auto want_ids = ids;
    auto want_held = held;
    const int drafted = sequences == 0 ? 0 : std::max(0, *std::max_element(places.begin(), places.end()) + 1);
    for (int pass = 0; pass < C::PASSES; pass++) {
        passes[pass].tokens = passes[pass].sequences = passes[pass].outputs = drafted;
        const char* blocks = reinterpret_cast<const char*>(device_step.pointer) + sizeof(Step);
        passes[pass].blocks_at = int(blocks - reinterpret_cast<const char*>(device_passes.pointer + pass));
    }
    for (int s = 0; s < sequences; s++) {
        const Sequence* rows = step.sequence + s * C::TOKENS;
        int* sampled = &want_ids[C::ROWS_AT + s * C::TOKENS];
        int count = 0;
        if (C::TOKENS > 1) {
            while (count + 1 < C::TOKENS && (C::FORCED ? forced(rows->slot, rows[count + 1].position, C::FORCED_BELOW) : sampled[count] == rows[count + 1].token)) count++;
            want_ids[rows->slot] = sampled[count];
            if (C::FORCED)
                for (int i = 0; i < count; i++) sampled[i] = rows[i + 1].token;
        }
        const int place = places[s], last = C::TOKENS > 1 ? count : rows->count - 1;
        if (place < 0) continue;
        want_held[place] = count;
        for (int pass = 0; pass < C::PASSES; pass++) {
            Step& to = passes[pass];
            const bool of_rows = !C::LAYERS && pass == 0;
            to.output_rows[place] = of_rows ? rows->first_token + last : place;
            to.sequence[place] = {place, 1, rows->position + last + pass + C::LAYERS, rows->block_start, -1, C::LAYERS && pass > 0 ? place : rows->slot, place, -1};
            Sampling& greedy = to.sampling[place];
            greedy.temperature = greedy.min_p = greedy.presence_penalty = greedy.frequency_penalty = 0;
            greedy.top_p = greedy.repetition_penalty = 1;
            greedy.top_k = 0, greedy.top_logprobs = -1, greedy.seed = greedy.draw = 0;
            greedy.slot = C::DRAFTED_AT + pass * C::SEQUENCES + place, greedy.history_start = greedy.history_count = 0, greedy.mask = -1;
        }
    }
    const auto got = device_passes.download();
    expect(device_ids.download() == want_ids && device_ids.intact(), "ids", name);
    expect(device_held.download() == want_held && device_held.intact(), "drafts that hold", name);
    expect(std::memcmp(got.data(), passes.data(), passes.size() * sizeof(Step)) == 0 && device_passes.intact(), "headers of the passes", name);
    if (C::TOKENS == 1 || C::FORCED || sequences == 0) return;
    auto others = ids;
    for (int i = 0; i < sequences; i++) others[C::ROWS_AT + i * C::TOKENS]++;  // the first draft of nobody holds as before
    device_ids.upload(others);
    run();
    CHECK(cudaDeviceSynchronize());
    expect(device_held.download() != want_held, "planted: other samples must be seen", name);
}

template <int H, Format F, ScaleForm S, Norm N, bool EXACT_, bool DECODE_>
struct Head {
    static constexpr int HIDDEN = H, THREADS = 256;
    static constexpr Format FORMAT = F;
    static constexpr ScaleForm SCALES = S;
    static constexpr Norm NORM = N;
    static constexpr float EPS = 1e-6f;
    static constexpr bool EXACT = EXACT_, DECODE = DECODE_;
};

template <class C>
void check_embed(const char* name) {
    constexpr int V = 203, H = C::HIDDEN, ROWS = 21, CAPACITY = 24, SEQUENCES = 4;
    test::Random random(H);
    const test::FilledMatrix<C::FORMAT, C::SCALES> table(V, H, false, 0.05f);
    Step step = {};
    step.tokens = ROWS;
    std::vector<int> ids(ROWS), expected(ROWS);  // by row, or by slot
    for (int& id : ids) id = random.below(V);
    std::vector<TokenRow> tokens;
    for (int s = 0; s < SEQUENCES; s++) {
        const int count = s + 1 < SEQUENCES ? 2 * s + 1 : ROWS - int(tokens.size());
        step.sequence[s] = {int(tokens.size()), count, 0, 0, -1, 2 * s + 1, -1, s % 2 ? random.below(V) : -1};
        for (int i = 0; i < count; i++) tokens.push_back({random.below(V), s});
    }
    tokens[7].id = -1;  // within the third sequence: not known to the host
    for (int row = 0; row < ROWS; row++) {
        const Sequence& own = step.sequence[tokens[row].sequence];
        const int next = row + 1 < own.first_token + own.count ? tokens[row + 1].id : own.following;
        expected[row] = C::DECODE ? ids[row] : next >= 0 ? next : ids[own.slot];
    }
    std::vector<float> x(size_t(CAPACITY) * H), weights[3];
    for (float& v : x) v = 3 * random.normal();
    for (auto& weight : weights) {
        weight.resize(H);
        for (float& v : weight) v = 0.2f * random.normal() + (C::NORM == Norm::PLAIN ? 1.0f : 0.0f);
    }
    const auto normed = [&](std::vector<double> row, const std::vector<float>& weight) {
        double squares = 0;
        for (double v : row) squares += v * v;
        const double inverse = 1 / std::sqrt(squares / H + double(C::EPS));
        for (int i = 0; i < H; i++) {
            row[i] *= inverse * (C::NORM == Norm::ONE_PLUS ? 1.0f + weight[i] : weight[i]);
            if (C::EXACT) row[i] = float(row[i]);
        }
        return row;
    };
    std::vector<double> reference;
    for (int row = 0; row < ROWS; row++) {
        std::vector<double> embedding(H), hidden(&x[size_t(row) * H], &x[size_t(row) * H] + H);
        for (int i = 0; i < H; i++) embedding[i] = table.value(expected[row], i);
        for (const auto& half : {normed(embedding, weights[0]), normed(normed(hidden, weights[1]), weights[2])}) reference.insert(reference.end(), half.begin(), half.end());
    }

    test::Buffer<Step> device_step(std::vector<Step>{step});
    test::Buffer<TokenRow> device_tokens(tokens);
    test::Buffer<int> device_ids(ids);
    test::Buffer<float> device_x(x), embedding_norm(weights[0]), norm(weights[1]), hidden_norm(weights[2]), out(size_t(CAPACITY) * 2 * H);
    const auto run = [&] {
        test::launch(draft_embed_kernel<C, C::THREADS, draft_embed_shared_bytes<C>()>, dim3(CAPACITY), C::THREADS, draft_embed_shared_bytes<C>(), nullptr,
                     device_step.pointer, device_tokens.pointer, device_ids.pointer, table.codes.pointer, table.scales.pointer, table.row_scales.pointer,
                     embedding_norm.pointer, device_x.pointer, norm.pointer, hidden_norm.pointer, out.pointer);
        CHECK(cudaDeviceSynchronize());
        return out.download();
    };
    const auto raw = run();
    bool intact = out.intact();
    for (size_t i = reference.size(); i < raw.size(); i++) intact = intact && std::isnan(raw[i]);
    const double limit = C::EXACT ? 6e-8 : 1e-6;
    test::report(name, test::compare(raw, reference), limit, intact);
    for (int& id : ids) id = (id + 1) % V;
    for (TokenRow& token : tokens) token.id = (token.id + 1) % V;
    device_ids.upload(ids), device_tokens.upload(tokens);
    expect(test::compare(run(), reference).relative > limit, "planted: other ids must be seen", name);
}

template <int H, Format F, ScaleForm S, Norm N, bool EXACT>
void check_embeds(const char* name) {
    check_embed<Head<H, F, S, N, EXACT, true>>((std::string(name) + ", decode").c_str());
    check_embed<Head<H, F, S, N, EXACT, false>>((std::string(name) + ", prompt").c_str());
}

struct Seen {
    Step step;
    DraftImages drafts;
    PositionShifts shifts;
};

template <class C>
void check_image_rows(const char* name) {
    constexpr int H = C::HIDDEN, ROWS = 21, CAPACITY = 24, SEQUENCES = 4, KEPT = 13;
    test::Random random(H + 1);
    Seen host = {};
    host.step.tokens = ROWS, host.step.blocks_at = sizeof(Seen);
    std::vector<TokenRow> tokens;
    std::vector<ImageRow> images;
    for (int s = 0; s < SEQUENCES; s++) {
        const int count = s + 1 < SEQUENCES ? 2 * s + 1 : ROWS - int(tokens.size());
        host.step.sequence[s] = {int(tokens.size()), count, 0, 0, -1, s, -1, -1};
        host.drafts.following[s] = s % 2 ? random.below(KEPT) : -1;
        for (int i = 0; i < count; i++) {
            tokens.push_back({0, s});
            images.push_back({random.below(3) ? random.below(KEPT) : -1, 0, {0, 0, 0}});
        }
    }
    std::vector<float> kept(size_t(KEPT) * H), weight(H), before(size_t(CAPACITY) * 2 * H);
    for (float& v : kept) v = 3 * random.normal();
    for (float& v : weight) v = 0.2f * random.normal() + (C::NORM == Norm::PLAIN ? 1.0f : 0.0f);
    for (float& v : before) v = random.normal();
    std::vector<double> reference(before.begin(), before.end());
    for (int row = 0; row < ROWS; row++) {
        const int of = tokens[row].sequence;
        const Sequence& own = host.step.sequence[of];
        const int at = row + 1 < own.first_token + own.count ? images[row + 1].row : host.drafts.following[of];
        if (at < 0) continue;
        double squares = 0;
        for (int i = 0; i < H; i++) squares += double(kept[size_t(at) * H + i]) * kept[size_t(at) * H + i];
        const double inverse = 1 / std::sqrt(squares / H + double(C::EPS));
        for (int i = 0; i < H; i++)
            reference[size_t(row) * 2 * H + i] = kept[size_t(at) * H + i] * inverse * (C::NORM == Norm::ONE_PLUS ? 1.0f + weight[i] : weight[i]);
    }

    test::Buffer<Seen> step(std::vector<Seen>{host});
    test::Buffer<TokenRow> device_tokens(tokens);
    test::Buffer<ImageRow> device_images(images);
    test::Buffer<float> device_kept(kept), norm(weight), out(before);
    const auto run = [&] {
        out.upload(before);
        test::launch(draft_image_rows_kernel<C, C::THREADS, draft_image_rows_shared_bytes<C>()>, dim3(CAPACITY), C::THREADS, draft_image_rows_shared_bytes<C>(), nullptr,
                     static_cast<const Step*>(&step.pointer->step), device_tokens.pointer, device_images.pointer, device_kept.pointer, norm.pointer, out.pointer);
        CHECK(cudaDeviceSynchronize());
        return out.download();
    };
    const double limit = C::EXACT ? 6e-8 : 1e-6;
    test::report(name, test::compare(run(), reference), limit, out.intact());
    const auto seen = [&](const char* what) {
        step.upload({host}), device_images.upload(images);
        expect(test::compare(run(), reference).relative > limit, what, name);
    };
    host.drafts.following[1] = (host.drafts.following[1] + 1) % KEPT;
    seen("planted: another row that follows must be seen");
    host.drafts.following[1] = (host.drafts.following[1] + KEPT - 1) % KEPT;
    std::rotate(images.begin(), images.begin() + 1, images.end());
    seen("planted: rows of the tokens themselves must be seen");
}

int main() {
    check_accept<Drafts<4, 3, false, 32>>("accept, 3 drafts of a head", 32);
    check_accept<Drafts<2, 1, false, 64>>("accept, 1 draft of a head", 37);
    check_accept<Drafts<3, 2, true, 16>>("accept, 2 drafts of layers", 16);
    check_accept<Drafts<8, 7, true, 4>>("accept, 7 drafts of layers", 3);
    check_accept<Drafts<4, 3, false, 8, 10000000>>("accept, forced", 8);
    check_accept<Drafts<1, 3, false, 128>>("accept, prompts, a head", 128);
    check_accept<Drafts<1, 2, true, 8>>("accept, prompts, layers", 5);
    check_accept<Drafts<4, 3, false, 8>>("accept, nobody", 0);
    check_embeds<576, Format::BF16, ScaleForm::NONE, Norm::ONE_PLUS, false>("draft head, 576 bf16 one-plus");
    check_embeds<2048, Format::FP8_E4M3, ScaleForm::BLOCK128, Norm::PLAIN, false>("draft head, 2048 fp8 block128");
    check_embeds<2880, Format::NVFP4, ScaleForm::ROWS, Norm::PLAIN, false>("draft head, 2880 nvfp4");
    check_embeds<45, Format::F32, ScaleForm::NONE, Norm::ONE_PLUS, true>("draft head, 45 f32 exact");
    check_embeds<576, Format::Q8_0, ScaleForm::NONE, Norm::PLAIN, true>("draft head, 576 q8_0 exact");
    check_image_rows<Head<576, Format::BF16, ScaleForm::NONE, Norm::ONE_PLUS, false, false>>("rows of images, 576 one-plus");
    check_image_rows<Head<45, Format::F32, ScaleForm::NONE, Norm::PLAIN, true, false>>("rows of images, 45 exact");
    std::printf(test::failures ? "%d FAILED\n" : "all passed\n", test::failures);
    return test::failures != 0;
}
