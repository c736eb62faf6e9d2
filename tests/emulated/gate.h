// The lock around the emulation. Threads get it in the order in which they came, so that one that runs
// kernels can let those in that have something to tell.
#pragma once

#include <condition_variable>
#include <mutex>

namespace card {

class Gate {
  public:
    void lock() {
        std::unique_lock<std::mutex> held(inner);
        const unsigned mine = next++;
        turn.wait(held, [&] { return mine == serving; });
    }
    void unlock() {
        const std::lock_guard<std::mutex> held(inner);
        serving++;
        if (next != serving) turn.notify_all();
    }
    // Called by the thread that has it: lets those in that wait.
    void let_in() {
        bool waiting;
        {
            const std::lock_guard<std::mutex> held(inner);
            waiting = next != serving + 1;
        }
        if (waiting) unlock(), lock();
    }

  private:
    std::mutex inner;
    std::condition_variable turn;
    unsigned next = 0, serving = 0;
};

}  // namespace card
