// Fibers, the order in which they run, and where they meet.

#include "engine.h"

#include <cstdarg>
#include <cstdio>

namespace card {

Fiber* current;

// Saves where the running fiber is and goes on where another was (System V: what a callee keeps).
asm(R"(
.text
.globl card_switch
.hidden card_switch
.type card_switch, @function
card_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size card_switch, .-card_switch
)");
Waiters ready;
long progress, deeds;
unsigned long long now_ns = 1;
const char* where = "";
void (*give_way)(const Launch& launch, bool in_vain);
void (*abandon)();

// As card_switch leaves a stack, aligned as behind a call: six registers, and where to go on.
void* new_stack(unsigned char* end, void (*function)()) {
    auto* top = reinterpret_cast<void**>(end) - 1;
    *--top = reinterpret_cast<void*>(function);
    return top - 6;
}

namespace {

void* scheduler;

}  // namespace

void append(Waiters& list, Fiber* fiber, bool in_front) {
    fiber->next = nullptr;
    if (!list.first) {
        list.first = list.last = fiber;
    } else if (in_front) {
        fiber->next = list.first, list.first = fiber;
    } else {
        list.last->next = fiber, list.last = fiber;
    }
}

namespace {

Fiber* take(Waiters& list) {
    Fiber* fiber = list.first;
    if (fiber && !(list.first = fiber->next)) list.last = nullptr;
    return fiber;
}

}  // namespace

void leave() {
    Fiber* const me = current;
    current = take(ready);
    // The threads of a block are more than the first cache holds: what the one after needs comes while this one runs.
    if (const Fiber* after = ready.first) {
        const auto* registers = static_cast<const char*>(after->stack_pointer);
        __builtin_prefetch(registers);
        __builtin_prefetch(registers + 64);
        __builtin_prefetch(registers + 128);
        __builtin_prefetch(after->next);
    }
    if (current == me) return;
    card_switch(&me->stack_pointer, current ? current->stack_pointer : scheduler);
}

void run_ready() {
    if (!(current = take(ready))) return;
    card_switch(&scheduler, current->stack_pointer);
    current = nullptr;
}

void wake(Waiters& list) {
    while (Fiber* fiber = take(list)) {
        fiber->waits_for = nullptr;
        append(ready, fiber, cluster(*fiber->block).eager);
    }
    progress++;
}

void sleep_in(Waiters& list, const char* what) {
    current->waits_for = what;
    append(list, current, cluster(*current->block).falling);
    leave();
}

void fail(const char* format, ...) {
    char words[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "emulated card: %s%s\n", place().c_str(), words);
    std::fflush(stderr);
    _exit(86);
}

std::string place() {
    if (!current) return "";
    const Block& b = *current->block;
    char text[512];
    std::snprintf(text, sizeof text, "%skernel %s, block (%u, %u, %u), thread %u: ", where, b.launch->kernel->name, b.index.x, b.index.y, b.index.z,
                  current->thread.x);
    return text;
}

// ---- Warps and blocks ----

void complete(Warp& w) {
    w.arrived = 0;
    w.act(w);
    wake(w.waiters);
}

void meet(const char* what, void* operands, void (*act)(Warp&)) {
    Warp& w = *current->warp;
    current->operands = operands;
    if (w.arrived == 0) {
        w.act = act, w.what = what;
    } else if (w.act != act) {
        fail("lanes of a warp meet at different operations: %s and %s", w.what, what);
    }
    if (++w.arrived == w.live) {
        complete(w);
    } else {
        sleep_in(w.waiters, what);
    }
}

void block_barrier(int id, int threads, bool wait) {
    Resident& block = resident(*current->block);
    if (id < 0 || id >= 16) fail("there is no barrier %d", id);
    Meeting& b = block.barriers[id];
    if (threads % 32 != 0 || threads > block.threads) fail("barrier %d among %d threads of %d", id, threads, block.threads);
    if (b.arrived == 0) b.expected = threads;
    if (b.expected != threads) fail("barrier %d among %d threads, and among %d", id, threads, b.expected);
    b.arrived++, progress++;
    if (b.arrived == (threads == 0 ? block.live : threads)) {
        b.arrived = 0;
        wake(b.waiters);
    } else if (wait) {
        sleep_in(b.waiters, "a barrier of the block");
    }
}

void warpgroup_barrier() {
    Resident& block = resident(*current->block);
    const unsigned number = current->thread.x / 128;
    if (int(number * 128 + 128) > block.threads) fail("a warpgroup of fewer than four warps");
    Meeting& group = block.warpgroups[number];
    progress++;
    if (++group.arrived == 128) {
        group.arrived = 0;
        wake(group.waiters);
    } else {
        sleep_in(group.waiters, "the other warps of its warpgroup");
    }
}

void cluster_arrive() {
    Cluster& c = cluster(*current->block);
    current->cluster_meeting = c.meetings;
    if (++c.arrived == c.live) {
        c.arrived = 0, c.meetings++;
        wake(c.waiters);
    }
}

void cluster_wait() {
    Cluster& c = cluster(*current->block);
    if (current->cluster_meeting == c.meetings) sleep_in(c.waiters, "the barrier of the cluster");
}

void wait_for_predecessors() {
    Launch& launch = *current->block->launch;
    current->block->passed_wait = true;
    if (!launch.released) sleep_in(launch.parked, "the kernels before");
}

void poll() { sleep_in(current->block->launch->polling, "something it asks for again and again"); }

void wrote() { progress++, deeds++; }

unsigned long long nanoseconds() { return ++now_ns; }

void trap(const char* words) {
    if (!abandon) fail("%s", words);
    std::fprintf(stderr, "emulated card: %s%s\n", place().c_str(), words);
    std::fflush(stderr);
    abandon();
    __builtin_unreachable();
}

long long clock() {
    static long long now;
    poll();
    return now += 100;
}

uint3 grid() {
    const dim3& grid = current->block->launch->geometry.grid;
    return {grid.x, grid.y, grid.z};
}
uint3 block() { return {current->block->launch->geometry.block.x, 1, 1}; }

}  // namespace card
