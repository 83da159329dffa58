// Keys and values on their way into the cache, of one token or of a whole block.
#include "kv_int4.hpp"
#include "rounding.hpp"
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

// One head of a token: element d goes to out[d * stride].
void write_head(const float* x, int64_t count, float* out, int64_t stride, const Rounding&) {
    for (int64_t d = 0; d < count; ++d) out[d * stride] = x[d];
}

void write_head(const float* x, int64_t count, uint16_t* out, int64_t stride, const Rounding&) {
    for (int64_t d = 0; d < count; d += kLanes) {
        uint16_t halves[kLanes];
        store_bf16(halves, load_some(x + d, count - d));
        const int64_t end = count - d < kLanes ? count - d : kLanes;
        for (int64_t i = 0; i < end; ++i) out[(d + i) * stride] = halves[i];
    }
}

void write_head(const float* x, int64_t count, int8_t* out, int64_t stride,
                const Rounding& rounding) {
    for (int64_t d = 0; d < count; d += kLanes) {
        int8_t q[kLanes];
        store_bytes(q, round(rounding, load_some(x + d, count - d)));
        const int64_t end = count - d < kLanes ? count - d : kLanes;
        for (int64_t i = 0; i < end; ++i) out[(d + i) * stride] = q[i];
    }
}

void write_value(const float* x, int64_t count, float* out, const Rounding&) {
    for (int64_t d = 0; d < count; d += kLanes)
        store_some(out + d, load_some(x + d, count - d), count - d);
}
void write_value(const float* x, int64_t count, uint16_t* out, const Rounding&) {
    for (int64_t d = 0; d < count; d += kLanes)
        store_some_bf16(out + d, load_some(x + d, count - d), count - d);
}
void write_value(const float* x, int64_t count, int8_t* out, const Rounding& rounding) {
    write_head(x, count, out, 1, rounding);
}

// Calls f(which, begin, end) for each stretch of a key's columns that has scales of its own.
template <class F>
void each_stretch(const Cache& c, const F& f) {
    f(0, 0, c.cut);
    if (c.cut < c.key_dim) f(1, c.cut, c.key_dim);
}

// Rounds `count` columns of a token, and writes the scale to `scale`.
template <class T>
Rounding rounding_to(const float* x, int64_t count, float* scale) {
    if constexpr (sizeof(T) > 1) return {};
    const Rounding rounding = rounding_of(x, count);
    *scale = rounding.scale;
    return rounding;
}

template <class T>
void write(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    for (int64_t h = 0; h < c.kv_heads; ++h, k += c.key_dim, v += c.value_dim) {
        uint8_t* to = piece(c, block, h);
        each_stretch(c, [&](int which, int64_t begin, int64_t end) {
            const Rounding keys =
                rounding_to<T>(k + begin, end - begin, scales(c, to, which) + slot);
            write_head(k + begin, end - begin,
                       reinterpret_cast<T*>(to) + begin * kBlockTokens + slot, kBlockTokens, keys);
        });
        if (c.shared) continue;
        T* out = reinterpret_cast<T*>(to + c.values) + slot * c.padded_value_dim;
        write_value(v, c.value_dim, out, rounding_to<T>(v, c.value_dim, scales(c, to, 1) + slot));
    }
}

// Of a token with an even number the neighbor's values are left as they are.
template <>
void write<PairBF16>(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    for (int64_t h = 0; h < c.kv_heads; ++h, k += c.key_dim, v += c.value_dim) {
        uint8_t* to = piece(c, block, h);
        uint16_t* out = reinterpret_cast<uint16_t*>(to + c.values) +
                        slot / 2 * 2 * c.padded_value_dim + slot % 2;
        Operands<PairBF16>::pack(k, c.key_dim, reinterpret_cast<float*>(to) + slot, kBlockTokens);
        write_head(v, c.value_dim, out, 2, {});
    }
}

