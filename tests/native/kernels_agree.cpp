// Runs the kernels of one instruction set (GALLEY_TESTED) and the portable ones over the same
// random inputs and compares: integers and copies to the bit, sums of floats within their rounding.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/isa.hpp"
#include "kernels/kernels.hpp"
#include "runtime/runtime.hpp"
#include "system/memory.hpp"

namespace galley {
const Kernels& kernels_portable();
const Kernels& GALLEY_TESTED();
}  // namespace galley

using namespace galley;

namespace {

const Kernels& kPortable = kernels_portable();
const Kernels& kTested = GALLEY_TESTED();
std::mt19937 engine(1);
int64_t compared = 0;

using FloatRow = std::vector<float>;

FloatRow normal(int64_t count, float scale = 1.0f) {
    std::normal_distribution<float> draw(0.0f, scale);
    FloatRow row(count);
    for (float& x : row) x = draw(engine);
    return row;
}

uint16_t bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<uint16_t>((bits + 0x8000) >> 16);
}

[[noreturn]] void fail(const std::string& what, int64_t at, double got, double expected) {
    std::printf("%s differs at %lld: %.9g is not %.9g\n", what.c_str(), static_cast<long long>(at),
                got, expected);
    std::exit(1);
}

void same(const std::string& what, const void* got, const void* expected, int64_t bytes) {
    const auto *a = static_cast<const uint8_t*>(got), *b = static_cast<const uint8_t*>(expected);
    for (int64_t i = 0; i < bytes; ++i)
        if (a[i] != b[i]) fail(what, i, a[i], b[i]);
    compared += bytes;
}
void same(const std::string& what, const FloatRow& got, const FloatRow& expected) {
    same(what, got.data(), expected.data(), static_cast<int64_t>(4 * got.size()));
}

// `slack`: how far apart two floats may be.
void close(const std::string& what, const FloatRow& got, const FloatRow& expected, double slack) {
    for (std::size_t i = 0; i < got.size(); ++i)
        if (!(std::fabs(static_cast<double>(got[i]) - expected[i]) <= slack))
            fail(what, static_cast<int64_t>(i), got[i], expected[i]);
    compared += static_cast<int64_t>(got.size());
}

// A matrix of random weights; `unit` scales, for sums that floats hold exactly beside such inputs.
struct Weights {
    std::vector<uint8_t> weights, scales, zeros, minima, super_scales, super_minima;
    Matrix matrix{};
    double largest = 3.0;  // about, of a weight

    Weights(Kind kind, int64_t outputs, int64_t depth, int64_t group, FloatType type,
            bool with_zeros, bool unit, bool with_minima = false) {
        matrix = Packed::matrix_of({kind, outputs, depth, group, type, with_zeros, with_minima});
        const int64_t padded = matrix.padded_depth, rows = round_up(outputs, kLanes);
        if (!is_integer(kind)) {
            const FloatRow values = normal(rows * padded);
            weights.resize(values.size() * (kind == Kind::kF32 ? 4 : 2));
            for (std::size_t i = 0; i < values.size(); ++i) {
                // Any float16 from 2^-7 to 2^-1.
                const uint16_t half =
                    kind == Kind::kBF16 ? bf16(values[i]) : 0x2000 + engine() % 0x1800;
                if (kind == Kind::kF32)
                    std::memcpy(&weights[4 * i], &values[i], 4);
                else
                    std::memcpy(&weights[2 * i], &half, 2);
            }
        } else {
            weights.resize(rows * padded / (kind == Kind::kInt8 ? 1 : 2));
            for (uint8_t& w : weights) w = static_cast<uint8_t>(engine());
            const int64_t count = rows * matrix.groups;
            scales = values(type, count, unit);
            if (with_minima) minima = values(type, count, unit);
            super_scales = values(FloatType::kF16, rows * matrix.supers, unit);
            super_minima = values(FloatType::kF16, rows * matrix.supers, unit);
            zeros.resize(with_zeros ? count : 0);
            for (uint8_t& z : zeros) z = engine() % 16;
            largest = (kind == Kind::kInt8 ? 128.0 : 16.0) + (with_minima ? 1.0 : 0.0);
            if (type == FloatType::kNested) largest *= 64.0;
        }
        matrix.weights = weights.data();
        matrix.scales = scales.data();
        matrix.zeros = with_zeros ? zeros.data() : nullptr;
        matrix.minima = with_minima ? minima.data() : nullptr;
        matrix.super_scales = super_scales.data();
        matrix.super_minima = super_minima.data();
    }

