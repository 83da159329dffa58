// Processes that share the rows of a computation, through shared memory where they are on one
// machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

namespace galley {

// Another process ended, failed or did not answer in time. No call succeeds afterwards, in any of
// the processes.
struct RankLost : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// One of several ranks over one piece of shared memory, which begins zeroed. All ranks make the
// same calls of `exchange` in the same order.
//
// Each rank has two slots and a counter of the chunks that it has published. Chunk n goes to slot n
// % 2. A rank publishes chunk n + 1 only when it has read chunk n of all others; so once all have
// published n + 1, chunk n has been read, and its slot is free for n + 2.
//
// Ranks on other machines have slots in this memory, too, which a `Carrier` fills. If ranks of this
// machine share it, each fills these slots with the same bytes, at most one chunk before the
// others.
class Communicator {
  public:
    // Bytes of shared memory for so many ranks.
    static int64_t bytes(int ranks, int64_t slot_bytes);

    // Where a rank's slot of a parity begins in that memory.
    static int64_t slot_at(int ranks, int64_t slot_bytes, int rank, int parity);

    // `memory` of `bytes(ranks, slot_bytes)` must outlive this. Waits longer than `timeout` fail.
    Communicator(uint8_t* memory, int rank, int ranks, int64_t slot_bytes,
                 std::chrono::milliseconds timeout);

    // Sends the first `bytes` of this rank's slot of a parity to the ranks on other machines, and
    // fills theirs. It returns soon also if that takes longer, and is called again until it is
    // done.
    enum class Carried { kDone, kNotYet, kLost };
    using Carrier = std::function<Carried(int parity, int64_t bytes)>;

    // From now on, these ranks are reached through `carrier`.
    void reach(const std::vector<int>& elsewhere, Carrier carrier);

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    int64_t slot_bytes() const { return slot_bytes_; }

    // Exchanges `rows` rows of up to `row_bytes` bytes in chunks of rows that fill a slot. For each
    // chunk, put(slot, first, end) writes this rank's rows and returns the bytes that others need,
    // and take(other, slot, first, end) reads those of each other rank. Throws RankLost.
    template <class Put, class Take>
    void exchange(int64_t rows, int64_t row_bytes, const Put& put, const Take& take) {
        const int64_t chunk = slot_bytes_ / row_bytes;
        for (int64_t first = 0; first < rows; first += chunk) {
            const int64_t end = first + chunk < rows ? first + chunk : rows;
            const int64_t bytes = put(slot(rank_), first, end);
            publish();
            if (carrier_) carry(bytes);
            for (int other = 0; other < ranks_; ++other) {
                if (other == rank_) continue;
                if (!elsewhere_[other]) wait_for(other);
                take(other, slot(other), first, end);
            }
            ++turn_;
        }
    }

    // Ends all waits, of all ranks, with RankLost. May be called at any time on any thread.
    void fail();
    bool failed() const;

  private:
    struct Counter;
    Counter& counter(int rank) const;
    uint8_t* slot(int rank) const {
        return memory_ + slot_at(ranks_, slot_bytes_, rank, static_cast<int>(turn_ % 2));
    }
    void publish();
    void carry(int64_t bytes);
    void wait_for(int other);
    void sleep_until(int other);

    uint8_t* memory_;
    int rank_, ranks_;
    int64_t slot_bytes_;
    std::chrono::milliseconds timeout_;
    std::vector<bool> elsewhere_;  // of each rank
    Carrier carrier_;
    uint32_t turn_ = 0;  // chunks exchanged so far; counters wrap
};

}  // namespace galley
