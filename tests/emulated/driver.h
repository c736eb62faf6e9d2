// What the parts of the driver share: contexts and modules (driver.cpp), memory (claims.cpp), streams and
// graphs (streams.cpp), and which host thread runs their work (turns.cpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <cuda.h>

#include "engine.h"
#include "gate.h"

// A device's primary context, the only one it has.
struct CUctx_st {
    int device;
    int retained = 0;
    unsigned life = 0;                // how often it was destroyed: what belonged to it before is gone
    CUresult fault = CUDA_SUCCESS;    // what every call answers after a kernel has trapped
    bool reaches[CARD_DEVICES] = {};  // devices whose memory it was given the right to
    bool runs_graphs = false;         // it is past loading: what it runs may poll for what another device is to send
};

namespace card {

// The context that a handle was made in.
struct Owner {
    CUcontext context;
    unsigned life;
};

// The context that the calling thread has entered, or nullptr.
extern thread_local CUcontext entered;

// Says on stderr what is wrong, and gives the error back.
CUresult refuse(CUresult error, const char* format, ...) __attribute__((format(printf, 2, 3)));
// Whether the thread has entered a context, and it works.
CUresult inside(const char* call);
// Whether a handle's context is alive and works.
CUresult usable(const char* call, const char* what, const Owner& owner);
// Whether two handles belong to one context, and both are usable.
CUresult together(const char* call, const char* one, const Owner& first, const char* other, const Owner& second);
// Whether a context may touch a device's memory.
bool may_reach(const CUctx_st& context, int device);

// ---- Memory ----

constexpr int HOST = -1, NOWHERE = -2;
// Whose memory all these bytes are: a device's number, HOST for pinned memory, or NOWHERE.
int owner_of(uintptr_t at, size_t bytes);
size_t claimed_of(int device);
CUresult claim(size_t bytes, int owner, void** at);
CUresult give_back(uintptr_t at, int owner);
// Everything that a device has.
void give_back_all(int device);
// From here on memory that the context may not touch is guarded.
void guard_for(const CUctx_st& context);

}  // namespace card

struct CUfunc_st {
    const card::Kernel* kernel;
    card::Owner owner;
    int most_shared = 48 * 1024;  // until more is asked for
};

namespace card {

struct Operation {
    std::function<void()> act;              // a copy, or what processes gather
    std::vector<const Prepared*> launches;  // or kernels, of which each may follow the one before early
    std::vector<std::shared_ptr<Prepared>> owned;
    std::weak_ptr<CUstream_st> other = {};  // or a wait for another stream,
    size_t after = 0;                       // until it has done so many operations
};

}  // namespace card

// Of launches that a second stream runs beside the first's, every other graph runs those of the second first, and every other those of the
// first: neither may need the other's.
struct CUgraph_st {
    card::Owner owner;
    std::vector<card::Operation> operations;
    CUstream first = nullptr;                    // that began the capture
    bool late = false;                           // what the second stream is given runs where the first waits for it
    std::vector<card::Operation> second = {};    // and waits here
    std::vector<std::shared_ptr<CUstream_st>> forked = {};   // streams that joined the capture
    bool unjoined = false;                       // the first has not waited for all of the second's
};
struct CUgraphExec_st {
    card::Owner owner;
    std::vector<card::Operation> operations;
};

// Its operations run on a stack of their own, so that any host thread can go on with them.
struct CUstream_st {
    card::Owner owner;
    std::deque<card::Operation> waiting = {};
    size_t told = 0, done = 0;  // operations
    size_t wanted = 0;          // so many are to be done: work is done as late as it can be
    CUgraph capture = nullptr;

    enum { READY, POLLING, WAITING, OUTSIDE } state = READY;  // OUTSIDE: for another process
    long seen = 0;                           // progress when its kernel last asked in vain
    const card::Launch* asking = nullptr;    // POLLING
    std::shared_ptr<CUstream_st> other = {};  // WAITING
    size_t after = 0;
    unsigned char* stack = nullptr;
    void* stack_pointer = nullptr;
};

namespace card {

using Stream = std::shared_ptr<CUstream_st>;

// Nothing that functions of the driver use is destroyed when the process ends: a thread of the host may
// still be in one then.
extern Gate& gate;
extern unsigned long calls;  // of the driver, by any thread
extern std::vector<Stream>& streams;

// Null for a stream that is not there.
Stream find(CUstream stream);
void tell(CUstream_st& stream, Operation operation);
// Returns when the stream has done so many operations, or can no more.
CUresult wait_for(const Stream& stream, size_t until);
// Whether it has done so many; if not, it goes on with them for a while.
bool ask(const Stream& stream, size_t until);
// Called by an operation: what it waits for comes from another process.
void wait_outside();
// Begins what the stream was told; what only polls goes on later.
void begin(const Stream& stream);
// All work of a context, or of all of them.
CUresult synchronize(CUcontext context);
// Gives the stream's stack back.
void retire(CUstream_st& stream);
// Kernels that poll for other devices give way, and a trap ends its context and not the process.
void take_turns();

}  // namespace card

#define LOCKED                                              \
    const std::lock_guard<card::Gate> locked(card::gate); \
    card::calls++
#define EXPECT(condition)                                                \
    do {                                                                 \
        if (const CUresult found = (condition); found != CUDA_SUCCESS) return found; \
    } while (0)