    // Positive ones, or all 1; steps of nested ones from -64 to 63.
    static std::vector<uint8_t> values(FloatType type, int64_t count, bool unit) {
        const int64_t size = type == FloatType::kF32 ? 4 : type == FloatType::kNested ? 1 : 2;
        std::vector<uint8_t> made(count * size);
        for (int64_t i = 0; i < count; ++i) {
            const float scale = unit ? 1.0f : 0.01f * static_cast<float>(1 + engine() % 100);
            const uint16_t half = type == FloatType::kBF16 ? bf16(scale)
                                  : unit                   ? 0x3c00
                                                           : 0x2000 + engine() % 0x1800;
            const auto step = static_cast<int8_t>(unit ? 1 : static_cast<int>(engine() % 128) - 64);
            if (size == 4)
                std::memcpy(&made[4 * i], &scale, 4);
            else if (size == 2)
                std::memcpy(&made[2 * i], &half, 2);
            else
                std::memcpy(&made[i], &step, 1);
        }
        return made;
    }
};

void check_linear(Kind kind, Inputs inputs, int64_t rows, int64_t outputs, int64_t depth,
                  int64_t group, FloatType type, bool zeros, bool unit, bool minima = false) {
    const Weights w(kind, outputs, depth, group, type, zeros, unit, minima);
    const Matrix& m = w.matrix;
    const std::string what = "linear " + std::to_string(static_cast<int>(kind)) + " by " +
                             std::to_string(static_cast<int>(inputs)) + ", " +
                             std::to_string(rows) + " x " + std::to_string(outputs) + " x " +
                             std::to_string(depth) + " in groups of " + std::to_string(group);
    int64_t sums = 0, stride = 4 * depth;
    if (inputs != Inputs::kFloats) {
        const InputLayout layout(m, inputs);
        sums = layout.sums();
        stride = layout.row_bytes();
    }
    Memory got(rows * stride), expected(rows * stride), scratch(kLinearScratch);
    float most = 0.0f;
    for (int64_t r = 0; r < rows; ++r) {
        FloatRow x = normal(depth, 0.01f + static_cast<float>(r % 3));
        // Of the second largest of each group, and so of all, an integer stands for 1/64; the
        // largest of some groups has more than eight bits.
        constexpr float kSecond = 127.0f / 64;
        if (unit) {
            for (int64_t k = 0; k < depth; ++k) {
                x[k] = k % 8 ? std::clamp(x[k], -kSecond, kSecond) : kSecond;
                if (k % 128 == 0) x[k] *= -8.0f;
            }
            // It may be alone in its group.
            x[depth - 1] = depth % 64 == 1 ? 0.0f : kSecond;
        }
        for (float v : x) most = std::max(most, std::fabs(v));
        if (inputs == Inputs::kFloats) {
            std::memcpy(got.data() + r * stride, x.data(), stride);
            std::memcpy(expected.data() + r * stride, x.data(), stride);
            continue;
        }
        kTested.quantize_input(m, inputs, x.data(), got.data() + r * stride, sums);
        kPortable.quantize_input(m, inputs, x.data(), expected.data() + r * stride, sums);
    }
    same("input of " + what, got.data(), expected.data(), rows * stride);
    const FloatRow bias = normal(round_up(outputs, kLanes));
    const auto run = [&](const Kernels& k) {
        FloatRow y(rows * outputs, NAN);
        const Linear l = {&m,
                          {expected.data(), stride, sums, inputs},
                          unit ? nullptr : bias.data(),
                          y.data(),
                          outputs,
                          rows};
        k.linear(l, 0, round_up(outputs, kLanes) / kLanes, scratch.data());
        return y;
    };
    if (unit && inputs == Inputs::kInt8) return same(what, run(kTested), run(kPortable));
    close(what, run(kTested), run(kPortable), 3e-7 * (most * w.largest * depth + 1));
}

void check_linears() {
    const Kind kinds[] = {Kind::kF32, Kind::kBF16, Kind::kF16, Kind::kInt8, Kind::kInt4};
    const int64_t shapes[][3] = {{1, 1, 3},    {1, 147, 260}, {2, 20, 69},  {3, 33, 577},
                                 {4, 64, 128}, {5, 16, 300},  {8, 40, 256}, {9, 100, 70},
                                 {17, 50, 33}, {33, 147, 260}};
    for (Kind kind : kinds)
        for (const auto& [rows, outputs, depth] : shapes) {
            const auto check = [&](Inputs inputs, int64_t group, FloatType type, bool zeros,
                                   bool unit) {
                check_linear(kind, inputs, rows, outputs, depth, group, type, zeros, unit);
            };
            check(Inputs::kFloats, 0, FloatType::kF32, false, false);
            if (kind == Kind::kF32 || kind == Kind::kF16) continue;
            check(Inputs::kBF16, 0, FloatType::kBF16, false, false);
            if (kind == Kind::kBF16) continue;
            check(Inputs::kInt8, 0, FloatType::kF32, false, true);
            check(Inputs::kInt8, 0, FloatType::kF32, false, false);
            for (FloatType type : {FloatType::kF16, FloatType::kNested})
                for (Inputs inputs : {Inputs::kFloats, Inputs::kBF16, Inputs::kInt8})
                    check_linear(kind, inputs, rows, outputs, depth, 32, type, false, false, true);
            if (kind == Kind::kInt8) continue;
            check(Inputs::kInt8, 0, FloatType::kF16, true, true);
            for (int64_t group : {16, 32, 48, 192})
                for (Inputs inputs : {Inputs::kFloats, Inputs::kBF16, Inputs::kInt8})
                    check(inputs, group, group % 32 ? FloatType::kF16 : FloatType::kBF16,
                          group % 32 > 0, false);
        }
}

