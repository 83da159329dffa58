#include "system/communicator.hpp"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#include <atomic>
#include <climits>
#include <string>
#include <thread>

#include "system/memory.hpp"

namespace galley {

// In shared memory, on a cache line of its own. The last one belongs to no rank: there, `published`
// says whether a rank has failed.
struct alignas(64) Communicator::Counter {
    std::atomic<uint32_t> published;
    std::atomic<uint32_t> sleeping;
};

namespace {

using Clock = std::chrono::steady_clock;

// Between two exchanges, ranks compute for much longer than that, but nearly as long as each other.
constexpr auto kSpin = std::chrono::microseconds(100);
// A sleeper looks at whether a rank has failed at least so often.
constexpr auto kNap = std::chrono::milliseconds(50);
constexpr int64_t kCounterBytes = 64;

static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes cannot share the counters");

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

// Until the word is not `seen`, somebody wakes it, or a nap is over.
void sleep_while(std::atomic<uint32_t>& word, uint32_t seen) {
#if defined(__linux__)
    const timespec nap = {0, std::chrono::nanoseconds(kNap).count()};
    (void)syscall(SYS_futex, &word, FUTEX_WAIT, seen, &nap, nullptr, 0);
#else
    (void)word, (void)seen;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

void wake(std::atomic<uint32_t>& word) {
#if defined(__linux__)
    (void)syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
}

}  // namespace

int64_t Communicator::bytes(int ranks, int64_t slot_bytes) {
    return kCounterBytes * (ranks + 1) + 2 * ranks * slot_bytes;
}

int64_t Communicator::slot_at(int ranks, int64_t slot_bytes, int rank, int parity) {
    return kCounterBytes * (ranks + 1) + (2 * rank + parity) * slot_bytes;
}

Communicator::Communicator(uint8_t* memory, int rank, int ranks, int64_t slot_bytes,
                           std::chrono::milliseconds timeout)
    : memory_(memory),
      rank_(rank),
      ranks_(ranks),
      slot_bytes_(slot_bytes),
      timeout_(timeout),
      elsewhere_(ranks > 0 ? ranks : 0) {
    static_assert(sizeof(Counter) == kCounterBytes, "a counter is a cache line");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        throw std::invalid_argument("there is no such rank");
    if (slot_bytes < 64 || slot_bytes % 64) throw std::invalid_argument("slots are cache lines");
    if (reinterpret_cast<uintptr_t>(memory) % 64)
        throw std::invalid_argument("shared memory begins at a cache line");
}

Communicator::Counter& Communicator::counter(int rank) const {
    return reinterpret_cast<Counter*>(memory_)[rank];
}

void Communicator::reach(const std::vector<int>& elsewhere, Carrier carrier) {
    for (const int other : elsewhere)
        if (other < 0 || other >= ranks_ || other == rank_)
            throw std::invalid_argument("there is no such rank elsewhere");
    elsewhere_.assign(ranks_, false);
    for (const int other : elsewhere) elsewhere_[other] = true;
    carrier_ = std::move(carrier);
}

bool Communicator::failed() const { return counter(ranks_).published.load() != 0; }

void Communicator::fail() {
    counter(ranks_).published.store(1);
    for (int r = 0; r < ranks_; ++r) wake(counter(r).published);
}

void Communicator::publish() {
    Counter& mine = counter(rank_);
    mine.published.store(turn_ + 1);
    if (mine.sleeping.load() > 0) wake(mine.published);
}

void Communicator::carry(int64_t bytes) {
    const auto deadline = Clock::now() + timeout_;
    for (;;) {
        const Carried carried = carrier_(static_cast<int>(turn_ % 2), bytes);
        if (carried == Carried::kDone) return;
        if (carried == Carried::kNotYet && !failed() && Clock::now() < deadline) continue;
        fail();
        throw RankLost("rank " + std::to_string(rank_) +
                       " has lost a rank on another machine, or that one has not answered in time");
    }
}

void Communicator::wait_for(int other) {
    const Counter& theirs = counter(other);
    const auto done = [&] {
        return static_cast<int32_t>(theirs.published.load(std::memory_order_acquire) - turn_) > 0;
    };
    const auto until = Clock::now() + kSpin;
    do {
        for (int i = 0; i < 64; ++i) {
            if (done()) return;
            relax();
        }
    } while (Clock::now() < until);
    sleep_until(other);
}

void Communicator::sleep_until(int other) {
    Counter& theirs = counter(other);
    const auto deadline = Clock::now() + timeout_;
    for (;;) {
        theirs.sleeping.fetch_add(1);
        const uint32_t seen = theirs.published.load();
        const bool done = static_cast<int32_t>(seen - turn_) > 0;
        if (!done && !failed()) sleep_while(theirs.published, seen);
        theirs.sleeping.fetch_sub(1);
        if (done) return;
        if (failed())
            throw RankLost("a rank has failed while rank " + std::to_string(rank_) +
                           " waited for it");
        if (Clock::now() >= deadline) {
            fail();
            throw RankLost("rank " + std::to_string(other) + " has not answered rank " +
                           std::to_string(rank_) + " in time");
        }
    }
}

}  // namespace galley
