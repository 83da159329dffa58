// Linear layers with int8 and int4 weights and int8 activations on AVX2, where no instruction adds
// four products of bytes at once. For many rows of int8 weights, half of the multiplications become
// additions:
//
//   x0 w0 + x1 w1 = (x0 + w1) (x1 + w0) - x0 x1 - w0 w1
//
// The last two products depend on a row or on an output alone (S. Winograd, A New Algorithm for
// Inner Product, IEEE Transactions on Computers C-17, 1968). Integer sums are exact, and a sum that
// overflows 32 bits on the way is in range again at the end, so the bits are those of the tiles in
// linear_int8.hpp, which take all other layers.
#include "linear_int8.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// Fewer rows do not pay for the sums of products of weights.
constexpr int64_t kFewestRows = 32;
constexpr int kRowsAtOnce = 4;
constexpr int64_t kStep = 4;     // inputs to a lane of weights
constexpr int64_t kVector = 32;  // bytes

// Each lane's four bytes as 16 bits: the first and third are even, the second and fourth odd.
struct Halves {
    __m256i even, odd;
};
GALLEY_INLINE Halves unsigned_halves(const uint8_t* from) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm256_and_si256(v, _mm256_set1_epi16(0xff)), _mm256_srli_epi16(v, 8)};
}
GALLEY_INLINE Halves signed_halves(const uint8_t* from) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
}

// Halves of rows and sums of products that are computed once, in the scratch memory of a layer.
struct Prepared {
    const Linear& l;
    const Matrix& m;
    int32_t* rows;     // [kRowsAtOnce][padded_depth / 4][2]: two even inputs, two odd ones
    int32_t* of_rows;  // [kRowsAtOnce][groups] what each sum of a row has too much
    Ints* of_outputs;  // [blocks][groups] what the sums of 16 outputs have too much

    Prepared(const Linear& linear, uint8_t* scratch)
        : l(linear),
          m(*linear.matrix),
          rows(reinterpret_cast<int32_t*>(scratch)),
          of_rows(rows + kRowsAtOnce * m.padded_depth / 2),
          of_outputs(reinterpret_cast<Ints*>(of_rows + up(kRowsAtOnce * m.groups, kLanes))) {}

    static int64_t bytes(const Matrix& m) {
        return 2 * kRowsAtOnce * m.padded_depth + 4 * up(kRowsAtOnce * m.groups, kLanes) +
               kMostBlocks * m.groups * static_cast<int64_t>(sizeof(Ints));
    }

    int64_t end_of(int64_t group) const {
        return group + 1 < m.groups ? (group + 1) * m.group : m.padded_depth;
    }

    const uint8_t* weights(int64_t block) const {
        return m.weights + block * m.padded_depth * kLanes;
    }

    // Fills of_outputs for a block, which is number `at` of the item.
    void take_outputs(int64_t block, int64_t at) const {
        const uint8_t* w = weights(block);
        for (int64_t g = 0; g < m.groups; ++g) {
            Ints sum = splat_int(0);
            for (int64_t k = g * m.group; k < end_of(g); k += kStep) GALLEY_PARTS {
                    const Halves v = unsigned_halves(w + k * kLanes + i * kVector);
                    sum.p[i] += (IntPart)_mm256_madd_epi16(v.even, v.odd);
                }
            of_outputs[at * m.groups + g] = sum;
        }
    }

    // Fills rows and of_rows for a row, which is number `at` of kRowsAtOnce. Weights are stored
    // with an offset of 128, which the sum of the row's inputs takes out again.
    void take_row(int64_t row, int64_t at) const {
        const uint8_t* x = l.x.data + row * l.x.stride;
        int32_t* to = rows + at * m.padded_depth / 2;
        for (int64_t g = 0; g < m.groups; ++g) {
            __m256i products = _mm256_setzero_si256();
            for (int64_t k = g * m.group; k < end_of(g); k += kVector) {
                const Halves v = signed_halves(x + k);
                products = _mm256_add_epi32(products, _mm256_madd_epi16(v.even, v.odd));
                const __m256i low = _mm256_unpacklo_epi32(v.even, v.odd),
                              high = _mm256_unpackhi_epi32(v.even, v.odd);
                auto* out = reinterpret_cast<__m256i*>(to + k / 2);
                _mm256_storeu_si256(out, _mm256_permute2x128_si256(low, high, 0x20));
                _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(low, high, 0x31));
            }
            const IntPart lanes = (IntPart)products;
            int32_t sum = 0;
            for (int i = 0; i < kWidth; ++i) sum += lanes[i];
            of_rows[at * m.groups + g] = sum + 128 * load_four(x + l.x.sums + 4 * g);
        }
    }
};

