// The Python face of programs: their ops, and running them.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "module.hpp"
#include "program.hpp"

using namespace nanobind::literals;

namespace galley {
namespace {

using FloatCube = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using SlotFields = std::tuple<int64_t, int64_t, int64_t>;

Slot slot(const SlotFields& fields) {
    return {std::get<0>(fields), std::get<1>(fields), std::get<2>(fields)};
}

std::vector<float> to_vector(const Floats& values) {
    return {values.data(), values.data() + values.size()};
}

// Whether they split `total` things among `count` owners, each of which has one after another.
bool are_starts(const Ids& starts, int64_t count, size_t total) {
    if (count < 1 || static_cast<int64_t>(starts.size()) != count + 1) return false;
    return starts(0) == 0 && std::is_sorted(starts.data(), starts.data() + starts.size()) &&
           starts(count) == static_cast<int64_t>(total);
}

// Blocks, where each sequence's begin, and how many rows each sequence's window has.
using CrossArrays = std::tuple<Ids, Ids, Ids>;

// Without a result yet, and no row is wanted.
Step step_of(int64_t groups, const Ids& tokens, const Ids& positions, const Ids& starts,
             const Ids& tables, const Ids& table_starts, const std::optional<CrossArrays>& cross) {
    const auto sequences = static_cast<int64_t>(starts.size()) - 1;
    if (positions.size() != tokens.size() || !are_starts(starts, sequences, tokens.size()) ||
        !are_starts(table_starts, groups * sequences, tables.size()))
        throw std::invalid_argument("the arrays of a step do not fit together");
    Step step{};
    step.tokens = tokens.data();
    step.positions = positions.data();
    step.rows = static_cast<int64_t>(tokens.size());
    step.starts = starts.data();
    step.sequences = sequences;
    step.tables = {tables.data(), table_starts.data()};
    if (cross) {
        const auto& [blocks, block_starts, cross_rows] = *cross;
        if (!are_starts(block_starts, sequences, blocks.size()) ||
            static_cast<int64_t>(cross_rows.size()) != sequences)
            throw std::invalid_argument("the arrays of a step's windows do not fit together");
        step.cross_tables = {blocks.data(), block_starts.data()};
        step.cross_rows = cross_rows.data();
    }
    return step;
}

void forward(Program& program, const Ids& tokens, const Ids& positions, const Ids& starts,
             const Ids& tables, const Ids& table_starts, const Ids& wanted, FloatRows logits,
             const std::optional<CrossArrays>& cross) {
    Step step =
        step_of(program.kv_groups(), tokens, positions, starts, tables, table_starts, cross);
    if (logits.shape(0) != wanted.size() ||
        static_cast<int64_t>(logits.shape(1)) != program.vocab_size())
        throw std::invalid_argument("logits have the wrong shape");
    step.wanted = wanted.data();
    step.wanted_rows = static_cast<int64_t>(wanted.size());
    step.logits = logits.data();
    nb::gil_scoped_release release;
    program.forward(step);
}

void align(Program& program, const Ids& tokens, const Ids& positions, const Ids& starts,
           const Ids& tables, const Ids& table_starts, FloatCube attention,
           const CrossArrays& cross) {
    Step step =
        step_of(program.kv_groups(), tokens, positions, starts, tables, table_starts, cross);
    if (static_cast<int64_t>(attention.shape(0)) != step.rows ||
        static_cast<int64_t>(attention.shape(1)) != program.aligned_heads())
        throw std::invalid_argument("attention has the wrong shape");
    step.attention = attention.data();
    step.attention_rows = static_cast<int64_t>(attention.shape(2));
    nb::gil_scoped_release release;
    program.forward(step);
}

void encode(Program& program, const FloatTable& frames, const Ids& starts, const Ids& tables,
            const Ids& table_starts) {
    const auto windows = static_cast<int64_t>(starts.size()) - 1;
    if (!are_starts(starts, windows, frames.shape(0)) ||
        static_cast<int64_t>(frames.shape(1)) != program.mels() ||
        !are_starts(table_starts, windows, tables.size()))
        throw std::invalid_argument("the arrays of windows do not fit together");
    const Windows all = {
        frames.data(), starts.data(), windows, {tables.data(), table_starts.data()}};
    nb::gil_scoped_release release;
    program.encode(all);
}

using SharedPacked = std::shared_ptr<Packed>;
using SharedInputs = std::shared_ptr<InputLayout>;

NormOp rms_norm(const Floats& weight, float eps, int64_t width, SharedInputs layout, SlotFields x,
                SlotFields y) {
    return {to_vector(weight), {}, eps, width, std::move(layout), slot(x), slot(y)};
}

NormOp layer_norm(const Floats& weight, const Floats& bias, float eps, SharedInputs layout,
                  SlotFields x, SlotFields y) {
    if (bias.size() != weight.size()) throw std::invalid_argument("bias has the wrong size");
    const auto width = static_cast<int64_t>(weight.size());
    return {to_vector(weight), to_vector(bias), eps, width, std::move(layout), slot(x), slot(y)};
}

void bind_ops(nb::class_<Program>& cls) {
    cls.def("embed", [](Program& p, SharedPacked weight, SlotFields y) {
        const int64_t width = weight->matrix().depth;
        p.append(EmbedOp{std::move(weight), width, slot(y)});
    });
    cls.def("quantize_input", [](Program& p, SharedInputs layout, SlotFields x, SlotFields y) {
        p.append(PrepareOp{std::move(layout), slot(x), slot(y)});
    });
    cls.def(
        "linear",
        [](Program& p, SharedPacked weight, std::optional<Floats> bias, SharedInputs layout,
           SlotFields x, SlotFields y) {
            const int64_t outputs = weight->matrix().outputs;
            std::vector<float> padded;
            if (bias) {
                if (static_cast<int64_t>(bias->size()) != outputs)
                    throw std::invalid_argument("bias has the wrong size");
                padded = to_vector(*bias);
                padded.resize(round_up(outputs, kLanes));
            }
            p.append(LinearOp{std::move(weight), std::move(padded), std::move(layout), slot(x),
                              slot(y)});
        },
        "weight"_a, "bias"_a.none(), "layout"_a.none(), "x"_a, "y"_a);
    cls.def(
        "rms_norm",
        [](Program& p, const Floats& weight, float eps, int64_t width, SharedInputs layout,
           SlotFields x, SlotFields y) { p.append(rms_norm(weight, eps, width, layout, x, y)); },
        "weight"_a, "eps"_a, "width"_a, "layout"_a.none(), "x"_a, "y"_a);
    cls.def(
        "add_rms_norm",
        [](Program& p, const Floats& weight, float eps, int64_t width, SharedInputs layout,
           SlotFields a, SlotFields b, SlotFields sum, SlotFields y) {
            p.append(AddNormOp{slot(a), slot(b), rms_norm(weight, eps, width, layout, sum, y)});
        },
        "weight"_a, "eps"_a, "width"_a, "layout"_a.none(), "a"_a, "b"_a, "sum"_a, "y"_a);
    cls.def("rope", [](Program& p, std::vector<float> inv_freq, float scale, int64_t width,
                       SlotFields x, SlotFields y) {
        p.append(RopeOp{std::move(inv_freq), scale, width, 0, slot(x), slot(y)});
    });
    cls.def("attention", [](Program& p, int64_t layer, int64_t heads, float scale, int64_t window,
                            SlotFields q, SlotFields k, SlotFields v, SlotFields y) {
        p.append(AttentionOp{layer, heads, scale, window, slot(q), slot(k), slot(v), slot(y)});
    });
    cls.def("rope_attention",
            [](Program& p, std::vector<float> inv_freq, float rope_scale, int64_t layer,
               int64_t heads, float scale, int64_t window, SlotFields q, SlotFields k, SlotFields v,
               SlotFields turned, SlotFields y) {
                const AttentionOp attention = {layer,        heads,   scale,   window,
                                               slot(turned), slot(k), slot(v), slot(y)};
                p.append(RopeAttentionOp{std::move(inv_freq), rope_scale, 0, slot(q), attention});
            });
    cls.def(
        "silu_mul",
        [](Program& p, int64_t width, SharedInputs layout, SlotFields a, SlotFields b,
           SlotFields y) {
            p.append(SiluMulOp{width, std::move(layout), slot(a), slot(b), slot(y)});
        },
        "width"_a, "layout"_a.none(), "a"_a, "b"_a, "y"_a);
    cls.def(
        "layer_norm",
        [](Program& p, const Floats& weight, const Floats& bias, float eps, SharedInputs layout,
           SlotFields x, SlotFields y) { p.append(layer_norm(weight, bias, eps, layout, x, y)); },
        "weight"_a, "bias"_a, "eps"_a, "layout"_a.none(), "x"_a, "y"_a);
    cls.def(
        "add_layer_norm",
        [](Program& p, const Floats& weight, const Floats& bias, float eps, SharedInputs layout,
           SlotFields a, SlotFields b, SlotFields sum, SlotFields y) {
            p.append(AddNormOp{slot(a), slot(b), layer_norm(weight, bias, eps, layout, sum, y)});
        },
        "weight"_a, "bias"_a, "eps"_a, "layout"_a.none(), "a"_a, "b"_a, "sum"_a, "y"_a);
    cls.def(
        "gelu",
        [](Program& p, int64_t width, SharedInputs layout, SlotFields x, SlotFields y) {
            p.append(GeluOp{width, std::move(layout), slot(x), slot(y)});
        },
        "width"_a, "layout"_a.none(), "x"_a, "y"_a);
    cls.def("add", [](Program& p, int64_t width, SlotFields a, SlotFields b, SlotFields y) {
        p.append(AddOp{width, slot(a), slot(b), slot(y)});
    });
    cls.def("select_rows", [](Program& p, int64_t width, SlotFields x, SlotFields y) {
        p.append(SelectRowsOp{width, slot(x), slot(y)});
    });
}

void bind_speech_ops(nb::class_<Program>& cls) {
    cls.def("features",
            [](Program& p, int64_t mels, SlotFields y) { p.append(FeaturesOp{mels, slot(y)}); });
    cls.def("im2col",
            [](Program& p, int64_t width, int64_t size, int64_t stride, SlotFields x,
               SlotFields y) { p.append(NeighboursOp{width, size, stride, slot(x), slot(y)}); });
    cls.def("embed_positions", [](Program& p, const Floats& weight, int64_t width, SlotFields y) {
        p.append(EmbedPositionsOp{to_vector(weight), width, slot(y)});
    });
    cls.def("encoder_attention", [](Program& p, int64_t heads, int64_t kv_heads, int64_t key_dim,
                                    int64_t value_dim, float scale, bool exact, SlotFields q,
                                    SlotFields k, SlotFields v, SlotFields y) {
        const KvType type = exact ? KvType::kF32 : KvType::kPairs;
        const Cache cache = cache_of(kv_heads, key_dim, value_dim, type);
        p.append(WindowAttentionOp{cache, heads, scale, slot(q), slot(k), slot(v), slot(y)});
    });
    cls.def("cross_kv", [](Program& p, int64_t layer, SlotFields k, SlotFields v) {
        p.append(CrossKvOp{layer, slot(k), slot(v)});
    });
    cls.def("cross_attention",
            [](Program& p, int64_t layer, int64_t heads, float scale, SlotFields q, SlotFields y) {
                p.append(CrossAttentionOp{layer, heads, scale, slot(q), slot(y)});
            });
    cls.def("cross_weights",
            [](Program& p, int64_t layer, int64_t heads, std::vector<int64_t> chosen, int64_t first,
               float scale, SlotFields q) {
                p.append(CrossWeightsOp{layer, heads, std::move(chosen), first, scale, slot(q)});
            });
}

}  // namespace

void bind_program(nb::module_& m) {
    auto program = nb::class_<Program>(m, "Program");
    program
        .def(nb::init<std::shared_ptr<Runtime>, int64_t, int64_t>(), "runtime"_a, "arena_bytes"_a,
             "vocab_size"_a)
        .def("forward", &forward, "tokens"_a, "positions"_a, "starts"_a, "tables"_a,
             "table_starts"_a, "wanted"_a, "logits"_a, "cross"_a.none() = nb::none())
        .def("align", &align, "tokens"_a, "positions"_a, "starts"_a, "tables"_a, "table_starts"_a,
             "attention"_a.noconvert(), "cross"_a)
        .def("encode", &encode, "frames"_a, "starts"_a, "tables"_a, "table_starts"_a);
    bind_ops(program);
    bind_speech_ops(program);
}

}  // namespace galley
