#include "runtime/draws.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "runtime/sampling.hpp"

namespace galley {
namespace {

struct Candidate {
    float x;
    int32_t id;
    int32_t weight;
};
using Candidates = std::vector<Candidate>;

// A thread's, so that draws after the largest one allocate nothing.
struct Scratch {
    Candidates all, near;
    std::vector<int64_t> ids, sums;
};
thread_local Scratch scratch;

bool is_better(const Candidate& a, const Candidate& b) {
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

uint64_t high_half(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

// The first 64 bits of Philox-4x64-10, whose counter numpy raises before it is used.
uint64_t noise(uint64_t seed, int64_t position) {
    uint64_t c[4] = {static_cast<uint64_t>(position) + 1, 0, 0, 0};
    uint64_t keys[2] = {seed, 0};
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = 0xD2E7470EE14C6C93, b = 0xCA5A826395121157;
        const uint64_t next[4] = {high_half(b, c[2]) ^ c[1] ^ keys[0], b * c[2],
                                  high_half(a, c[0]) ^ c[3] ^ keys[1], a * c[0]};
        std::copy_n(next, 4, c);
        keys[0] += 0x9E3779B97F4A7C15;
        keys[1] += 0xBB67AE8584CAA73B;
    }
    return c[0];
}

// A candidate, and the sum of all weights up to its own.
struct Reached {
    Candidate candidate;
    int64_t sum;
};

// The first at which `before` and the weights so far sum up to `mass`; there is one.
Reached walk(const Candidates& all, int64_t before, int64_t mass) {
    for (const Candidate& c : all) {
        before += c.weight;
        if (before >= mass) return {c, before};
    }
    return {all.back(), before};
}

// The same in the order from the best on. Candidates are sorted only once few are left, among
// which it must be: bins in the order of the logits tell.
Reached reach(const Candidates& from, int64_t mass) {
    Candidates& all = scratch.near;
    all = from;
    constexpr int64_t kFew = 64, kBins = 1024;
    int64_t before = 0;
    while (static_cast<int64_t>(all.size()) > kFew) {
        float least = all[0].x, most = all[0].x;
        for (const Candidate& c : all) {
            least = std::min(least, c.x);
            most = std::max(most, c.x);
        }
        if (least == most) return walk(all, before, mass);  // equals are in the order of their ids
        const double scale = (kBins - 1) / (static_cast<double>(most) - least);
        const auto bin = [&](const Candidate& c) {
            return static_cast<int64_t>((static_cast<double>(most) - c.x) * scale);
        };
        int64_t sums[kBins] = {};
        for (const Candidate& c : all) sums[bin(c)] += c.weight;
        int64_t reached = 0;
        while (before + sums[reached] < mass) before += sums[reached++];
        const auto is_elsewhere = [&](const Candidate& c) { return bin(c) != reached; };
        all.erase(std::remove_if(all.begin(), all.end(), is_elsewhere), all.end());
    }
    std::sort(all.begin(), all.end(), is_better);
    return walk(all, before, mass);
}

// A row of logits as it is drawn from.
class Row {
  public:
    // None of x[n] is NaN or above `most`, which is finite.
    Row(const Kernels& kernels, const float* x, int64_t n, float most, double scale)
        : kernels_(kernels), x_(x), n_(n), most_(most), scale_(static_cast<float>(scale)) {}

    // Of all, in the order of their ids: first the block that it is in, then its place there.
    int64_t from_all(uint64_t drawn) const {
        std::vector<int64_t>& sums = scratch.sums;
        sums.resize((n_ + kRowBlock - 1) / kRowBlock);
        int32_t weights[kRowBlock];
        for (size_t b = 0; b < sums.size(); ++b) sums[b] = weigh_block(b * kRowBlock, weights);
        const int64_t total = std::accumulate(sums.begin(), sums.end(), int64_t{0});
        auto left = static_cast<int64_t>(high_half(drawn, total));
        int64_t id = 0;
        for (int64_t sum : sums) {
            if (left < sum) break;
            left -= sum;
            id += kRowBlock;
        }
        weigh_block(id, weights);
        for (const int32_t* w = weights; left >= *w; ++w, ++id) left -= *w;
        return id;
    }

    int64_t sum() const {
        int64_t total = 0;
        int32_t weights[kRowBlock];
        for (int64_t i = 0; i < n_; i += kRowBlock) total += weigh_block(i, weights);
        return total;
    }

    // In the order of their ids.
    Candidates& at_least(float bar) const {
        Candidates& all = scratch.all;
        all.clear();
        const float below = std::nextafter(bar, -std::numeric_limits<float>::infinity());
        int64_t ids[kRowBlock];
        for (int64_t i = 0; i < n_; i += kRowBlock) {
            const int64_t count =
                kernels_.find_above(x_ + i, std::min(kRowBlock, n_ - i), below, ids);
            for (int64_t j = 0; j < count; ++j) ids[j] += i;
            append(ids, count, all);
        }
        return all;
    }

    // Best first.
    Candidates& best(int64_t count, float bar) const {
        std::vector<int64_t>& ids = scratch.ids;
        ids.resize(count);
        galley::top_k(kernels_, x_, n_, count, ids.data());
        while (x_[ids[count - 1]] < bar) --count;
        Candidates& all = scratch.all;
        all.clear();
        for (int64_t i = 0; i < count; i += kRowBlock)
            append(ids.data() + i, std::min(kRowBlock, count - i), all);
        return all;
    }

    // So low that all logits below it together weigh at most `rest`.
    float nucleus_bar(int64_t rest) const {
        const double each = 0.99 * static_cast<double>(rest) / static_cast<double>(n_);
        const double exponent = std::max(std::log2(each) - kWeightBits, -1.0 - kWeightBits);
        return static_cast<float>(most_ + exponent / scale_);
    }

  private:
    int64_t weigh_block(int64_t begin, int32_t* weights) const {
        const int64_t count = std::min(kRowBlock, n_ - begin);
        return kernels_.softmax_weights(x_ + begin, count, most_, scale_, weights);
    }

    // `count` <= kRowBlock.
    void append(const int64_t* ids, int64_t count, Candidates& all) const {
        float x[kRowBlock];
        int32_t weights[kRowBlock];
        for (int64_t i = 0; i < count; ++i) x[i] = x_[ids[i]];
        kernels_.softmax_weights(x, count, most_, scale_, weights);
        for (int64_t i = 0; i < count; ++i)
            all.push_back({x[i], static_cast<int32_t>(ids[i]), weights[i]});
    }

    const Kernels& kernels_;
    const float* x_;
    int64_t n_;
    float most_, scale_;
};

int64_t share(double top_p, int64_t sum) {
    return static_cast<int64_t>(std::ceil(top_p * static_cast<double>(sum)));
}

int64_t sum_of(const Candidates& all) {
    int64_t sum = 0;
    for (const Candidate& c : all) sum += c.weight;
    return sum;
}

int64_t draw(const Kernels& kernels, const float* x, int64_t n, int64_t position,
             const SamplingRecord& record) {
    const int64_t at = argmax(kernels, x, n);
    if (!std::isfinite(x[at])) return kNoToken;
    if (record.scale == 0.0) return at;
    const Row row(kernels, x, n, x[at], record.scale);
    const uint64_t drawn = noise(record.seed, position);
    const bool has_top_k = record.top_k > 0 && record.top_k < n;
    const bool has_min_p = !std::isinf(record.reach), has_top_p = record.top_p < 1.0;
    if (!has_top_k && !has_min_p && !has_top_p) return row.from_all(drawn);

    // Never as low as a token that is ruled out: `reach` sorts by differences of logits.
    const float bar =
        std::max(static_cast<float>(x[at] + record.reach), std::numeric_limits<float>::lowest());
    const bool nucleus_alone = !has_top_k && !has_min_p;
    const int64_t whole = nucleus_alone ? row.sum() : 0;
    Candidates& all = has_top_k ? row.best(record.top_k, bar)
                      : has_min_p
                          ? row.at_least(bar)
                          : row.at_least(row.nucleus_bar(whole - share(record.top_p, whole)));
    const int64_t sum = nucleus_alone ? whole : sum_of(all);
    if (has_top_p) {
        const Reached last = reach(all, share(record.top_p, sum));
        const auto is_out = [&](const Candidate& c) { return is_better(last.candidate, c); };
        all.erase(std::remove_if(all.begin(), all.end(), is_out), all.end());
        return reach(all, static_cast<int64_t>(high_half(drawn, last.sum)) + 1).candidate.id;
    }
    if (has_top_k && static_cast<int64_t>(all.size()) < record.top_k)
        std::sort(all.begin(), all.end(),
                  [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    return walk(all, 0, static_cast<int64_t>(high_half(drawn, sum)) + 1).candidate.id;
}

}  // namespace

std::vector<int64_t> draw_tokens(Pool& pool, const Kernels& kernels, const float* logits,
                                 int64_t rows, int64_t n, const Draws& draws) {
    const auto count = static_cast<int64_t>(draws.rows.size());
    if (draws.positions.size() != draws.rows.size() || draws.records.size() != draws.rows.size())
        throw std::invalid_argument("each draw needs a row, a position and a sampling record");
    for (int64_t row : draws.rows)
        if (row < 0 || row >= rows)
            throw std::invalid_argument("a draw names a row of logits that does not exist");
    std::vector<int64_t> tokens(count);
    pool.run(count, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i)
            tokens[i] =
                draw(kernels, logits + draws.rows[i] * n, n, draws.positions[i], draws.records[i]);
    });
    return tokens;
}

}  // namespace galley
