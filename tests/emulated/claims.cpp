// Memory of the devices, and pinned memory of the host. A claim ends at a page that nobody may touch. While
// work of a device runs, memory of devices that it has no right to is guarded as well.

#include "driver.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

namespace card {

namespace {

// By where it begins.
struct Piece {
    size_t bytes, mapped;
    unsigned char* map;
    int owner;
};
auto& pieces = *new std::map<uintptr_t, Piece>();
size_t claimed[CARD_DEVICES];
bool guarded[CARD_DEVICES];
constexpr size_t PAGE = 4096;
constexpr unsigned char BEFORE = 0xa5;

void protect(const Piece& piece, bool guard) {
    if (mprotect(piece.map + PAGE, piece.mapped - 2 * PAGE, guard ? PROT_NONE : PROT_READ | PROT_WRITE) != 0)
        fail("memory of device %d cannot be guarded", piece.owner);
}

void guard(int device, bool on) {
    if (guarded[device] == on) return;
    guarded[device] = on;
    for (const auto& [start, piece] : pieces)
        if (piece.owner == device) protect(piece, on);
}

void unmap(const Piece& piece) {
    if (piece.owner != HOST) claimed[piece.owner] -= piece.bytes;
    munmap(piece.map, piece.mapped);
}

}  // namespace

size_t claimed_of(int device) { return claimed[device]; }

// Ends at a guard page, and begins behind another.
CUresult claim(size_t bytes, int owner, void** at) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (owner != HOST && claimed[owner] + bytes > CARD_MEMORY) return CUDA_ERROR_OUT_OF_MEMORY;
    const size_t whole = (bytes + 255) / 256 * 256, pages = (whole + PAGE - 1) / PAGE * PAGE, mapped = pages + 2 * PAGE;
    void* map = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    auto* first = static_cast<unsigned char*>(map) + PAGE;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned char* start = first + pages - whole;
    std::memset(first, BEFORE, start - first);
    std::memset(start, 0xff, whole);  // no number until it is written
    const Piece piece = {bytes, mapped, static_cast<unsigned char*>(map), owner};
    pieces[uintptr_t(start)] = piece;
    if (owner != HOST) {
        claimed[owner] += bytes;
        if (guarded[owner]) protect(piece, true);
    }
    *at = start;
    return CUDA_SUCCESS;
}

CUresult give_back(uintptr_t at, int owner) {
    const auto found = pieces.find(at);
    if (found == pieces.end() || found->second.owner != owner) return CUDA_ERROR_INVALID_VALUE;
    const Piece piece = found->second;
    if (owner != HOST) guard(owner, false);
    for (unsigned char* p = piece.map + PAGE; p < reinterpret_cast<unsigned char*>(at); p++)
        if (*p != BEFORE) fail("memory before a claim was written");
    pieces.erase(found);
    unmap(piece);
    return CUDA_SUCCESS;
}

void give_back_all(int device) {
    for (auto at = pieces.begin(); at != pieces.end();) {
        const bool its = at->second.owner == device;
        if (its) unmap(at->second);
        at = its ? pieces.erase(at) : std::next(at);
    }
}

int owner_of(uintptr_t at, size_t bytes) {
    const auto next = pieces.upper_bound(at);
    if (next == pieces.begin()) return NOWHERE;
    const auto& [start, piece] = *std::prev(next);
    // Written so that no sum overflows.
    const size_t offset = at - start;
    return offset <= piece.bytes && bytes <= piece.bytes - offset ? piece.owner : NOWHERE;
}

void guard_for(const CUctx_st& context) {
    for (int device = 0; device < CARD_DEVICES; device++) guard(device, !may_reach(context, device));
}

}  // namespace card
