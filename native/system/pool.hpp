// Threads that share the items of a job with the thread that asks for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace galley {

struct TooFewThreads : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Pool {
  public:
    // `threads` in all, the caller's included. With `cpus` (one for each thread, the first is the
    // caller's and not used) the others are pinned. Throws TooFewThreads if the system
    // does not start so many.
    Pool(int threads, const std::vector<int>& cpus);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(shares_.size()); }

    // body(begin, end, thread) over [0, items) in pieces of `grain`; returns when all are done.
    // Each thread begins with a run of its own. One caller at a time.
    template <class Body>
    void run(int64_t items, int64_t grain, const Body& body) {
        if (items <= 0) return;
        if (items <= grain || threads() == 1) return body(int64_t{0}, items, 0);
        Job job{[](const void* b, int64_t begin, int64_t end, int thread) {
                    (*static_cast<const Body*>(b))(begin, end, thread);
                },
                &body, items, grain};
        share(job);
    }

  private:
    struct Job {
        void (*call)(const void* body, int64_t begin, int64_t end, int thread);
        const void* body;
        int64_t items;
        int64_t grain;
    };

    void share(const Job& job);
    // A body that throws ends the process: what other threads still work on would be gone.
    void take_items(int thread) noexcept;
    void work(int thread);
    void stop();
    uint64_t wait_for_change(uint64_t seen);

    // A job is open while there are items to take; workers join an open job by counting themselves
    // in. One that wakes late finds it closed, so a busy machine never makes the caller wait for a
    // worker that has not begun.
    static constexpr uint64_t kActive = 0xffff, kOpen = 1 << 16, kGeneration = 1 << 17;

    Job job_{};
    // A thread's share of the items: a run of its own, of which idle threads may take.
    struct alignas(64) Share {
        std::atomic<int64_t> next{0};
        int64_t end = 0;
    };

    std::vector<Share> shares_;
    alignas(64) std::atomic<uint64_t> state_{0};
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stop_{false};
    struct Workers {
        std::mutex mutex;
        std::condition_variable wake;
        std::vector<std::thread> threads;
    };
    // A forked child has none of the threads, and one of them may hold the mutex forever: it
    // must not touch what is in here, and does all of a job itself.
    std::unique_ptr<Workers> workers_ = std::make_unique<Workers>();
    int forks_;  // of this process's line when the threads were started
};

}  // namespace galley
