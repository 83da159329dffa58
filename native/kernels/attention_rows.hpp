// Rows of queries that attend to the keys of one KV head together, and what they have found so far.
#pragma once

#include "kv.hpp"

namespace galley {
namespace GALLEY_ISA {

constexpr int64_t kLine = 64;  // bytes
constexpr float kLowest = -1e30f;

// A softmax over some of the keys, not yet divided by its total.
struct Softmax {
    int64_t rows, padded;
    float* mixed;   // [rows][padded]
    float* totals;  // [rows][16], a sum for each lane
    float* best;    // [rows]

    Softmax(int64_t r, int64_t p, float* memory)
        : rows(r), padded(p), mixed(memory), totals(mixed + r * p), best(totals + r * kLanes) {}

    void clear() const {
        for (int64_t i = 0; i < rows * (padded + kLanes); ++i) mixed[i] = 0.0f;
        for (int64_t i = 0; i < rows; ++i) best[i] = kLowest;
    }

    // Both shares of a row scaled to their common maximum and added.
    void merge(const Softmax& other) const {
        for (int64_t row = 0; row < rows; ++row) {
            const float now = other.best[row] > best[row] ? other.best[row] : best[row];
            const Floats mine = exp(splat(best[row] - now));
            const Floats its = exp(splat(other.best[row] - now));
            best[row] = now;
            add(totals + row * kLanes, mine, other.totals + row * kLanes, its);
            for (int64_t d = row * padded; d < (row + 1) * padded; d += kLanes)
                add(mixed + d, mine, other.mixed + d, its);
        }
    }

    // What a span brings, [rows][padded], after what was before it has become smaller.
    void add_span(const float* span, const float* shrink) const {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t d = row * padded; d < (row + 1) * padded; d += kLanes)
                store(mixed + d, fma(load(mixed + d), splat(shrink[row]), load(span + d)));
    }

    static void add(float* a, Floats mine, const float* b, Floats its) {
        store(a, fma(load(b), its, load(a) * mine));
    }
};

// Where a row's keys are, and what lies in the scratch memory whatever computes with it.
struct AttendRows {
    const Attend& a;
    const Cache& cache;
    const int64_t rows, last;  // position of the last key
    float* scores;             // [rows][kSpan]
    int64_t* positions;        // [rows], of the last key that each may see; there may be fewer
    float* shrink;             // [rows], by how much a span made what was mixed before smaller
    float* rest;

    // `room` has place for `some` rows of scores.
    AttendRows(const Attend& attend, int64_t some, float* room)
        : a(attend),
          cache(a.cache),
          rows(a.tokens * a.group),
          last(last_key(attend)),
          scores(room),
          positions(reinterpret_cast<int64_t*>(scores + some * kSpan)),
          shrink(reinterpret_cast<float*>(positions + rows)),
          rest(shrink + rows) {
        for (int64_t row = 0; row < rows; ++row)
            positions[row] = a.keys && !a.reach.window ? last : a.first + a.after + row / a.group;
    }

    static int64_t last_key(const Attend& a) {
        const int64_t end = a.first + a.after + a.tokens;
        return (!a.keys || (a.reach.window && end < a.keys) ? end : a.keys) - 1;
    }

    const float* query(int64_t row) const {
        return a.q + row / a.group * a.q_stride + row % a.group * cache.key_dim;
    }

    // Where the keys begin that any of the rows may see.
    int64_t first_span() const { return first_key(a.reach, a.first + a.after) / kSpan * kSpan; }

    uint8_t* piece_of(int64_t key) const {
        return piece(cache, a.table[key / kBlockTokens], a.kv_head);
    }

    // What will be read two spans after `key` is: beyond the last, the next KV head's first.
    const uint8_t* piece_after(int64_t key) const {
        const int64_t next = key + 2 * kSpan;
        if (next <= last) return piece_of(next);
        const int64_t from = first_span() + (key - first_span()) % (2 * kSpan);
        return piece_of(from <= last ? from : last) + cache.head_bytes;
    }
};

}  // namespace GALLEY_ISA
}  // namespace galley