// The range of `count` columns of a token, which is written to the cache.
Range range_to(const Cache& c, const float* x, const float* factors, int64_t count, int which,
               uint8_t* to, int64_t slot) {
    const Range range = range_of(x, factors, count);
    ranges(c, to, 2 * which)[slot] = to_bf16(range.scale);
    ranges(c, to, 2 * which + 1)[slot] = to_bf16(range.low);
    return range;
}

// Columns `begin`, which is even, to `end` of a head's key.
void write_int4_key(const Cache& c, const float* k, const float* factors, uint8_t* to, int64_t slot,
                    int which, int64_t begin, int64_t end) {
    k += begin;
    factors = factors ? factors + begin : nullptr;
    const int64_t count = end - begin;
    const Range range = range_to(c, k, factors, count, which, to, slot);
    int8_t q[kLanes];
    for (int64_t d = 0; d < count; d += kLanes) {
        store_bytes(q, round(range, load_over(k, factors, d, count, range.low)));
        const int64_t left = least(kLanes, count - d);
        if (left % 2) q[left] = 0;
        for (int64_t i = 0; i < left; i += 2)
            to[(begin + d + i) / 2 * kBlockTokens + slot] =
                static_cast<uint8_t>(q[i] | q[i + 1] << 4);
    }
}

// A head's key and value of one token.
void write_int4(const Cache& c, const float* k, const float* v, const float* factors, uint8_t* to,
                int64_t slot) {
    each_stretch(c, [&](int which, int64_t begin, int64_t end) {
        write_int4_key(c, k, factors, to, slot, which, begin, end);
    });
    if (c.shared) return;
    const Range values = range_to(c, v, nullptr, c.value_dim, 1, to, slot);
    int8_t q[kLanes];
    uint8_t* out = to + c.values + slot * c.padded_value_dim / 2;
    for (int64_t d = 0; d < c.value_dim; d += kLanes, out += kLanes / 2) {
        store_bytes(q, round(values, load_some(v + d, c.value_dim - d, values.low)));
        for (int64_t i = 0; i < kLanes / 2; ++i)
            out[i] = static_cast<uint8_t>(q[i] | q[i + kLanes / 2] << 4);
    }
}

const float* factors_of(const Cache& c, int64_t kv_head) {
    return c.factors ? c.factors + kv_head * c.key_dim : nullptr;
}

template <>
void write<PairInt4>(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    for (int64_t h = 0; h < c.kv_heads; ++h, k += c.key_dim, v += c.value_dim)
        write_int4(c, k, v, factors_of(c, h), piece(c, block, h), slot);
}

// How elements T pass a transposition: `take` fills 16 lanes with kTaken elements each, `put`
// writes one such lane of 16 tokens.
template <class T>
struct Passage {
    static constexpr int64_t kTaken = 1;
    static Floats take(const float* x, int64_t count, const Rounding&) {
        return load_some(x, count);
    }
    static void put(float* to, Floats v) { store(to, v); }
    static void put(uint16_t* to, Floats v) { store_bf16(to, v); }
};
template <>
struct Passage<int8_t> {
    static constexpr int64_t kTaken = 1;
    static Floats take(const float* x, int64_t count, const Rounding& rounding) {
        const Ints q = round(rounding, load_some(x, count));
        Floats r;
        GALLEY_PARTS r.p[i] = (FloatPart)q.p[i];
        return r;
    }
    static void put(int8_t* to, Floats v) {
        Ints q;
        GALLEY_PARTS q.p[i] = (IntPart)v.p[i];
        store_bytes(to, q);
    }
};
template <>
struct Passage<PairBF16> {
    static constexpr int64_t kTaken = 2;
    static Floats take(const float* x, int64_t count, const Rounding&) {
        uint16_t halves[2 * kLanes];
        store_bf16(halves, load_some(x, count));
        store_bf16(halves + kLanes, load_some(x + kLanes, count - kLanes));
        return load_parts<Floats>(halves);
    }
    static void put(PairBF16* to, Floats v) { store(reinterpret_cast<float*>(to), v); }
};

