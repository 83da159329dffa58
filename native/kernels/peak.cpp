// Loops that only multiply or only read: the most that the other kernels could reach here.
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
template <int kCount, class Sum, class Operand, class Step>
GALLEY_INLINE void multiply(int64_t steps, Operand operand, Sum start, const Step& step) {
    Sum sums[kCount];
    GALLEY_UNROLL for (int i = 0; i < kCount; ++i) sums[i] = start;
    for (int64_t s = 0; s < steps; ++s) {
        asm volatile("" : "+m"(operand));
        GALLEY_UNROLL for (int i = 0; i < kCount; ++i) sums[i] = step(sums[i], operand, i);
    }
    GALLEY_UNROLL for (int i = 0; i < kCount; ++i) keep(sums[i]);
}

struct alignas(64) IntegerOperand {
    uint8_t w[2][4 * kLanes];
    uint8_t x[8][4 * kRows];
};
struct alignas(64) PairOperand {
    uint16_t w[2][2 * kLanes];
    uint16_t x[2 * kRows];
};
struct alignas(64) FloatOperand {
    float w[2][kLanes];
    float x[kRows];
};

}  // namespace

// Of weights below 16 with bytes, the fastest of integers. Each sum has pairs of its own: equal
// ones would be computed once.
int64_t multiply_int8(int64_t steps) {
    if constexpr (kNibbleDots > 0) {
        constexpr int kCount = kParts == 1 ? 8 : 4;  // leaves room for the weights and short sums
        multiply<kCount>(
            steps, IntegerOperand{}, splat_int(0), [](Ints sum, const IntegerOperand& o, int i) {
                NibbleSums sums = {};
                GALLEY_UNROLL for (int j = 0; j < kNibbleDots; ++j)
                    dot_nibbles(sums, load_bytes(o.w[(i + j) % 2]), load_four(o.x[j] + i / 2 * 4));
                return add_sums(sum, sums);
            });
        return steps * kCount * kNibbleDots * kLanes * 4 * 2;
    } else {
        multiply<kSums>(steps, IntegerOperand{}, NibbleSums{},
                        [](NibbleSums sum, const IntegerOperand& o, int i) {
                            dot_nibbles(sum, load_bytes(o.w[i % 2]), load_four(o.x[0] + i / 2 * 4));
                            dot_nibbles(sum, load_bytes(o.w[1 - i % 2]),
                                        load_four(o.x[1] + i / 2 * 4));
                            return sum;
                        });
        return steps * kSums * kLanes * 4 * 2 * 2;
    }
}

int64_t multiply_bf16(int64_t steps) {
    multiply<kSums>(steps, PairOperand{}, splat(0.0f), [](Floats sum, const PairOperand& o, int i) {
        return dot_pairs(sum, splat_pair(o.x + i / 2 * 2), load_pairs(o.w[i % 2]));
    });
    return steps * kSums * kLanes * 2 * 2;
}

int64_t multiply_f32(int64_t steps) {
    multiply<kSums>(steps, FloatOperand{}, splat(0.0f),
                    [](Floats sum, const FloatOperand& o, int i) {
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