// R rows by 16 outputs.
template <int R>
void multiply(const Prepared& p, int64_t row, int64_t block, int64_t at) {
    const Matrix& m = p.m;
    const int32_t* x[R];
    Floats sums[R];
    GALLEY_UNROLL for (int r = 0; r < R; ++r) {
        x[r] = p.rows + r * m.padded_depth / 2;
        sums[r] = splat(0.0f);
    }
    const uint8_t* w = p.weights(block);
    for (int64_t g = 0; g < m.groups; ++g) {
        Ints dots[R];
        GALLEY_UNROLL for (int r = 0; r < R; ++r) dots[r] =
            splat_int(-p.of_rows[r * m.groups + g]) - p.of_outputs[at * m.groups + g];
        // Out of the registers during the loop below, which `dots` and the products fill.
        asm("" : "+m"(sums));
        const uint8_t* from = w + g * m.group * kLanes;
        const int64_t end = p.end_of(g) / 2;
        for (int64_t at_x = g * m.group / 2; at_x < end; at_x += 2, from += kStep * kLanes) {
            Halves v[kParts];
            GALLEY_PARTS v[i] = unsigned_halves(from + i * kVector);
            GALLEY_UNROLL for (int r = 0; r < R; ++r) {
                const __m256i even = _mm256_set1_epi32(x[r][at_x]),
                              odd = _mm256_set1_epi32(x[r][at_x + 1]);
                GALLEY_PARTS dots[r].p[i] += (IntPart)_mm256_madd_epi16(
                    _mm256_add_epi16(even, v[i].odd), _mm256_add_epi16(odd, v[i].even));
            }
        }
        const Floats scales = load_scales(m, (block * m.groups + g) * kLanes);
        GALLEY_UNROLL for (int r = 0; r < R; ++r) sums[r] =
            fma(to_floats(dots[r]), scales, sums[r]);
    }
    GALLEY_UNROLL for (int r = 0; r < R; ++r) {
        float scale;
        memcpy(&scale, p.l.x.data + (row + r) * p.l.x.stride + p.l.x.sums + 4 * m.groups,
               sizeof scale);
        finish(p.l, row + r, block, sums[r] * splat(scale));
    }
}

template <int R = kRowsAtOnce>
void multiply_rows(const Prepared& p, int64_t count, int64_t row, int64_t begin, int64_t end) {
    if (count < R) {
        if constexpr (R > 1) multiply_rows<R - 1>(p, count, row, begin, end);
        return;
    }
    for (int64_t block = begin; block < end; ++block) multiply<R>(p, row, block, block - begin);
}

bool fit_for_pairs(const Linear& l) {
    const Matrix& m = *l.matrix;
    return m.kind == Kind::kInt8 && l.x.type == Inputs::kInt8 && l.rows >= kFewestRows &&
           m.group % kVector == 0 && m.padded_depth % kVector == 0 && !m.zeros &&
           Prepared::bytes(m) <= kLinearScratch;
}

void multiply_pairs(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) {
    const Prepared prepared(l, scratch);
    for (int64_t item = begin; item < end; item += kMostBlocks) {
        const int64_t stop = least(item + kMostBlocks, end);
        for (int64_t block = item; block < stop; ++block)
            prepared.take_outputs(block, block - item);
        for (int64_t row = 0; row < l.rows; row += kRowsAtOnce) {
            const int64_t count = least(kRowsAtOnce, l.rows - row);
            for (int64_t r = 0; r < count; ++r) prepared.take_row(row + r, r);
            multiply_rows(prepared, count, row, item, stop);
        }
    }
}

}  // namespace

void linear_int8(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) {
    if (fit_for_pairs(l)) return multiply_pairs(l, begin, end, scratch);
    multiply_tiles(l, begin, end);
}

}  // namespace GALLEY_ISA
}  // namespace galley
