// LoRA adapters in memory: thin factors that `lora` adds to the products of linear layers, row by
// row (arXiv:2106.09685).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "packing/packed.hpp"

namespace galley {

// The matrices of floats as they are, one after another in one piece of memory, which they keep:
// threads read them as one stream.
std::vector<std::shared_ptr<Packed>> joined(const std::vector<std::shared_ptr<Packed>>& parts);

// Rows of one adapter that follow each other and are computed together.
struct AdapterRows {
    int64_t begin, end;
    int64_t slot;
};

class Adapters {
  public:
    // Most rows of one AdapterRows, between which threads divide.
    static constexpr int64_t kRows = 8;

    // What an adapter adds to a linear layer: scale * b (a x). `a` is [rank, depth], `b`
    // [outputs, rank]; null where it adds nothing.
    struct Factors {
        std::shared_ptr<const Packed> a, b;
        float scale = 0.0f;
    };

    // A linear layer that adapters may add to. Throws std::invalid_argument if the module has other
    // sizes already.
    void declare(int64_t module, int64_t depth, int64_t outputs);

    // Throw std::invalid_argument for what is not there or does not fit the layer.
    void set(int64_t slot, int64_t module, Factors factors);
    void clear(int64_t slot);

    int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
    // Floats of a row between the two factors, over all adapters so far.
    int64_t widest() const { return widest_; }
    const Factors& of(int64_t slot, int64_t module) const;

  private:
    struct Module {
        int64_t depth = 0, outputs = 0;
    };
    std::vector<Module> modules_;
    std::vector<std::vector<Factors>> slots_;
    int64_t widest_ = 0;
};

}  // namespace galley
