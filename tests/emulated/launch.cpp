// Launches: which blocks run, and a thread from its beginning to its end.

#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "engine.h"

namespace card {

namespace {

constexpr size_t STACK = 128 * 1024;
// Stacks begin at different places of a page: the lines that every thread touches, at both ends, would otherwise all be
// of the same few sets of the processor's caches.
constexpr size_t LINE = 64, PAGE = 4096;
constexpr uint64_t STACK_END = 0x5ca1ab1e0ddba115;  // what stands where it must not reach

void end_fiber() {
    Fiber& f = *current;
    Resident& block = resident(*f.block);
    Cluster& c = cluster(block);
    if (f.products.done < f.products.all.size()) fail("it ends, and products are under way");
    f.waits_for = "nothing: it has ended";
    f.warp->lane[f.thread.x % 32] = nullptr;
    f.warp->live--, block.live--, c.live--;
    progress++, deeds++;
    if (f.warp->live > 0 && f.warp->arrived == f.warp->live) complete(*f.warp);
    Meeting& all = block.barriers[0];
    if (all.arrived > 0 && all.expected == 0 && all.arrived == block.live) all.arrived = 0, wake(all.waiters);
    if (c.live > 0 && c.arrived == c.live) c.arrived = 0, c.meetings++, wake(c.waiters);
    if (block.live == 0) end_block(block);
}

void fiber_main() {
    current->block->launch->kernel->call(current->block->launch->arguments.data());
    end_fiber();
    leave();
    fail("a thread that has ended goes on");
}

// Fibers and their stacks are kept for the next block.
auto& spare = *new std::vector<Fiber*>();

Fiber* fiber() {
    if (spare.empty()) {
        auto* f = new Fiber();
        void* at = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) fail("no memory for another thread's stack");
        static size_t made;
        f->stack = static_cast<unsigned char*>(at) + made++ * LINE % PAGE;
        std::memcpy(f->stack, &STACK_END, sizeof STACK_END);
        return f;
    }
    Fiber* f = spare.back();
    spare.pop_back();
    return f;
}

}  // namespace

void Launch::start_cluster() {
    clusters.emplace_back(new Cluster());
    Cluster& c = *clusters.back();
    static unsigned begun;
    c.eager = begun % 2, c.falling = begun / 2 % 2;
    begun++, deeds++;
    const unsigned first = next_block;
    next_block += kernel->cluster;
    const int threads = int(geometry.block.x);
    for (int rank = 0; rank < kernel->cluster; rank++) {
        const unsigned n = first + rank, x = n % geometry.grid.x, y = n / geometry.grid.x % geometry.grid.y;
        c.blocks.emplace_back(new Resident());
        Resident& b = *c.blocks.back();
        b.launch = this, b.cluster = &c, b.rank = rank, b.index = {x, y, n / geometry.grid.x / geometry.grid.y};
        b.live = b.threads = threads, b.passed_wait = false;
        b.claim(geometry.shared);
        b.warps.resize((threads + 31) / 32);
        for (int t = 0; t < threads; t++) {
            Fiber* f = fiber();
            b.fibers.push_back(f);
            f->thread = {unsigned(t), 0, 0};
            f->block = &b, f->warp = &b.warps[t / 32];
            f->warp->lane[t % 32] = f, f->warp->live++;
            f->waits_for = nullptr;
            f->stack_pointer = new_stack(f->stack + STACK, &fiber_main);
        }
    }
    c.live = threads * kernel->cluster;
    for (auto& b : c.blocks)
        for (Fiber* f : b->fibers) append(ready, f, c.falling);
}

void end_block(Resident& b) {
    b.check_canaries();
    for (Fiber* f : b.fibers) {
        if (f->copies.done < f->copies.all.size()) fail("its block ends, and nobody waited for copies of thread %u", f->thread.x);
        if (std::memcmp(f->stack, &STACK_END, sizeof STACK_END) != 0) fail("thread %u has used up its stack", f->thread.x);
        f->copies.clear(), f->products.clear();
    }
    for (const Delivery& d : b.launch->deliveries)
        if (d.target == &b) fail("its block ends, and copies to it are under way");
    if (b.launch->dependent && !b.passed_wait)
        fail("its block ends, and no thread of it has waited for the kernels before: those after it could begin too early");
}

