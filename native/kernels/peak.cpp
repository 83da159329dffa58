// Loops that only multiply or only read: the most that the other kernels could reach here.
#include "dots.hpp"
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// Enough sums in flight to hide the latency of an addition, few enough for the registers.
constexpr int kSums = 12 / kParts;
// Each meets two registers of weights, so that loads do not bound the loop.
constexpr int kRows = (kSums + 1) / 2;

// Makes a result needed. Takes it by value: a sum whose address is known lies in memory, in the
// loop too.
template <class Sum>
GALLEY_INLINE void keep(Sum sum) {
    asm volatile("" : : "m"(sum));
}

// The operands come from the first cache, anew in every step, so no product can be moved out of the
// loop. Step: Sum (Sum, const Operand&, int i), the i-th of the products in flight.
template <class Sum, class Operand, class Step>
GALLEY_INLINE void multiply(int64_t steps, Operand operand, Sum start, const Step& step) {
    Sum sums[kSums];
    GALLEY_UNROLL for (int i = 0; i < kSums; ++i) sums[i] = start;
    for (int64_t s = 0; s < steps; ++s) {
        asm volatile("" : "+m"(operand));
        GALLEY_UNROLL for (int i = 0; i < kSums; ++i) sums[i] = step(sums[i], operand, i);
    }
    GALLEY_UNROLL for (int i = 0; i < kSums; ++i) keep(sums[i]);
}

struct IntegerOperand {
    uint8_t w[2][4 * kLanes];
    uint8_t x[4 * kRows];
};
struct PairOperand {
    uint16_t w[2][2 * kLanes];
    uint16_t x[2 * kRows];
};
struct FloatOperand {
    float w[2][kLanes];
    float x[kRows];
};

}  // namespace

int64_t multiply_int8(int64_t steps) {
    multiply(steps, IntegerOperand{}, splat_int(0), [](Ints sum, const IntegerOperand& o, int i) {
        const int32_t four = load_four(o.x + i / 2 * 4);
        // In another order every second time: equal sums would be computed once.
        dot_nibbles(sum, sum, load_bytes(o.w[i % 2]), four, load_bytes(o.w[1 - i % 2]), four);
        return sum;
    });
    return steps * kSums * kLanes * 4 * 2 * 2;
}

int64_t multiply_bf16(int64_t steps) {
    multiply(steps, PairOperand{}, splat(0.0f), [](Floats sum, const PairOperand& o, int i) {
        return dot_pairs(sum, splat_pair(o.x + i / 2 * 2), load_pairs(o.w[i % 2]));
    });
    return steps * kSums * kLanes * 2 * 2;
}

int64_t multiply_f32(int64_t steps) {
    multiply(steps, FloatOperand{}, splat(0.0f), [](Floats sum, const FloatOperand& o, int i) {
        return fma(splat(o.x[i / 2]), load(o.w[i % 2]), sum);
    });
    return steps * kSums * kLanes * 2;
}

void read(const uint8_t* data, int64_t bytes) {
    constexpr int kStreams = 4;
    Bytes sums[kStreams] = {};
    for (int64_t at = 0; at < bytes; at += 64 * kStreams)
        GALLEY_UNROLL for (int i = 0; i < kStreams; ++i) {
            const Bytes v = load_bytes(data + at + 64 * i);
            GALLEY_UNROLL for (int part = 0; part < kParts; ++part) sums[i].p[part] ^= v.p[part];
        }
    GALLEY_UNROLL for (int i = 0; i < kStreams; ++i) keep(sums[i]);
}

}  // namespace GALLEY_ISA
}  // namespace galley
