// Shared memory of blocks, the barriers in it, and copies that land in it.

#include <cstdlib>
#include <cstring>

#include "engine.h"

namespace card {

namespace {

constexpr size_t SHARED_BASE = 1024;  // a card keeps the first kilobyte of a block's shared memory
constexpr size_t CANARY = 4096;
constexpr unsigned char CANARY_BYTE = 0xa5;
constexpr uint32_t PHASE_MARK = 0xba221e12;

// Whether all bytes are canaries: the first is, and each is what the one before it is.
bool is_whole(const unsigned char* at, size_t bytes) { return *at == CANARY_BYTE && std::memcmp(at, at + 1, bytes - 1) == 0; }

Resident* holder(const void* pointer) {
    const auto* at = static_cast<const unsigned char*>(pointer);
    for (auto& b : cluster(*current->block).blocks)
        if (at >= b->shared && at < b->shared + b->shared_bytes) return b.get();
    fail("%p is no address of the block's shared memory", pointer);
}

Resident& at_rank(unsigned rank) {
    auto& blocks = cluster(*current->block).blocks;
    if (rank >= blocks.size()) fail("the cluster has no block %u", rank);
    return *blocks[rank];
}

struct Mark {
    uint32_t mark, number;
};

Phase& phase_of(void* barrier) {
    Resident* block = holder(barrier);
    Mark mark;
    std::memcpy(&mark, barrier, sizeof mark);
    if (mark.mark != PHASE_MARK || mark.number >= block->phases.size() || block->phases[mark.number].at != barrier)
        fail("there is no barrier at byte %zu of shared memory, or it was overwritten",
             size_t(static_cast<unsigned char*>(barrier) - block->shared));
    return block->phases[mark.number];
}

void settle(Phase& phase) {
    if (phase.pending != 0 || phase.bytes != 0) return;
    phase.parity ^= 1, phase.pending = phase.expected;
    wake(phase.waiters);
}

void arrive(Phase& phase) {
    if (phase.pending-- == 0) fail("a barrier of %d arrivals has one more", phase.expected);
    settle(phase);
}

// Shared memory of blocks that have ended.
auto& spare = *new std::vector<unsigned char*>();
constexpr size_t MOST_SHARED = 256 * 1024;
constexpr size_t VARIABLES = 1 << 20;  // the first address of a block's variables: behind all that is dynamic

}  // namespace

void Resident::claim(size_t bytes) {
    if (spare.empty()) spare.push_back(static_cast<unsigned char*>(std::aligned_alloc(1024, SHARED_BASE + MOST_SHARED + CANARY)));
    memory = spare.back();
    spare.pop_back();
    shared = memory + SHARED_BASE, shared_bytes = bytes;
    std::memset(memory, CANARY_BYTE, SHARED_BASE);
    std::memset(shared, 0xff, bytes);  // no number until it is written
    std::memset(shared + bytes, CANARY_BYTE, CANARY);
}

void Resident::check_canaries() const {
    // Nearly always both are whole, and every block of every launch asks.
    if (is_whole(shared + shared_bytes, CANARY) && is_whole(memory, SHARED_BASE)) return;
    for (size_t i = 0; i < CANARY; i++)
        if (shared[shared_bytes + i] != CANARY_BYTE) fail("shared memory is %zu bytes, and byte %zu was written", shared_bytes, shared_bytes + i);
    for (size_t i = 1; i <= SHARED_BASE; i++)
        if (shared[-ptrdiff_t(i)] != CANARY_BYTE) fail("the byte %zu before shared memory was written", i);
}

void Resident::release() { spare.push_back(memory); }

void* shared_variable(const void* declaration, size_t bytes) {
    Resident& block = resident(*current->block);
    const auto [found, is_new] = block.variables.try_emplace(declaration);
    Variable& variable = found->second;
    if (is_new) {
        variable = {block.variable_bytes, std::vector<unsigned char>(bytes, 0xff)};  // no number until it is written
        block.variable_bytes += (bytes + 15) / 16 * 16;
    }
    return variable.bytes.data();
}

unsigned shared_address(const void* pointer) {
    for (const auto& [declaration, variable] : resident(*current->block).variables) {
        const size_t offset = static_cast<const unsigned char*>(pointer) - variable.bytes.data();
        if (offset < variable.bytes.size()) return current->block->rank << 24 | unsigned(VARIABLES + variable.at + offset);
    }
    const Resident* block = holder(pointer);
    return block->rank << 24 | unsigned(SHARED_BASE + (static_cast<const unsigned char*>(pointer) - block->shared));
}

void* shared_at(unsigned address, size_t bytes) {
    Resident& block = at_rank(address >> 24);
    for (auto& [declaration, variable] : block.variables) {
        const size_t offset = (address & 0xffffff) - VARIABLES - variable.at;
        if (offset < variable.bytes.size() && offset + bytes <= variable.bytes.size()) return variable.bytes.data() + offset;
    }
    const size_t at = (address & 0xffffff) - SHARED_BASE;
    if ((address & 0xffffff) < SHARED_BASE || at + bytes > block.shared_bytes) fail("shared memory is %zu bytes, and byte %zd is used", block.shared_bytes, at);
    if (block.live == 0) fail("shared memory of block %u of the cluster is used, which has ended", block.rank);
    return block.shared + at;
}

void* at_rank(const void* pointer, unsigned rank) {
    Resident& block = at_rank(rank);
    if (block.live == 0) fail("shared memory of block %u of the cluster is used, which has ended", rank);
    return block.shared + (static_cast<const unsigned char*>(pointer) - holder(pointer)->shared);
}

unsigned cluster_rank() { return current->block->rank; }

// ---- Barriers with phases ----

void phase_init(void* barrier, unsigned arrivals) {
    if (uintptr_t(barrier) % 8 != 0) fail("a barrier is not aligned to 8 bytes");
    Resident* block = holder(barrier);
    const Mark mark = {PHASE_MARK, uint32_t(block->phases.size())};
    block->phases.push_back({barrier, int(arrivals), int(arrivals), 0, 0, {}});
    std::memcpy(barrier, &mark, sizeof mark);
}

void phase_arrive(void* barrier, long bytes_to_come) {
    Phase& phase = phase_of(barrier);
    phase.bytes += bytes_to_come;
    arrive(phase);
}

void phase_wait(void* barrier, unsigned parity) {
    Phase& phase = phase_of(barrier);
    if (phase.parity == parity) sleep_in(phase.waiters, "a phase of a barrier");
}

bool phase_passed(void* barrier, unsigned parity) { return phase_of(barrier).parity != parity; }

// ---- Copies ----

void land(const Copy& copy) {
    std::memcpy(copy.to, copy.from, copy.valid);
    std::memset(static_cast<unsigned char*>(copy.to) + copy.valid, 0, copy.bytes - copy.valid);
}

namespace {

void land_until(Fiber& fiber, size_t until) {
    for (Begun<Copy>& c = fiber.copies; c.done < until; c.done++) land(c.all[c.done]);
}

}  // namespace

void bulk_copy(void* to, const void* from, unsigned bytes, void* barrier) {
    if (bytes == 0 || bytes % 16 != 0 || uintptr_t(to) % 16 != 0 || uintptr_t(from) % 16 != 0)
        fail("a bulk copy of %u bytes from %p to %p is not of 16s", bytes, from, to);
    Resident* target = holder(to);
    if (static_cast<unsigned char*>(to) + bytes > target->shared + target->shared_bytes) fail("a bulk copy goes beyond shared memory");
    if (holder(barrier) != target) fail("a bulk copy counts at another block's barrier");
    Phase& phase = phase_of(barrier);
    const Copy whole = {to, from, bytes, bytes};
    if (cluster(*current->block).eager) {
        land(whole);
        phase.bytes -= bytes;
        settle(phase);
    } else {
        current->block->launch->deliveries.push_back({target, barrier, whole, nullptr, 0});
    }
}

void copy(void* to, const void* from, unsigned valid, unsigned bytes) {
    if (valid > bytes || uintptr_t(to) % bytes != 0 || uintptr_t(from) % bytes != 0)
        fail("a copy of %u bytes (%u valid) from %p to %p is not aligned", bytes, valid, from, to);
    holder(to);
    current->copies.all.push_back({to, from, valid, bytes});
    if (cluster(*current->block).eager) land_until(*current, current->copies.all.size());
}

void copy_wait(size_t pending) {
    land_until(*current, current->copies.until(pending));
    if (current->copies.done == current->copies.all.size() && pending == 0) current->copies.groups.clear();
}

void copies_arrive(void* barrier) {
    if (cluster(*current->block).eager) return arrive(phase_of(barrier));
    current->block->launch->deliveries.push_back({holder(barrier), barrier, {}, current, current->copies.all.size()});
}

void Launch::deliver() {
    const Delivery d = deliveries.front();
    deliveries.pop_front();
    current = d.target->fibers[0];  // for messages, and to find the cluster
    Phase& phase = phase_of(d.barrier);
    if (d.copier) {
        land_until(*d.copier, d.until);
        arrive(phase);
    } else {
        land(d.copy);
        phase.bytes -= d.copy.bytes;
        settle(phase);
    }
    current = nullptr;
}

}  // namespace card
