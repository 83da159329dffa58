// Experts whose matrices stay in a file: those used last are in memory, in slots of one size.
#pragma once

#include <array>
#include <deque>
#include <list>
#include <vector>

#include "runtime/op.hpp"
#include "system/pool.hpp"

namespace galley {

class ExpertCache {
  public:
    static constexpr size_t kParts = 3;  // gate, up, down

    struct Counts {
        int64_t hits, misses, evictions, read_bytes;
        double read_seconds;
    };

    // `slots` experts of `slot_bytes` at most. `file` is a descriptor, of which another is made.
    // Throws std::runtime_error if there cannot be another.
    ExpertCache(int file, int64_t slots, int64_t slot_bytes);
    ~ExpertCache();
    ExpertCache(const ExpertCache&) = delete;
    ExpertCache& operator=(const ExpertCache&) = delete;

    int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
    int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }
    const Counts& counts() const { return counts_; }

    // An expert of these matrices of the file; returns its number. Throws std::invalid_argument if
    // they are not in a file or do not fit a slot.
    int64_t add(const std::array<Weights, kParts>& parts);
    // A matrix of an expert, where the last call of `take` with it has put it. The address stays.
    const Matrix* matrix(int64_t expert, size_t part) const {
        return &experts_[expert].placed[part];
    }

    // Reads those of these experts that are not in memory; all of them stay there until the next
    // call. Throws std::runtime_error if the file cannot be read.
    void take(const std::vector<int64_t>& wanted, Pool& pool);

  private:
    struct Slot {
        uint8_t* data;
        int64_t expert;  // -1: none
    };
    struct Expert {
        std::array<Weights, kParts> parts;
        std::array<Matrix, kParts> placed;
        std::list<Slot>::iterator slot;
        bool here;
    };

    void leave(Slot& slot);
    int read(const Expert& expert, size_t part) const;

    int file_;
    int64_t slot_bytes_;
    Memory memory_;
    std::list<Slot> slots_;       // those used last at the end
    std::deque<Expert> experts_;  // whose addresses stay
    std::vector<int64_t> missing_;
    Counts counts_{};
};

}  // namespace galley
