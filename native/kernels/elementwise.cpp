// Ops that make each element of their output of the same element of their inputs. What the list
// below names is an op of programs and a method of galley._native.Program; galley.graph.signatures
// has its line in the op table.
#include "tables.hpp"

namespace galley {
namespace GALLEY_ISA {
namespace {

void silu_mul(const float* a, const float* b, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t left = width - i;
        const Floats v = load_some(a + i, left);
        const Floats sigmoid = splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - v));
        store_some(y + i, v * sigmoid * load_some(b + i, left), left);
    }
}

void sigmoid_mul(const float* a, const float* b, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t left = width - i;
        const Floats sigmoid =
            splat(1.0f) / (splat(1.0f) + exp(splat(0.0f) - load_some(a + i, left)));
        store_some(y + i, sigmoid * load_some(b + i, left), left);
    }
}

// x * P(X <= x) of a normal X is max(x, 0) - |x| * P(X > |x|), and that probability is half of
// erfc(|x| / sqrt(2)): here by Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26
// (Hastings 1955), whose error is at most 1.5e-7.
GALLEY_INLINE Floats gelu_of(Floats v) {
    const Floats size = abs(v);
    const Floats t = splat(1.0f) / fma(size, splat(0.3275911f * 0.70710678f), splat(1.0f));
    Floats p = splat(0.5f * 1.061405429f);
    p = fma(p, t, splat(0.5f * -1.453152027f));
    p = fma(p, t, splat(0.5f * 1.421413741f));
    p = fma(p, t, splat(0.5f * -0.284496736f));
    p = fma(p, t, splat(0.5f * 0.254829592f));
    const Floats above = p * t * exp(size * size * splat(-0.5f));
    return max(v, splat(0.0f)) - size * above;
}

void gelu(const float* x, const float*, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes)
        store_some(y + i, gelu_of(load_some(x + i, width - i)), width - i);
}

void gelu_mul(const float* a, const float* b, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t left = width - i;
        store_some(y + i, gelu_of(load_some(a + i, left)) * load_some(b + i, left), left);
    }
}

void add(const float* a, const float* b, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t left = width - i;
        store_some(y + i, load_some(a + i, left) + load_some(b + i, left), left);
    }
}

// 0.5 * (1 + tanh(u)) is the logistic function of 2 * u.
GALLEY_INLINE Floats gelu_tanh_of(Floats v) {
    const Floats cubed = fma(v * v * splat(0.044715f), v, v);
    return v * (splat(1.0f) / (splat(1.0f) + exp(cubed * splat(-2.0f * 0.79788456f))));
}

void gelu_tanh(const float* x, const float*, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes)
        store_some(y + i, gelu_tanh_of(load_some(x + i, width - i)), width - i);
}

void gelu_tanh_mul(const float* a, const float* b, float, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t left = width - i;
        store_some(y + i, gelu_tanh_of(load_some(a + i, left)) * load_some(b + i, left), left);
    }
}

void scale(const float* x, const float*, float factor, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes)
        store_some(y + i, load_some(x + i, width - i) * splat(factor), width - i);
}

void soft_cap(const float* x, const float*, float cap, int64_t width, float* y) {
    for (int64_t i = 0; i < width; i += kLanes)
        store_some(y + i, capped(load_some(x + i, width - i), cap), width - i);
}

}  // namespace

const Elementwise kElementwise[] = {
    {"silu_mul", 2, false, 4, silu_mul},
    {"gelu_tanh_mul", 2, false, 4, gelu_tanh_mul},
    {"gelu_tanh", 1, false, 4, gelu_tanh},
    {"gelu", 1, false, 4, gelu},
    {"gelu_mul", 2, false, 4, gelu_mul},
    {"add", 2, false, 1, add},
    {"scale", 1, true, 1, scale},
    {"soft_cap", 1, true, 4, soft_cap},
    {"sigmoid_mul", 2, false, 4, sigmoid_mul},
    {nullptr, 0, false, 0, nullptr},
};

}  // namespace GALLEY_ISA
}  // namespace galley
