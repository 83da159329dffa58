// Tokens drawn from rows of logits. galley/ops/draws.py is the specification: what is here takes
// shortcuts, but none that changes a token.
#pragma once

#include <vector>

#include "kernels/kernels.hpp"
#include "system/pool.hpp"

namespace galley {

constexpr int64_t kNoToken = -1;

// A request's parameters, as that file packs them.
struct SamplingRecord {
    uint64_t seed;
    double scale;   // 0: the greatest
    int64_t top_k;  // 0: all
    double reach;   // how far below the greatest a logit may be
    double top_p;   // 1: all
};

struct Draws {
    std::vector<int64_t> rows;       // of the logits
    std::vector<int64_t> positions;  // of the tokens
    std::vector<SamplingRecord> records;
};

// A token for each draw, or kNoToken. logits: [rows][n]. Throws std::invalid_argument if a row does
// not exist.
std::vector<int64_t> draw_tokens(Pool& pool, const Kernels& kernels, const float* logits,
                                 int64_t rows, int64_t n, const Draws& draws);

}  // namespace galley