struct Rows {  // of one head, of a block's 16 tokens
    const float* first;
    int64_t stride, count;
    const float* operator[](int64_t token) const { return first + token * stride; }
};

template <class T>
void write_keys(const Rows& k, T* out, const Rounding* roundings) {
    using Its = Passage<T>;
    for (int64_t d = 0; d < k.count; d += Its::kTaken * kLanes) {
        Floats tile[kLanes];
        GALLEY_UNROLL for (int t = 0; t < kLanes; ++t) tile[t] =
            Its::take(k[t] + d, k.count - d, roundings[t]);
        transpose(tile);
        const int64_t left = (k.count - d + Its::kTaken - 1) / Its::kTaken;
        for (int64_t i = 0; i < (left < kLanes ? left : kLanes); ++i)
            Its::put(out + (d / Its::kTaken + i) * kBlockTokens, tile[i]);
    }
}

template <class T>
void write_block(const Cache& c, const Rows& k, const Rows& v, int64_t, uint8_t* to) {
    each_stretch(c, [&](int which, int64_t begin, int64_t end) {
        const Rows some = {k.first + begin, k.stride, end - begin};
        Rounding roundings[kBlockTokens];
        for (int64_t t = 0; t < kBlockTokens; ++t)
            roundings[t] = rounding_to<T>(some[t], some.count, scales(c, to, which) + t);
        write_keys(some, reinterpret_cast<T*>(to) + begin * kBlockTokens, roundings);
    });
    if (c.shared) return;
    T* out = reinterpret_cast<T*>(to + c.values);
    for (int64_t t = 0; t < kBlockTokens; ++t)
        write_value(v[t], v.count, out + t * c.padded_value_dim,
                    rounding_to<T>(v[t], v.count, scales(c, to, 1) + t));
}

template <>
void write_block<PairInt4>(const Cache& c, const Rows& k, const Rows& v, int64_t kv_head,
                           uint8_t* to) {
    for (int64_t t = 0; t < kBlockTokens; ++t)
        write_int4(c, k[t], v[t], factors_of(c, kv_head), to, t);
}

template <>
void write_block<PairBF16>(const Cache& c, const Rows& k, const Rows& v, int64_t, uint8_t* to) {
    const Rounding none[kBlockTokens] = {};
    write_keys(k, reinterpret_cast<PairBF16*>(to), none);
    PairBF16* out = reinterpret_cast<PairBF16*>(to + c.values);
    for (int64_t t = 0; t < kBlockTokens; t += 2, out += c.padded_value_dim)
        for (int64_t d = 0; d < v.count; d += kLanes) {
            uint16_t first[kLanes], second[kLanes];
            store_bf16(first, load_some(v[t] + d, v.count - d));
            store_bf16(second, load_some(v[t + 1] + d, v.count - d));
            const int64_t end = v.count - d < kLanes ? v.count - d : kLanes;
            for (int64_t i = 0; i < end; ++i) out[d + i] = {first[i], second[i]};
        }
}

}  // namespace

void write_kv(const Cache& c, const float* k, const float* v, int64_t block, int64_t slot) {
    with_element(c.type, [&](auto e) { write<decltype(e)>(c, k, v, block, slot); });
}

void write_kv_block(const Cache& c, const float* k, int64_t k_stride, const float* v,
                    int64_t v_stride, int64_t block) {
    for (int64_t h = 0; h < c.kv_heads; ++h) {
        const Rows keys = {k + h * c.key_dim, k_stride, c.key_dim};
        const Rows values = {v + h * c.value_dim, v_stride, c.value_dim};
        with_element(c.type, [&](auto e) {
            write_block<decltype(e)>(c, keys, values, h, piece(c, block, h));
        });
    }
}

}  // namespace GALLEY_ISA
}  // namespace galley
