#include "runtime/sampling.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace galley {
namespace {

bool is_better(const float* x, int64_t a, int64_t b) {
    if (x[a] > x[b]) return true;
    if (x[a] < x[b]) return false;
    const bool a_is_nan = x[a] != x[a], b_is_nan = x[b] != x[b];
    return a_is_nan == b_is_nan ? a < b : b_is_nan;
}

}  // namespace

int64_t argmax(const Kernels& kernels, const float* x, int64_t n) {
    int64_t at = 0;
    int64_t ids[kRowBlock];
    for (int64_t begin = 0; begin < n && x[at] == x[at]; begin += kRowBlock) {
        const int64_t size = std::min(kRowBlock, n - begin);
        const int64_t count = kernels.find_above(x + begin, size, x[at], ids);
        for (int64_t i = 0; i < count && x[at] == x[at]; ++i)
            if (!(x[begin + ids[i]] <= x[at])) at = begin + ids[i];
    }
    return at;
}

void top_k(const Kernels& kernels, const float* x, int64_t n, int64_t count, int64_t* ids) {
    if (count == 0) return;
    const auto better = [x](int64_t a, int64_t b) { return is_better(x, a, b); };
    const int64_t limit = 2 * count + kRowBlock;
    thread_local std::vector<int64_t> pool;
    if (static_cast<int64_t>(pool.size()) < limit) pool.resize(limit);
    int64_t size = 0;
    // The least of the best so far, once there are enough: later ids must be greater to get in.
    float bar = std::numeric_limits<float>::quiet_NaN();
    for (int64_t begin = 0; begin < n; begin += kRowBlock) {
        int64_t* added = pool.data() + size;
        const int64_t found =
            kernels.find_above(x + begin, std::min(kRowBlock, n - begin), bar, added);
        for (int64_t i = 0; i < found; ++i) added[i] += begin;
        size += found;
        if (size > limit - kRowBlock) {
            std::nth_element(pool.begin(), pool.begin() + count - 1, pool.begin() + size, better);
            size = count;
            bar = x[pool[count - 1]];
        }
    }
    std::partial_sort(pool.begin(), pool.begin() + count, pool.begin() + size, better);
    std::copy_n(pool.begin(), count, ids);
}

}  // namespace galley
