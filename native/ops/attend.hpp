// What the kinds of attention share.
#pragma once

#include "runtime/execution.hpp"

namespace galley {

struct Attention {
    const Cache& cache;
    Tables tables;
    AttentionPlan& plan;
    int64_t heads;
    float scale;
    Reach reach;
    float cap;           // of scores; 0: none
    const float* sinks;  // of each head; null: none
    Slot q, y;
    int64_t after = 0;  // see Attend
};

// A layer that was added. Throws std::invalid_argument if there is none of that number.
const Cache& checked_layer(const Execution& e, int64_t layer);
// Throws std::invalid_argument if the heads do not fit the cache or q; wishes for working memory.
void check_queries(Execution& e, const Cache& cache, int64_t heads, const Slot& q);
void check_attention(Execution& e, const Cache& cache, int64_t heads, const Slot& q, const Slot& y);
void check_kv(const Execution& e, const Cache& cache, const Slot& k, const Slot& v);

// What each_row() takes the writing of a token's keys and values for.
int64_t write_width(const Cache& cache);
void write_kv(Execution& e, const Cache& cache, const Tables& tables, int64_t r, const float* k,
              const float* v);
void write_all_kv(Execution& e, const Cache& cache, const Tables& tables, const Slot& k,
                  const Slot& v);
void attend_all(Execution& e, const Attention& attention);

}  // namespace galley
