// async.cuh of the library for a processor: see there what each function is, and card.h how it is done.
#pragma once

#include "../builtin.h"

namespace monomorph {

#define MONOMORPH_DYNAMIC_SHARED(name, alignment)                                      \
    static_assert((alignment) <= 1024, "shared memory begins at a multiple of 1024"); \
    unsigned char* const name = ::card::current->block->shared
#define MONOMORPH_SHARED(name, ...)      \
    using name##_shared = __VA_ARGS__;   \
    static const char name##_place = 0;  \
    name##_shared& name = *static_cast<name##_shared*>(::card::shared_variable(&name##_place, sizeof(name##_shared)))

inline unsigned shared_address(const void* pointer) { return card::shared_address(pointer); }

inline int thread_index() { return static_cast<int>(threadIdx.x); }

inline void launch_dependents() {}
inline void wait_for_predecessors() { card::wait_for_predecessors(); }

using Barrier = unsigned long long;

inline void barrier_init(Barrier* barrier, unsigned arrivals) { card::phase_init(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_arrive(Barrier* barrier) { card::phase_arrive(barrier, 0); }
constexpr unsigned WARP_ARRIVALS = 1;
inline void warp_arrive(Barrier* barrier, int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
}
inline void barrier_expect(Barrier* barrier, unsigned bytes) { card::phase_arrive(barrier, bytes); }
inline void barrier_wait(Barrier* barrier, unsigned parity) { card::phase_wait(barrier, parity); }
inline bool barrier_passed(Barrier* barrier, unsigned parity) { return card::phase_passed(barrier, parity); }
inline void named_barrier(int id, int threads) { card::block_barrier(id, threads, true); }
inline void named_barrier_arrive(int id, int threads) { card::block_barrier(id, threads, false); }

inline unsigned long long evict_first_policy() { return 0; }
inline void bulk_copy(void* shared, const void* global, unsigned bytes, Barrier* barrier) { card::bulk_copy(shared, global, bytes, barrier); }
inline void bulk_copy(void* shared, const void* global, unsigned bytes, Barrier* barrier, unsigned long long) {
    card::bulk_copy(shared, global, bytes, barrier);
}
inline void bulk_prefetch(const void* global, unsigned bytes) {
    if (bytes % 16 != 0 || uintptr_t(global) % 16 != 0) card::fail("a prefetch of %u bytes from %p is not of 16s", bytes, global);
}
inline void fence_async_shared() {}

inline void copy_16(void* shared, const void* global, int valid = 16) { card::copy(shared, global, valid); }
inline void copy_16(unsigned shared_address, const void* global, int valid = 16) { card::copy(card::shared_at(shared_address, 16), global, valid); }
inline void copy_8(unsigned shared_address, const void* global, int valid) { card::copy(card::shared_at(shared_address, 8), global, valid, 8); }
inline void copy_commit() { card::current->copies.commit(); }
template <int PENDING>
inline void copy_wait() { card::copy_wait(PENDING); }
inline void copies_arrive(Barrier* barrier) { card::copies_arrive(barrier); }

// Loads of several bytes are of aligned ones.
template <class T>
inline T load_aligned(const T* pointer) {
    if (uintptr_t(pointer) % sizeof(T) != 0) card::fail("a load of %zu bytes from %p is not aligned", sizeof(T), static_cast<const void*>(pointer));
    return *pointer;
}
inline float load_constant(const float* pointer) { return load_aligned(pointer); }
inline float4 load_constant(const float4* pointer) { return load_aligned(pointer); }
template <class T>
inline T load_activation(const T* pointer) { return load_aligned(pointer); }
template <class T>
inline T load_streamed(const T* pointer) { return load_aligned(pointer); }
inline void load_streamed_if(bool live, uint32_t (&words)[4], const uint32_t* pointer) {
    if (!live) return;
    const uint4 four = load_aligned(reinterpret_cast<const uint4*>(pointer));
    std::memcpy(words, &four, sizeof words);
}
inline void load_streamed_if(bool live, uint32_t (&words)[2], const uint32_t* pointer) {
    if (!live) return;
    const uint2 two = load_aligned(reinterpret_cast<const uint2*>(pointer));
    std::memcpy(words, &two, sizeof words);
}
inline void load_streamed_if(bool live, uint32_t (&words)[1], const uint32_t* pointer) {
    if (live) words[0] = load_aligned(pointer);
}
inline void prefetch(const void*) {}

inline unsigned arrive(unsigned* counter) { return (*counter)++; }
inline void arrive_release(unsigned* counter) { ++*counter; }
inline unsigned arrivals(const unsigned* counter) {
    card::poll();
    return *counter;
}
constexpr unsigned NOT_YET = 0xffffffffu;
inline float not_yet() { return __uint_as_float(NOT_YET); }
inline bool arrived(float value) { return __float_as_uint(value) != NOT_YET; }
inline bool arrived(float4 value) { return arrived(value.x) && arrived(value.y) && arrived(value.z) && arrived(value.w); }
inline void store_arriving(float* to, float value) { *to = value != value ? __uint_as_float(0x7fffffffu) : value; }
inline float load_arriving(const float* pointer) {
    card::poll();
    return *pointer;
}
inline float4 load_arriving(const float4* pointer) {
    card::poll();
    return *pointer;
}
inline void add_global(float4* to, float4 value) {
    if (uintptr_t(to) % 16 != 0) card::fail("an addition of 16 bytes to %p is not aligned", static_cast<void*>(to));
    to->x += value.x, to->y += value.y, to->z += value.z, to->w += value.w;
}
inline void add_global(float2* to, float2 value) {
    if (uintptr_t(to) % 8 != 0) card::fail("an addition of 8 bytes to %p is not aligned", static_cast<void*>(to));
    to->x += value.x, to->y += value.y;
}

}  // namespace monomorph
