// Who runs what, and when. A host thread that waits for a stream runs its work: one operation after another,
// and of kernels the fibers, all under the one lock. Each stream has a stack of its own, so that its work can
// stop in the middle of a kernel and another host thread can go on with it.
//
// A kernel that only polls gives way. Then other devices' streams run, also those that nobody waits for yet,
// one operation at a time; when none of these can go on either, the host threads that stand at the lock are
// let in, and the thread that waits here sleeps until one has told a stream something. Only when that has not
// happened for CARD_PATIENCE does the clock of the cards run on, for as long again, for kernels to give up by
// it; and then what still polls is stuck.

#include "driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace card {

std::vector<Stream>& streams = *new std::vector<Stream>();

namespace {

constexpr size_t STACK = 256 * 1024, GUARD = 4096;
constexpr int DEMAND = 16;  // turns without a deed after which other streams' work is asked for
constexpr long long SECOND = 1000000000;

auto& spare = *new std::vector<unsigned char*>();
auto& news = *new std::condition_variable_any();
CUstream running;
void* host_stack;  // of the thread that runs it
bool driven;       // a host thread runs work until what it waits for is done
int asleep;
size_t next_turn;

bool works(const CUstream_st& stream) {
    const CUctx_st& context = *stream.owner.context;
    return context.fault == CUDA_SUCCESS && context.retained > 0 && context.life == stream.owner.life;
}

void want(CUstream_st& stream, size_t until) { stream.wanted = std::max(stream.wanted, std::min(until, stream.told)); }

bool is_reached(const CUstream_st& stream) { return stream.other->done >= stream.after || !works(*stream.other); }

// ---- On a stream's stack ----

void leave_stream(CUstream_st& stream) { card_switch(&stream.stack_pointer, host_stack); }

void carry_out(CUstream_st& stream) {
    const Operation operation = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    stream.other = operation.other.lock(), stream.after = operation.after;
    while (stream.other && !is_reached(stream)) {
        want(*stream.other, stream.after);
        stream.state = CUstream_st::WAITING;
        leave_stream(stream);
    }
    stream.other = nullptr, stream.state = CUstream_st::READY;
    if (operation.act) operation.act();
    if (!operation.launches.empty()) run(operation.launches);
}

void stream_main() {
    for (CUstream_st& stream = *running;;) {
        carry_out(stream);
        stream.done++, progress++, deeds++;
        leave_stream(stream);
    }
}

void give_way_to_others(const Launch& launch, bool in_vain) {
    CUstream_st& stream = *running;
    stream.state = CUstream_st::POLLING, stream.seen = in_vain ? progress : progress - 1, stream.asking = &launch;
    leave_stream(stream);
    stream.state = CUstream_st::READY;
}

// A kernel's thread has trapped: nothing of its context goes on, and the stream's stack is left as it is.
[[noreturn]] void end_context() {
    ready = {}, current = nullptr;
    running->owner.context->fault = CUDA_ERROR_LAUNCH_FAILED;
    deeds++, progress++;
    void* nobody;
    card_switch(&nobody, host_stack);
    fail("a kernel that has trapped goes on");
}

// ---- On a host thread's stack ----

void begin_stack(CUstream_st& stream) {
    if (spare.empty()) {
        void* at = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE) != 0) fail("no memory for a stream's stack");
        spare.push_back(static_cast<unsigned char*>(at));
    }
    stream.stack = spare.back();
    spare.pop_back();
    stream.stack_pointer = new_stack(stream.stack + STACK, &stream_main);
}

void advance(CUstream_st& stream) {
    if (!stream.stack) begin_stack(stream);
    running = &stream;
    guard_for(*stream.owner.context);
    static const auto& names = *new std::vector<std::string>([] {
        std::vector<std::string> all(CARD_DEVICES);
        for (int device = 0; CARD_DEVICES > 1 && device < CARD_DEVICES; device++) all[device] = "device " + std::to_string(device) + ", ";
        return all;
    }());
    where = names[stream.owner.context->device].c_str();
    const size_t done = stream.done;
    card_switch(&host_stack, stream.stack_pointer);
    where = "";
    running = nullptr;
    if (asleep > 0 && (stream.done != done || !works(stream))) news.notify_all();
}

bool can(const CUstream_st& stream, bool in_vain) {
    if (stream.done >= stream.wanted || !works(stream)) return false;
    if (stream.state == CUstream_st::POLLING) return in_vain || stream.seen != progress;
    if (stream.state == CUstream_st::OUTSIDE) return in_vain;
    return stream.state == CUstream_st::READY || is_reached(stream);
}

// The next of the streams that can go on does; `in_vain`: also one that polls and has seen no change.
bool next(bool in_vain) {
    for (size_t i = 0; i < streams.size(); i++) {
        const Stream stream = streams[(next_turn + i) % streams.size()];
        if (!can(*stream, in_vain)) continue;
        next_turn = (next_turn + i + 1) % streams.size();
        advance(*stream);
        return true;
    }
    return false;
}

