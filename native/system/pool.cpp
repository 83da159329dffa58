#include "system/pool.hpp"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

namespace galley {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

// Elsewhere than on Linux the system alone chooses where threads run.
void pin([[maybe_unused]] std::thread& thread, [[maybe_unused]] int cpu) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    // A refusal (a cpuset that changed meanwhile) only costs speed.
    (void)pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
#endif
}

std::atomic<int> forks{0};

// How many forks lie between this process and the first of its line that made a pool.
int forks_so_far() {
    static const int registered =
        pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
    (void)registered;
    return forks.load(std::memory_order_relaxed);
}

}  // namespace

Pool::Pool(int threads, const std::vector<int>& cpus)
    : shares_(threads > 1 ? threads : 1), forks_(forks_so_far()) {
    std::vector<std::thread>& workers = workers_->threads;
    workers.reserve(shares_.size() - 1);
    for (int i = 1; i < threads; ++i) {
        try {
            workers.emplace_back([this, i] { work(i); });
        } catch (const std::system_error& error) {
            stop();
            throw TooFewThreads("only " + std::to_string(i) + " can be started (" +
                                error.code().message() + ")");
        }
        if (!cpus.empty()) pin(workers.back(), cpus[i]);
    }
}

Pool::~Pool() {
    if (forks_so_far() == forks_)
        stop();
    else
        (void)workers_.release();
}

void Pool::stop() {
    {
        std::lock_guard<std::mutex> lock(workers_->mutex);
        stop_.store(true);
    }
    workers_->wake.notify_all();
    for (std::thread& worker : workers_->threads) worker.join();
}

void Pool::share(const Job& job) {
    job_ = job;
    const int64_t pieces = (job.items + job.grain - 1) / job.grain;
    for (int t = 0; t < threads(); ++t) {
        shares_[t].next.store(pieces * t / threads() * job.grain, std::memory_order_relaxed);
        shares_[t].end = std::min(job.items, pieces * (t + 1) / threads() * job.grain);
    }
    const uint64_t generation = (state_.load() / kGeneration + 1) * kGeneration;
    state_.store(generation | kOpen);
    if (sleeping_.load() > 0 && forks_so_far() == forks_) {
        // Taken and given back: a worker between its last look and its sleep must not miss the
        // call.
        {
            std::lock_guard<std::mutex> lock(workers_->mutex);
        }
        workers_->wake.notify_all();
    }
    take_items(0);
    state_.fetch_and(~kOpen);
    for (int spins = 0; state_.load(std::memory_order_acquire) & kActive; ++spins) {
        relax();
        if (spins > 20000) std::this_thread::yield();
    }
}

void Pool::take_items(int thread) noexcept {
    const Job& job = job_;
    for (int i = 0; i < threads(); ++i) {
        Share& share = shares_[(thread + i) % threads()];
        for (;;) {
            const int64_t begin = share.next.fetch_add(job.grain, std::memory_order_relaxed);
            if (begin >= share.end) break;
            job.call(job.body, begin, std::min(begin + job.grain, share.end), thread);
        }
    }
}

void Pool::work(int thread) {
    uint64_t seen = 0;
    while (!stop_.load(std::memory_order_relaxed)) {
        uint64_t state = wait_for_change(seen);
        seen = state / kGeneration;
        while (state & kOpen && state / kGeneration == seen) {
            if (!state_.compare_exchange_weak(state, state + 1)) continue;
            take_items(thread);
            state_.fetch_sub(1, std::memory_order_release);
            break;
        }
    }
}

// Returns once the generation is not `seen`, or the pool stops.
uint64_t Pool::wait_for_change(uint64_t seen) {
    const auto changed = [&] { return state_.load() / kGeneration != seen || stop_.load(); };
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 64; ++i) {
            if (changed()) return state_.load();
            relax();
        }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock<std::mutex> lock(workers_->mutex);
    sleeping_.fetch_add(1);
    workers_->wake.wait(lock, changed);
    sleeping_.fetch_sub(1);
    return state_.load();
}

}  // namespace galley
