// What the files of ops/ share, and the Python methods that they add to Program.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>
#include <utility>

#include "../isa.hpp"
#include "../module.hpp"
#include "../program.hpp"

namespace galley {

using SlotFields = std::tuple<int64_t, int64_t, int64_t>;
using SharedPacked = std::shared_ptr<Packed>;
using SharedInputs = std::shared_ptr<InputLayout>;
using ProgramClass = nb::class_<Program>;

inline Slot slot(const SlotFields& fields) {
    return {std::get<0>(fields), std::get<1>(fields), std::get<2>(fields)};
}

inline std::vector<float> to_vector(const Floats& values) {
    return {values.data(), values.data() + values.size()};
}

template <class T, class... Fields>
void append(Program& program, Fields&&... fields) {
    program.append(std::make_unique<T>(std::forward<Fields>(fields)...));
}

void bind_attention(ProgramClass& program);
void bind_causal_conv(ProgramClass& program);
void bind_cross_attention(ProgramClass& program);
void bind_elementwise(ProgramClass& program);
void bind_embeddings(ProgramClass& program);
void bind_encoder_attention(ProgramClass& program);
void bind_experts(ProgramClass& program);
void bind_heads(ProgramClass& program);
void bind_im2col(ProgramClass& program);
void bind_linear(ProgramClass& program);
void bind_lora(ProgramClass& program);
void bind_norms(ProgramClass& program);
void bind_recurrence(ProgramClass& program);
void bind_rope(ProgramClass& program);
void bind_route(ProgramClass& program);
void bind_rows(ProgramClass& program);

}  // namespace galley
