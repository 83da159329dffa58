// What sampling asks of a row of logits.
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {

int64_t find_above(const float* x, int64_t n, float bar, int64_t* ids) {
    const Floats bars = splat(bar);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += kLanes) {
        uint32_t lanes = not_at_most(load_some(x + i, n - i), bars);
        if (n - i < kLanes) lanes &= (1u << (n - i)) - 1;
        for (; lanes; lanes &= lanes - 1) ids[count++] = i + __builtin_ctz(lanes);
    }
    return count;
}

namespace {

// 2 ** f for f in [-0.5, 0.5]: log(2) ** k / k! for k from 6 down to 0.
constexpr float kPower[] = {1.54035297e-4f,
                            1.33333579e-3f,
                            9.61812865e-3f,
                            5.55041097e-2f,
                            0.240226507f,
                            0.693147182f,
                            1.0f};

// No product is fused into a sum: numpy cannot do that, and the bits are to be the same.
GALLEY_INLINE Ints weights_of(Floats x, Floats most, Floats scale) {
    const Floats exponent = max((x - most) * scale, splat(-1.0f - kWeightBits));
    const Ints whole = to_ints(exponent);
    const Floats rest = exponent - to_floats(whole);
    Floats power = splat(kPower[0]);
    GALLEY_UNROLL for (int k = 1; k < 7; ++k) power = power * rest + splat(kPower[k]);
    Ints weights;
    GALLEY_PARTS {
        const FloatPart unit = (FloatPart)((whole.p[i] + 127 + kWeightBits) << 23);
        weights.p[i] = __builtin_convertvector(power.p[i] * unit, IntPart);
    }
    return weights;
}

// At most kRowBlock of them: 32 bits hold the sums of the weights' halves.
int64_t softmax_block(const float* x, int64_t n, Floats most, Floats scale, int32_t* weights) {
    Ints low = splat_int(0), high = splat_int(0);
    const auto add = [&](Ints w) {
        GALLEY_PARTS low.p[i] += w.p[i] & 0xffff;
        GALLEY_PARTS high.p[i] += w.p[i] >> 16;
    };
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Ints w = weights_of(load(x + i), most, scale);
        memcpy(weights + i, &w, sizeof w);
        add(w);
    }
    if (i < n) {
        const Ints w = weights_of(load_some(x + i, n - i, -__builtin_inff()), most, scale);
        memcpy(weights + i, &w, (n - i) * sizeof(int32_t));
        add(w);
    }
    return sum(low) + (static_cast<int64_t>(sum(high)) << 16);
}

}  // namespace

int64_t softmax_weights(const float* x, int64_t n, float most, float scale, int32_t* weights) {
    int64_t total = 0;
    for (int64_t i = 0; i < n; i += kRowBlock) {
        const int64_t count = n - i < kRowBlock ? n - i : kRowBlock;
        total += softmax_block(x + i, count, splat(most), splat(scale), weights + i);
    }
    return total;
}

namespace {

constexpr int kDoubles = kWidth / 2;
typedef int64_t LongPart __attribute__((vector_size(8 * kDoubles)));

DoublePart splat_double(double a) { return a - DoublePart{}; }

// For x <= 0, to about one unit in the last place; 0 below -708. NaN stays NaN.
DoublePart exp(DoublePart x) {
    const DoublePart low = splat_double(-708.0);
    const DoublePart c = x < low ? low : x;
    // Adding 1.5 * 2^52 rounds to an integer, which is then in the low bits.
    const DoublePart shifted = fma(c, splat_double(0x1.71547652b82fep0), splat_double(0x1.8p52));
    const DoublePart n = shifted - 0x1.8p52;
    const DoublePart rest = fma(n, splat_double(-0x1.62e42feep-1), c);
    const DoublePart r = fma(n, splat_double(-0x1.a39ef35793c76p-33), rest);
    DoublePart p = splat_double(1.0 / 6227020800.0);
    constexpr double kFactorials[] = {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0,
                                      5040.0,      720.0,      120.0,     24.0,     6.0,
                                      2.0,         1.0,        1.0};
    GALLEY_UNROLL for (double factorial : kFactorials) p = fma(p, r, splat_double(1.0 / factorial));
    const DoublePart y = (DoublePart)((LongPart)p + ((LongPart)shifted << 52));
    return x < low ? DoublePart{} : y;
}

typedef float FloatsOfDoubles __attribute__((vector_size(4 * kDoubles)));

DoublePart load_doubles(const float* x) {
    FloatsOfDoubles some;
    memcpy(&some, x, sizeof some);
    return __builtin_convertvector(some, DoublePart);
}

}  // namespace

double sum_exp(const float* x, int64_t n, double most) {
    double sum = 0.0;
    for (int64_t begin = 0; begin < n; begin += kRowBlock) {
        const int64_t end = n - begin < kRowBlock ? n : begin + kRowBlock;
        DoublePart total = {};
        int64_t i = begin;
        for (; i + kDoubles <= end; i += kDoubles) total += exp(load_doubles(x + i) - most);
        if (i < end) {
            float rest[kDoubles];
            for (int j = 0; j < kDoubles; ++j) rest[j] = j < end - i ? x[i + j] : -__builtin_inff();
            total += exp(load_doubles(rest) - most);
        }
        for (int i = 0; i < kDoubles; ++i) sum += total[i];
    }
    return sum;
}

}  // namespace GALLEY_ISA
}  // namespace galley