void check_embeddings() {
    for (Kind kind : {Kind::kF32, Kind::kBF16, Kind::kF16, Kind::kInt8, Kind::kInt4}) {
        const Weights w(kind, 37, 70, 32, FloatType::kF16, kind == Kind::kInt4, false);
        for (int64_t row = 0; row < 37; ++row) {
            FloatRow got(70), expected(70);
            kTested.embed(w.matrix, row, got.data());
            kPortable.embed(w.matrix, row, expected.data());
            same("embed", got, expected);
        }
    }
}

template <class Run>
void check_rows(const std::string& what, int64_t width, double slack, const Run& run) {
    FloatRow got(width), expected(width);
    run(kTested, got.data());
    run(kPortable, expected.data());
    close(what + " of " + std::to_string(width), got, expected, slack);
}

void check_row_ops() {
    for (int64_t width : {2, 16, 30, 64, 130, 700}) {
        const FloatRow x = normal(width, 3.0f), a = normal(width), b = normal(width);
        check_rows("rms_norm", width, 1e-5, [&](const Kernels& k, float* y) {
            k.rms_norm(x.data(), a.data(), 1e-5f, width, width, y);
        });
        check_rows("layer_norm", width, 1e-5, [&](const Kernels& k, float* y) {
            k.layer_norm(x.data(), a.data(), b.data(), 1e-5f, width, width, y);
        });
        check_rows("layer_norm of halves", width, 1e-5, [&](const Kernels& k, float* y) {
            k.layer_norm(x.data(), a.data(), nullptr, 1e-5f, width, width / 2, y);
        });
        check_rows("rope", width, 0.0, [&](const Kernels& k, float* y) {
            k.rope(x.data(), a.data(), b.data(), width / 3, width, width, y);
        });
        check_rows("rope_adjacent", width, 0.0, [&](const Kernels& k, float* y) {
            k.rope_adjacent(x.data(), a.data(), b.data(), width / 3, width, width, y);
        });
        for (const Elementwise* op = kPortable.elementwise; op->name; ++op) {
            const std::string name = op->name;
            const double slack = name == "add" || name == "scale" ? 0.0
                                 : name == "gelu"                 ? 2e-6
                                                                  : 2e-5;
            check_rows(name, width, slack, [&](const Kernels& k, float* y) {
                k.elementwise_named(op->name)->run(x.data(), a.data(), 1.5f, width, y);
            });
        }
    }
}

// One sequence's keys and values in blocks, those of the last alone token by token.
struct Context {
    Cache cache;
    Memory memory;
    std::vector<int64_t> table;

    Context(const Kernels& k, const Cache& layout, const FloatRow& keys, const FloatRow& values)
        : cache(layout) {
        const int64_t kv_heads = cache.kv_heads;
        const int64_t width = kv_heads * cache.key_dim, value_width = kv_heads * cache.value_dim;
        const int64_t tokens = static_cast<int64_t>(keys.size()) / width;
        const int64_t blocks = round_up(tokens, kBlockTokens) / kBlockTokens;
        memory = Memory((blocks + 1) * kv_heads * cache.head_bytes);
        cache.data = memory.data();
        for (int64_t b = 0; b < blocks; ++b) table.push_back(blocks - 1 - b);
        for (int64_t t = 0; t < tokens;) {
            const float *key = &keys[t * width], *value = &values[t * value_width];
            const int64_t block = table[t / kBlockTokens];
            if (t % kBlockTokens == 0 && t + kBlockTokens <= tokens) {
                k.write_kv_block(cache, key, width, value, value_width, block);
                t += kBlockTokens;
            } else {
                k.write_kv(cache, key, value, block, t % kBlockTokens);
                ++t;
            }
        }
    }
};

