#include "sampling.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

namespace galley {
namespace {

constexpr int64_t kScan = 64;  // elements that are compared with the bar at once

template <class T>
bool is_better(const T* x, int64_t a, int64_t b) {
    if (x[a] > x[b]) return true;
    if (x[a] < x[b]) return false;
    const bool a_is_nan = x[a] != x[a], b_is_nan = x[b] != x[b];
    return a_is_nan == b_is_nan ? a < b : b_is_nan;
}

template <class T>
bool any_above(const T* x, int64_t n, T bar) {
    // A mask as wide as an element, so that the loop runs in registers.
    std::conditional_t<sizeof(T) == 4, int32_t, int64_t> any = 0;
    for (int64_t i = 0; i < n; ++i) any |= x[i] <= bar ? 0 : -1;
    return any;
}

int64_t greatest(const float* x, int64_t n) {
    int64_t at = 0;
    for (int64_t begin = 0; begin < n && x[at] == x[at]; begin += kScan) {
        const int64_t end = std::min(begin + kScan, n);
        if (!any_above(x + begin, end - begin, x[at])) continue;
        for (int64_t i = begin; i < end && x[at] == x[at]; ++i)
            if (!(x[i] <= x[at])) at = i;
    }
    return at;
}

}  // namespace

void greatest(Pool& pool, const float* x, int64_t rows, int64_t n, int64_t* ids) {
    pool.run(rows, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t r = begin; r < end; ++r) ids[r] = greatest(x + r * n, n);
    });
}

template <class T>
void best(const T* x, int64_t n, int64_t count, int64_t* ids) {
    if (count == 0) return;
    const auto better = [x](int64_t a, int64_t b) { return is_better(x, a, b); };
    const int64_t limit = 2 * count + kScan;
    std::vector<int64_t> pool;
    pool.reserve(limit);
    // The least of the best so far, once there are enough: later ids must be greater to get in.
    T bar = std::numeric_limits<T>::quiet_NaN();
    for (int64_t begin = 0; begin < n; begin += kScan) {
        const int64_t end = std::min(begin + kScan, n);
        if (!any_above(x + begin, end - begin, bar)) continue;
        for (int64_t i = begin; i < end; ++i)
            if (!(x[i] <= bar)) pool.push_back(i);
        if (static_cast<int64_t>(pool.size()) > limit - kScan) {
            std::nth_element(pool.begin(), pool.begin() + count - 1, pool.end(), better);
            pool.resize(count);
            bar = x[pool.back()];
        }
    }
    std::partial_sort(pool.begin(), pool.begin() + count, pool.end(), better);
    std::copy_n(pool.begin(), count, ids);
}

template <class T>
void exp_sums(const Kernels& kernels, const T* x, int64_t n, double most, double temperature,
              double* sums) {
    double block[kExpBlock];
    for (int64_t begin = 0; begin < n; begin += kExpBlock) {
        const int64_t count = std::min(kExpBlock, n - begin);
        std::copy_n(x + begin, count, block);
        std::fill(block + count, block + kExpBlock, -std::numeric_limits<double>::infinity());
        *sums++ = kernels.exp_sum(block, most, temperature);
    }
}

template void best(const float*, int64_t, int64_t, int64_t*);
template void best(const double*, int64_t, int64_t, int64_t*);
template void exp_sums(const Kernels&, const float*, int64_t, double, double, double*);
template void exp_sums(const Kernels&, const double*, int64_t, double, double, double*);

}  // namespace galley
