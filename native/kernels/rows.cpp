// Ops that see one row at a time.
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {

void rms_norm(const float* x, const float* weight, float eps, int64_t width, int64_t group,
              float* y) {
    for (int64_t at = 0; at < width; at += group) {
        Floats squares = splat(0.0f);
        for (int64_t i = 0; i < group; i += kLanes) {
            const Floats v = load_some(x + at + i, group - i);
            squares = fma(v, v, squares);
        }
        const float mean = sum(squares) / static_cast<float>(group);
        const Floats scale = splat(1.0f / __builtin_sqrtf(mean + eps));
        for (int64_t i = 0; i < group; i += kLanes) {
            const int64_t left = group - i;
            const Floats v = load_some(x + at + i, left) * scale * load_some(weight + i, left);
            store_some(y + at + i, v, left);
        }
    }
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int64_t width,
                int64_t group, float* y) {
    for (int64_t at = 0; at < width; at += group) {
        Floats total = splat(0.0f), squares = splat(0.0f);
        for (int64_t i = 0; i < group; i += kLanes)
            total = total + load_some(x + at + i, group - i);
        const Floats mean = splat(sum(total) / static_cast<float>(group));
        for (int64_t i = 0; i < group; i += kLanes) {
            store_some(y + at + i, load_some(x + at + i, group - i) - mean, group - i);
            const Floats v = load_some(y + at + i, group - i);
            squares = fma(v, v, squares);
        }
        const float variance = sum(squares) / static_cast<float>(group);
        const Floats scale = splat(1.0f / __builtin_sqrtf(variance + eps));
        for (int64_t i = at; i < at + group; i += kLanes) {
            const int64_t left = at + group - i;
            const Floats v = load_some(y + i, left) * scale, w = load_some(weight + i, left);
            store_some(y + i, bias ? fma(v, w, load_some(bias + i, left)) : v * w, left);
        }
    }
}

void rope(const float* x, const float* cos, const float* sin, int64_t pairs, int64_t width,
          int64_t head_dim, float* y) {
    for (int64_t head = 0; head < width; head += head_dim) {
        for (int64_t i = 0; i < pairs; i += kLanes) {
            const int64_t left = pairs - i;
            const Floats a = load_some(x + head + i, left);
            const Floats b = load_some(x + head + pairs + i, left);
            const Floats c = load_some(cos + i, left), s = load_some(sin + i, left);
            store_some(y + head + i, a * c - b * s, left);
            store_some(y + head + pairs + i, b * c + a * s, left);
        }
        for (int64_t i = 2 * pairs; i < head_dim; i += kLanes)
            store_some(y + head + i, load_some(x + head + i, head_dim - i), head_dim - i);
    }
}

void rope_adjacent(const float* x, const float* cos, const float* sin, int64_t pairs, int64_t width,
                   int64_t head_dim, float* y) {
    for (int64_t head = 0; head < width; head += head_dim) {
        for (int64_t i = 0; i < pairs; i += kLanes) {
            const int64_t left = pairs - i, count = least(left, kLanes);
            float first[kLanes] = {}, second[kLanes] = {};
            for (int64_t j = 0; j < count; ++j) {
                first[j] = x[head + 2 * (i + j)];
                second[j] = x[head + 2 * (i + j) + 1];
            }
            const Floats a = load(first), b = load(second);
            const Floats c = load_some(cos + i, left), s = load_some(sin + i, left);
            store(first, a * c - b * s);
            store(second, b * c + a * s);
            for (int64_t j = 0; j < count; ++j) {
                y[head + 2 * (i + j)] = first[j];
                y[head + 2 * (i + j) + 1] = second[j];
            }
        }
        for (int64_t i = 2 * pairs; i < head_dim; i += kLanes)
            store_some(y + head + i, load_some(x + head + i, head_dim - i), head_dim - i);
    }
}

}  // namespace GALLEY_ISA
}  // namespace galley
