// peer.cuh of the library for a processor. Who finds nothing there lets others run, also other devices.
#pragma once

#include "core/async.cuh"

namespace monomorph {

inline void store_peer(float4* to, float4 value) {
    if (uintptr_t(to) % 16 != 0) card::fail("a store of 16 bytes to %p is not aligned", static_cast<void*>(to));
    *to = value;
    card::wrote();
}
inline void store_peer(float* to, float value) {
    *to = value;
    card::wrote();
}
inline void store_peer_if(bool live, float4* to, float4 value) {
    if (live) store_peer(to, value);
}
inline float4 load_peer(const float4* from) {
    if (!arrived(load_aligned(from))) card::poll();
    return *from;
}
inline float load_peer(const float* from) {
    if (!arrived(*from)) card::poll();
    return *from;
}
inline unsigned long long clock_ns() { return card::nanoseconds(); }
inline void fail(unsigned* flag) {
    *flag = 1;
    card::trap("a trap behind a flag for the host");
}

}  // namespace monomorph
