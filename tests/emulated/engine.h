// What is behind card.h: launches, the clusters of them that run, and what is on its way to them.
#pragma once

#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "card.h"

namespace card {

struct Cluster;
struct Resident;

struct Meeting {
    int arrived = 0, expected = 0;
    Waiters waiters;
};

// An mbarrier. Its eight bytes of shared memory hold a mark and its number, so that one that was overwritten is seen.
struct Phase {
    void* at;
    int expected, pending;
    long bytes = 0;
    unsigned parity = 0;
    Waiters waiters;
};

// A block's own variable, and where it stands among all of them.
struct Variable {
    size_t at;
    std::vector<unsigned char> bytes;
};

struct Resident : Block {
    Cluster* cluster;
    int threads;
    Meeting barriers[16];
    Meeting warpgroups[8];  // at their products
    std::vector<Warp> warps;
    std::vector<Fiber*> fibers;
    std::deque<Phase> phases;
    unsigned char* memory;
    std::map<const void*, Variable> variables;
    size_t variable_bytes = 0;

    void claim(size_t bytes);
    void check_canaries() const;
    void release();
};

struct Cluster {
    std::vector<std::unique_ptr<Resident>> blocks;
    int live = 0, arrived = 0, meetings = 0;
    bool falling;  // threads begin, and go on, in falling order
    bool eager;    // a warp runs ahead of the others as far as it can, and copies land at once; else all take turns, and copies land late
    Waiters waiters;
};

inline Resident& resident(Block& block) { return static_cast<Resident&>(block); }
inline Cluster& cluster(Block& block) { return *resident(block).cluster; }

// A bulk copy, or the arrival that one thread's copies up to a point are to make.
struct Delivery {
    Resident* target;
    void* barrier;
    Copy copy;
    Fiber* copier;
    size_t until;
};

struct Launch {
    const Kernel* kernel;
    Geometry geometry;
    bool dependent, released = true;
    unsigned blocks, next_block = 0;
    std::vector<std::vector<unsigned char>> values;
    std::vector<void*> arguments;
    std::vector<std::unique_ptr<Cluster>> clusters;
    std::deque<Delivery> deliveries;
    Waiters parked, polling;

    explicit Launch(const Prepared& prepared);
    // Blocks run one cluster after another; another begins beside those that run when these can only go on with it.
    void begin_early();
    void finish();

  private:
    bool more() const { return next_block < blocks; }
    void start_cluster();
    void work(bool all);
    long ask();
    void reap();
    void deliver();
};

// Fibers that may run, a count of what can let somebody who polls go on, and one of what polling alone never
// does.
extern Waiters ready;
extern long progress, deeds;
extern unsigned long long now_ns;
// What stands in front of a kernel's name in messages.
extern const char* where;

// Set by a driver of several devices: a launch whose fibers all poll lets others run and comes back (`in_vain`:
// nothing at all has happened since they asked), and a trap ends a context.
extern void (*give_way)(const Launch& launch, bool in_vain);
extern void (*abandon)();
extern "C" void card_switch(void** save, void* go_on);
// A stack on which card_switch begins a function that does not return.
void* new_stack(unsigned char* end, void (*function)());
// Who waits for what in a launch, on stderr.
void describe(const Launch& launch);

void append(Waiters& list, Fiber* fiber, bool in_front);
// Lets the fibers of a list run again.
void wake(Waiters& list);
// Stops the running fiber until it is woken.
void sleep_in(Waiters& list, const char* what);
// Stops it for good, or until somebody who has it in a list lets it run.
void leave();
// Runs fibers until none can.
void run_ready();
// All lanes are there.
void complete(Warp& warp);
void end_block(Resident& block);
void land(const Copy& copy);
// Which kernel, block and thread runs, for messages.
std::string place();

}  // namespace card