// What a stream polls for may be in the next operation of another device's.
bool demand() {
    bool more = false;
    for (const Stream& asking : streams) {
        if (asking->state != CUstream_st::POLLING || !works(*asking)) continue;
        for (const Stream& other : streams) {
            if (other->owner.context == asking->owner.context || other->wanted > other->done || other->told == other->done) continue;
            want(*other, other->done + 1);
            more = more || works(*other);
        }
    }
    return more;
}

// Until something may have changed.
void sleep(std::chrono::milliseconds longest) {
    asleep++;
    news.wait_for(gate, longest);
    asleep--;
}

[[noreturn]] void stuck() {
    std::fprintf(stderr, "emulated card: nothing goes on:\n");
    for (int device = 0; device < CARD_DEVICES; device++) {
        bool said = false;
        for (const Stream& stream : streams) {
            if (stream->owner.context->device != device || stream->done >= stream->told) continue;
            said = true;
            std::fprintf(stderr, " device %d: a stream has done %zu of %zu operations", device, stream->done, stream->told);
            if (!works(*stream)) std::fprintf(stderr, ", and its context is no more\n");
            else if (stream->state == CUstream_st::POLLING) std::fprintf(stderr, ", and "), describe(*stream->asking);
            else if (stream->state == CUstream_st::OUTSIDE) std::fprintf(stderr, ", and waits for another process\n");
            else if (stream->state == CUstream_st::WAITING) std::fprintf(stderr, ", and waits for another stream of device %d\n", stream->other->owner.context->device);
            else std::fprintf(stderr, "\n");
        }
        if (!said) std::fprintf(stderr, " device %d: all that it was told is done\n", device);
    }
    std::fflush(stderr);
    _exit(86);
}

// Runs whatever can run until the stream has done so many operations.
void drive(const Stream& stream, size_t until) {
    using Clock = std::chrono::steady_clock;
    constexpr auto PATIENCE = std::chrono::milliseconds(CARD_PATIENCE);
    long seen = deeds;
    int turns = 0;
    unsigned long before = calls;
    auto since = Clock::now();
    while (stream->done < until && works(*stream)) {
        const bool went_on = next(false);
        if (CARD_DEVICES > 1) gate.let_in();
        if (deeds != seen || calls != before) {
            seen = deeds, before = calls, turns = 0, since = Clock::now();
            if (went_on) continue;
        } else if (went_on && turns++ < DEMAND) {
            continue;
        }
        // A process may be slow for as long as it wants.
        const bool outside = std::any_of(streams.begin(), streams.end(), [](const Stream& it) { return it->state == CUstream_st::OUTSIDE; });
        if (outside) since = Clock::now();
        if (demand()) {
            turns = 0;
        } else if (Clock::now() - since < PATIENCE) {
            // Once more, for what changed unnoticed, and so that kernels' own clocks run.
            if (!next(true) && CARD_DEVICES == 1) stuck();
            if (deeds == seen) sleep(std::chrono::milliseconds(std::min(++turns, 20)));
        } else if (Clock::now() - since < 2 * PATIENCE && next(true)) {
            now_ns += SECOND;
        } else {
            stuck();
        }
    }
}

}  // namespace

Stream find(CUstream stream) {
    for (const Stream& it : streams)
        if (it.get() == stream) return it;
    return nullptr;
}

void tell(CUstream_st& stream, Operation operation) {
    stream.waiting.push_back(std::move(operation));
    stream.told++;
    if (asleep > 0) news.notify_all();
}

CUresult wait_for(const Stream& stream, size_t until) {
    want(*stream, until);
    if (asleep > 0) news.notify_all();
    while (stream->done < until && works(*stream)) {
        if (driven) {
            sleep(std::chrono::milliseconds(100));
            continue;
        }
        driven = true;
        drive(stream, until);
        driven = false;
        if (asleep > 0) news.notify_all();
    }
    return stream->owner.context->fault;
}

bool ask(const Stream& stream, size_t until) {
    want(*stream, until);
    int turns = 0;
    while (stream->done < until && works(*stream) && turns++ < 1000 && next(false)) {}
    // Once more, for what changed unnoticed.
    if (stream->done < until && works(*stream)) next(true);
    return stream->done >= until;
}

void wait_outside() {
    CUstream_st& stream = *running;
    stream.state = CUstream_st::OUTSIDE;
    leave_stream(stream);
    stream.state = CUstream_st::READY;
}

void begin(const Stream& stream) {
    want(*stream, stream->told);
    int turns = 0;
    while (stream->done < stream->wanted && stream->state != CUstream_st::POLLING && stream->state != CUstream_st::OUTSIDE && turns++ < 1000 && next(false)) {}
}

CUresult synchronize(CUcontext context) {
    const std::vector<Stream> all = streams;
    for (const Stream& stream : all)
        if (!context || stream->owner.context == context) wait_for(stream, stream->told);
    return context ? context->fault : CUDA_SUCCESS;
}

void retire(CUstream_st& stream) {
    // One in the middle of an operation, of a context that has a fault, keeps it.
    if (stream.stack && stream.done == stream.told) spare.push_back(stream.stack);
    stream.stack = nullptr;
}

void take_turns() {
    give_way = give_way_to_others;
    abandon = end_context;
}

}  // namespace card
