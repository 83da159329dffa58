// The methods of galley._native.Program that append ops.
#include "ops/ops.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings/module.hpp"
#include "kernels/isa.hpp"

using namespace nanobind::literals;

namespace galley {
namespace {

using ProgramClass = nb::class_<Program>;

// What a field of an op is in Python, and how it becomes the field.
template <class Field>
struct Argument {
    using Python = Field;
    static Field take(Python given) { return given; }
};

template <>
struct Argument<Slot> {
    using Python = std::tuple<int64_t, int64_t, int64_t>;
    static Slot take(const Python& given) {
        return {std::get<0>(given), std::get<1>(given), std::get<2>(given)};
    }
};

template <>
struct Argument<Values> {
    using Python = Floats;
    static Values take(const Python& given) { return {given.data(), given.data() + given.size()}; }
};

template <>
struct Argument<MaybeValues> {
    using Python = std::optional<Floats>;
    static MaybeValues take(const Python& given) {
        if (!given) return std::nullopt;
        return Argument<Values>::take(*given);
    }
};

// Adds a method that appends what `make` makes of its arguments.
template <class... Fields, class... Names>
void append(ProgramClass& program, const char* name, OpPtr (*make)(Fields...),
            const Names&... names) {
    program.def(
        name,
        [make](Program& p, typename Argument<Fields>::Python... given) {
            p.append(make(Argument<Fields>::take(std::move(given))...));
        },
        names...);
}

// A method for each kernel that kernels/elementwise.cpp lists.
void bind_elementwise(ProgramClass& program) {
    using SharedInputs = std::shared_ptr<InputLayout>;
    using Fields = Argument<Slot>::Python;
    const auto slot = Argument<Slot>::take;
    for (const Elementwise* op = kernels("portable").elementwise; op->name; ++op) {
        const char* name = op->name;
        if (op->told)
            program.def(
                name,
                [=](Program& p, float number, int64_t width, SharedInputs layout, Fields x,
                    Fields y) {
                    p.append(make_elementwise(name, number, width, std::move(layout), slot(x),
                                              std::nullopt, slot(y)));
                },
                "number"_a, "width"_a, "layout"_a.none(), "x"_a, "y"_a);
        else if (op->inputs == 1)
            program.def(
                name,
                [=](Program& p, int64_t width, SharedInputs layout, Fields x, Fields y) {
                    p.append(make_elementwise(name, 0.0f, width, std::move(layout), slot(x),
                                              std::nullopt, slot(y)));
                },
                "width"_a, "layout"_a.none(), "x"_a, "y"_a);
        else
            program.def(
                name,
                [=](Program& p, int64_t width, SharedInputs layout, Fields a, Fields b, Fields y) {
                    p.append(make_elementwise(name, 0.0f, width, std::move(layout), slot(a),
                                              slot(b), slot(y)));
                },
                "width"_a, "layout"_a.none(), "a"_a, "b"_a, "y"_a);
    }
}

void bind_attention(ProgramClass& program) {
    append(program, "attention", make_attention, "sinks"_a.none(), "layer"_a, "heads"_a, "scale"_a,
           "window"_a, "chunked"_a, "cap"_a, "q"_a, "k"_a, "v"_a, "y"_a);
    append(program, "rope_attention", make_rope_attention, "inv_freq"_a, "rope_scale"_a,
           "adjacent"_a, "sinks"_a.none(), "layer"_a, "heads"_a, "scale"_a, "window"_a, "chunked"_a,
           "cap"_a, "q"_a, "k"_a, "v"_a, "turned"_a, "y"_a);
    append(program, "encoder_attention", make_encoder_attention);
    append(program, "cross_kv", make_cross_kv);
    append(program, "cross_attention", make_cross_attention);
    append(program, "cross_weights", make_cross_weights);
}

void bind_norms(ProgramClass& program) {
    append(program, "rms_norm", make_rms_norm, "weight"_a, "eps"_a, "width"_a, "layout"_a.none(),
           "x"_a, "y"_a);
    append(program, "add_rms_norm", make_add_rms_norm, "weight"_a, "eps"_a, "width"_a,
           "layout"_a.none(), "a"_a, "b"_a, "sum"_a, "y"_a);
    append(program, "layer_norm", make_layer_norm, "weight"_a, "bias"_a.none(), "eps"_a,
           "head_dim"_a, "layout"_a.none(), "x"_a, "y"_a);
    append(program, "add_layer_norm", make_add_layer_norm, "weight"_a, "bias"_a.none(), "eps"_a,
           "head_dim"_a, "layout"_a.none(), "a"_a, "b"_a, "sum"_a, "y"_a);
}

void bind_matrices(ProgramClass& program) {
    append(program, "all_gather", make_all_gather, "communicator"_a, "ranks"_a, "leader_only"_a,
           "x"_a, "y"_a);
    append(program, "quantize_input", make_quantize_input);
    append(program, "linear", make_linear, "weight"_a, "bias"_a.none(), "layout"_a.none(), "x"_a,
           "y"_a);
    append(program, "lora", make_lora);
    append(program, "head_linear", make_head_linear, "weight"_a, "work"_a, "x"_a, "y"_a);
    append(program, "route", make_route, "bias"_a.none(), "experts"_a, "per_token"_a, "scores"_a,
           "normalize"_a, "factor"_a, "groups"_a, "kept_groups"_a, "group_best"_a, "x"_a, "y"_a);
    append(program, "experts", make_experts, "gate"_a, "up"_a, "down"_a, "gate_bias"_a.none(),
           "up_bias"_a.none(), "down_bias"_a.none(), "per_token"_a, "alpha"_a, "limit"_a,
           "scaled_inputs"_a, "ranks"_a, "communicator"_a.none(), "cache"_a.none(), "work"_a, "x"_a,
           "routes"_a, "y"_a);
}

void bind_recurrence(ProgramClass& program) {
    append(program, "causal_conv", make_causal_conv, "weight"_a, "bias"_a.none(), "state"_a,
           "size"_a, "width"_a, "x"_a, "y"_a);
    append(program, "ssm", make_ssm, "a_log"_a, "dt_bias"_a, "skip"_a, "state"_a, "heads"_a,
           "groups"_a, "x"_a, "b"_a, "c"_a, "dt"_a, "y"_a);
    append(program, "delta_rule", make_delta_rule, "a_log"_a, "dt_bias"_a, "state"_a, "heads"_a,
           "groups"_a, "q"_a, "k"_a, "v"_a, "a"_a, "b"_a, "y"_a);
}

void bind_rows(ProgramClass& program) {
    append(program, "embed", make_embed);
    append(program, "embed_part", make_embed_part, "weight"_a, "ranks"_a, "communicator"_a, "y"_a);
    append(program, "embed_positions", make_embed_positions);
    append(program, "embed_types", make_embed_types);
    append(program, "features", make_features);
    append(program, "encoder_rows", make_encoder_rows);
    append(program, "im2col", make_im2col);
    append(program, "select_rows", make_select_rows);
    append(program, "head_columns", make_head_columns);
    append(program, "join_heads", make_join_heads, "heads"_a, "size"_a, "width"_a, "a"_a, "b"_a,
           "y"_a);
    append(program, "rope", make_rope);
    append(program, "scale_queries_by_position", make_scale_queries_by_position);
    append(program, "sigmoid_scale", make_sigmoid_scale);
}

}  // namespace

void bind_ops(ProgramClass& program) {
    bind_elementwise(program);
    bind_attention(program);
    bind_matrices(program);
    bind_norms(program);
    bind_recurrence(program);
    bind_rows(program);
}

}  // namespace galley