void describe(const Launch& launch) {
    std::fprintf(stderr, "kernel %s is stuck:\n", launch.kernel->name);
    int said = 0;
    for (const auto& c : launch.clusters)
        for (const auto& b : c->blocks) {
            const char* before = "";
            for (size_t t = 0; t < b->fibers.size(); t++) {
                const Fiber& f = *b->fibers[t];
                const char* now = f.waits_for ? f.waits_for : "?";
                if (std::strcmp(now, before) != 0 && said++ < 60)
                    std::fprintf(stderr, "  block (%u, %u, %u), from thread %zu on: waits for %s\n", b->index.x, b->index.y, b->index.z, t, now);
                before = now;
            }
        }
}

namespace {

[[noreturn]] void stuck(const Launch& launch) {
    std::fprintf(stderr, "emulated card: ");
    describe(launch);
    std::fflush(stderr);
    _exit(86);
}

constexpr int FRUITLESS = 1000;  // rounds of asking after which nothing more can happen
constexpr long ASKED = 2000;     // threads that have asked since the launch last gave way
constexpr int ROUNDS = 100;      // of asking, when others of the launch always do something
constexpr unsigned EARLY_THREADS = 4096;

}  // namespace

void Launch::reap() {
    for (size_t i = 0; i < clusters.size();) {
        if (clusters[i]->live > 0) {
            i++;
            continue;
        }
        for (auto& b : clusters[i]->blocks) {
            spare.insert(spare.end(), b->fibers.begin(), b->fibers.end());
            b->release();
        }
        clusters.erase(clusters.begin() + i);
    }
}

// Lets those that poll ask once more; returns how many they are. That is no progress by itself.
long Launch::ask() {
    const long before = progress;
    long asking = 0;
    for (const Fiber* fiber = polling.first; fiber; fiber = fiber->next) asking++;
    wake(polling);
    progress = before;
    return asking;
}

void Launch::work(bool all) {
    const bool gives_way = give_way && all;
    long asked = -1, asking = 0;
    int rounds = 0;
    for (int fruitless = 0;;) {
        run_ready();
        reap();
        if (clusters.empty()) {
            if (!all || !more()) return;
            start_cluster();
        } else if (!deliveries.empty()) {
            deliver();
        } else if (polling.first && asked != progress && !(gives_way && rounds++ >= ROUNDS)) {
            asking = ask();
            asked = progress, fruitless = 0;
        } else if (all && more()) {
            start_cluster();
        } else if (polling.first && gives_way && (asked != progress || asking > ASKED)) {
            give_way(*this, asked == progress);
            asking = ask();
            asked = progress, rounds = fruitless = 0;
        } else if (polling.first && fruitless++ < (gives_way ? FRUITLESS / 10 : FRUITLESS)) {
            asking += ask();
            asked = progress;
        } else if (!all) {
            return;
        } else if (polling.first && gives_way) {
            give_way(*this, true);
            asking = ask();
            asked = progress, rounds = fruitless = 0;
        } else {
            stuck(*this);
        }
    }
}

void Launch::begin_early() {
    released = false;
    do start_cluster();
    while (more() && next_block * geometry.block.x < EARLY_THREADS);
    work(false);
}

void Launch::finish() {
    released = true;
    wake(parked);
    work(true);
}

Launch::Launch(const Prepared& prepared)
    : kernel(prepared.kernel), geometry(prepared.geometry), dependent(prepared.dependent),
      blocks(prepared.geometry.grid.x * prepared.geometry.grid.y * prepared.geometry.grid.z), values(prepared.arguments) {
    for (auto& value : values) arguments.push_back(value.data());
}

void run(const std::vector<const Prepared*>& in_order) {
    std::unique_ptr<Launch> following;
    for (size_t i = 0; i < in_order.size(); i++) {
        std::unique_ptr<Launch> launch = std::move(following);
        if (!launch) launch.reset(new Launch(*in_order[i]));
        if (i + 1 < in_order.size() && in_order[i + 1]->dependent) {
            following.reset(new Launch(*in_order[i + 1]));
            following->begin_early();
        }
        launch->finish();
    }
}

}  // namespace card