void check_attention(KvType type, int64_t group, int64_t key_dim, int64_t value_dim, Reach reach,
                     bool shared) {
    const int64_t tokens = 1050, rows = 5, kv_heads = 2;
    const FloatRow keys = normal(tokens * kv_heads * key_dim);
    const FloatRow values = normal(tokens * kv_heads * value_dim);
    const Cache layout = cache_of(kv_heads, key_dim, value_dim, type, shared);
    const Context tested(kTested, layout, keys, values);
    const Context portable(kPortable, layout, keys, values);
    const std::string what = "attention over " + std::to_string(static_cast<int>(type)) + ", " +
                             std::to_string(group) + " x " + std::to_string(key_dim);
    same("cache of " + what, tested.memory.data(), portable.memory.data(),
         static_cast<int64_t>(tested.memory.size()));
    const int64_t width = group * key_dim, out_width = group * value_dim;
    const FloatRow q = normal(rows * width, 2.0f);
    Memory scratch(attend_scratch(rows * group, portable.cache));
    const float scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
    const float cap = reach.window ? 3.0f : 0.0f;
    // kPairs rounds weights to bfloat16, which falls to either side.
    const double slack = type == KvType::kPairs ? 0.02 : 1e-4;
    for (int64_t first : {int64_t{0}, tokens / 2, tokens - rows}) {
        const auto attend = [&](const Context& c, float* out) {
            return Attend{c.cache, 1,       q.data(),      out,   width, out_width, c.table.data(),
                          0,       first,   rows,          group, reach, 0,         scale,
                          cap,     nullptr, scratch.data()};
        };
        FloatRow got(rows * out_width), expected(rows * out_width), merged(rows * out_width);
        kTested.attend(attend(portable, got.data()));
        kPortable.attend(attend(portable, expected.data()));
        close(what, got, expected, slack);
        const int64_t begin = first_chunk(reach, first), end = last_chunk(first + rows - 1) + 1;
        const int64_t floats = partial_floats(rows * group, portable.cache.padded_value_dim);
        Memory partials((end - begin) * floats * 4);
        auto* partial = reinterpret_cast<float*>(partials.data());
        for (int64_t chunk = begin; chunk < end; ++chunk)
            kTested.attend_chunk(attend(portable, nullptr), chunk,
                                 partial + (chunk - begin) * floats);
        kTested.merge_chunks(attend(portable, merged.data()), partial, end - begin);
        same(what + " by chunks", merged, got);
    }
    const auto weights = [&](const Kernels& k) {
        FloatRow out(rows * tokens);
        k.attention_weights({portable.cache, 0, q.data(), out.data(), width, tokens,
                             portable.table.data(), tokens, 0, rows, 1, Reach(), 0, scale, 0.0f,
                             nullptr, scratch.data()});
        return out;
    };
    close(what + ", weights", weights(kTested), weights(kPortable), 1e-5);
}

void check_sampling() {
    const int64_t count = 5003;
    FloatRow x = normal(count, 4.0f);
    const float most = *std::max_element(x.begin(), x.end());
    std::vector<int32_t> got(count), expected(count);
    if (kTested.softmax_weights(x.data(), count, most, 1.3f, got.data()) !=
        kPortable.softmax_weights(x.data(), count, most, 1.3f, expected.data()))
        fail("sum of softmax_weights", 0, 0, 0);
    same("softmax_weights", got.data(), expected.data(), 4 * count);
    const double sum = kTested.sum_exp(x.data(), count, most);
    const double other = kPortable.sum_exp(x.data(), count, most);
    if (!(std::fabs(sum - other) <= 1e-14 * other)) fail("sum_exp", 0, sum, other);
    x[7] = NAN;
    std::vector<int64_t> ids(count), ids_expected(count);
    const int64_t found = kTested.find_above(x.data(), count, 1.5f, ids.data());
    if (found != kPortable.find_above(x.data(), count, 1.5f, ids_expected.data()))
        fail("number of find_above", 0, static_cast<double>(found), 0);
    same("find_above", ids.data(), ids_expected.data(), 8 * found);
}

void check_peak() {
    Memory memory(4096);
    kTested.read(memory.data(), 4096);
    const int64_t done[] = {kTested.multiply_int8(10), kTested.multiply_bf16(10),
                            kTested.multiply_f32(10)};
    for (int64_t operations : done)
        if (operations <= 0) fail("operations", 0, static_cast<double>(operations), 1);
}

}  // namespace

int main() {
    check_linears();
    check_embeddings();
    check_row_ops();
    for (KvType type :
         {KvType::kF32, KvType::kBF16, KvType::kInt8, KvType::kInt4, KvType::kPairs}) {
        check_attention(type, 1, 64, 64, {}, false);
        check_attention(type, 7, 34, 34, {}, false);
        check_attention(type, 2, 48, 16, {600, false}, false);
        check_attention(type, 2, 48, 16, {526, true}, false);
        if (type != KvType::kPairs) check_attention(type, 7, 44, 33, {}, true);
    }
    check_sampling();
    check_peak();
    std::printf("%s agrees: %lld values; this CPU runs", kTested.name,
                static_cast<long long>(compared));
    for (const std::string& set : supported_isas()) std::printf(" %s", set.c_str());
    std::printf("\n");
}
