// galley._native: the Python face of the executor. galley/ops/cpu.py is its only caller.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "isa.hpp"
#include "machine.hpp"
#include "packed.hpp"
#include "program.hpp"
#include "sampling.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace galley {
namespace {

using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RawBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using SlotFields = std::tuple<int64_t, int64_t, int64_t>;

Kind kind_named(const std::string& name) {
    if (name == "float32") return Kind::kF32;
    if (name == "bf16") return Kind::kBF16;
    if (name == "int8") return Kind::kInt8;
    if (name == "int4") return Kind::kInt4;
    throw std::invalid_argument("unknown weight kind '" + name + "'");
}

KvType kv_type_named(const std::string& name) {
    if (name == "float32") return KvType::kF32;
    if (name == "bfloat16") return KvType::kBF16;
    if (name == "int8") return KvType::kInt8;
    throw std::invalid_argument("unknown KV type '" + name + "'");
}

// Tags as in galley.formats.weights.
ScaleType type_tagged(const std::string& tag) {
    if (tag == "F32") return ScaleType::kF32;
    if (tag == "BF16") return ScaleType::kBF16;
    if (tag == "F16") return ScaleType::kF16;
    throw std::invalid_argument("unknown element type '" + tag + "'");
}

int64_t type_bytes(ScaleType type) { return type == ScaleType::kF32 ? 4 : 2; }

void require_size(const RawBytes& array, int64_t bytes, const char* what) {
    if (static_cast<int64_t>(array.size()) != bytes)
        throw std::invalid_argument(std::string(what) + " has the wrong size");
}

// Tensors' bytes with their element types.
using Tensors = std::vector<std::tuple<RawBytes, std::string>>;

Packed::Shape shape_of(const std::string& kind, int64_t outputs, int64_t depth, int64_t group,
                       const std::string& scale_type, bool zeros) {
    return {kind_named(kind), outputs, depth, group, type_tagged(scale_type), zeros};
}

int64_t fill(Packed& packed, const Tensors& tensors, int threads) {
    std::vector<Source> parts;
    for (const auto& [bytes, tag] : tensors) {
        const ScaleType type = type_tagged(tag);
        const int64_t row = packed.matrix().depth * type_bytes(type);
        const auto size = static_cast<int64_t>(bytes.size());
        if (size % row) throw std::invalid_argument("a part is no whole number of rows");
        parts.push_back({bytes.data(), type, size / row});
    }
    nb::gil_scoped_release release;
    return packed.fill(parts, threads);
}

void fill_integer(Packed& packed, const RawBytes& q, const RawBytes& scales,
                  const std::optional<RawBytes>& zeros, int threads) {
    const Matrix& m = packed.matrix();
    require_size(q, m.outputs * m.depth, "q");
    require_size(scales, m.outputs * m.groups * type_bytes(m.scale_type), "scales");
    if (zeros) require_size(*zeros, m.outputs * m.groups, "zeros");
    nb::gil_scoped_release release;
    packed.fill_integer(q.data(), scales.data(), zeros ? zeros->data() : nullptr, threads);
}

Slot slot(const SlotFields& fields) {
    return {std::get<0>(fields), std::get<1>(fields), std::get<2>(fields)};
}

std::vector<float> to_vector(const Floats& values, int64_t padded) {
    std::vector<float> v(padded, 0.0f);
    for (size_t i = 0; i < values.size(); ++i) v[i] = values(i);
    return v;
}

bool are_tables(const Ids& blocks, const Ids& starts, int64_t count) {
    return static_cast<int64_t>(starts.size()) == count + 1 &&
           starts(count) == static_cast<int64_t>(blocks.size());
}

// Blocks, where each sequence's begin, and how many rows each sequence's window has.
using CrossArrays = std::tuple<Ids, Ids, Ids>;

void forward(Program& program, const Ids& tokens, const Ids& positions, const Ids& starts,
             const Ids& tables, const Ids& table_starts, const Ids& wanted, FloatRows logits,
             const std::optional<CrossArrays>& cross) {
    const auto rows = static_cast<int64_t>(tokens.size());
    const auto sequences = static_cast<int64_t>(starts.size()) - 1;
    const auto wanted_rows = static_cast<int64_t>(wanted.size());
    if (static_cast<int64_t>(positions.size()) != rows || sequences < 1 ||
        !are_tables(tables, table_starts, sequences) ||
        static_cast<int64_t>(logits.shape(0)) != wanted_rows ||
        static_cast<int64_t>(logits.shape(1)) != program.vocab_size())
        throw std::invalid_argument("the arrays of a step do not fit together");
    Step step = {tokens.data(), positions.data(),
                 rows,          starts.data(),
                 sequences,     {tables.data(), table_starts.data()},
                 wanted.data(), wanted_rows,
                 logits.data(), {},
                 nullptr};
    if (cross) {
        const auto& [blocks, block_starts, cross_rows] = *cross;
        if (!are_tables(blocks, block_starts, sequences) ||
            static_cast<int64_t>(cross_rows.size()) != sequences)
            throw std::invalid_argument("the arrays of a step's windows do not fit together");
        step.cross_tables = {blocks.data(), block_starts.data()};
        step.cross_rows = cross_rows.data();
    }
    nb::gil_scoped_release release;
    program.forward(step);
}

void encode(Program& program, const FloatTable& frames, const Ids& starts, const Ids& tables,
            const Ids& table_starts) {
    const auto windows = static_cast<int64_t>(starts.size()) - 1;
    if (windows < 1 || starts(windows) != static_cast<int64_t>(frames.shape(0)) ||
        static_cast<int64_t>(frames.shape(1)) != program.mels() ||
        !are_tables(tables, table_starts, windows))
        throw std::invalid_argument("the arrays of windows do not fit together");
    const Windows all = {
        frames.data(), starts.data(), windows, {tables.data(), table_starts.data()}};
    nb::gil_scoped_release release;
    program.encode(all);
}

using OutIds = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutDoubles = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void greatest_rows(Runtime& runtime, const FloatTable& logits, OutIds ids) {
    if (logits.shape(0) != ids.size()) throw std::invalid_argument("one id a row is wanted");
    nb::gil_scoped_release release;
    greatest(runtime.pool(), logits.data(), logits.shape(0), logits.shape(1), ids.data());
}

template <class T>
using Row = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
void bind_sampling(nb::module_& m) {
    m.def(
        "best",
        [](const Row<T>& row, OutIds ids) {
            if (ids.size() > row.size()) throw std::invalid_argument("more ids than elements");
            nb::gil_scoped_release release;
            best(row.data(), row.size(), ids.size(), ids.data());
        },
        "row"_a.noconvert(), "ids"_a.noconvert());
    m.def(
        "exp_sums",
        [](const Row<T>& row, double most, double temperature, const std::string& isa,
           OutDoubles sums) {
            if (static_cast<int64_t>(sums.size()) * kExpBlock != round_up(row.size(), kExpBlock))
                throw std::invalid_argument("sums has the wrong size");
            const Kernels& chosen = kernels(isa);
            nb::gil_scoped_release release;
            exp_sums(chosen, row.data(), row.size(), most, temperature, sums.data());
        },
        "row"_a.noconvert(), "most"_a, "temperature"_a, "isa"_a, "sums"_a.noconvert());
}

using SharedPacked = std::shared_ptr<Packed>;

std::vector<float> to_vector(const Floats& values) { return to_vector(values, values.size()); }

NormOp rms_norm(const Floats& weight, float eps, int64_t width, SharedPacked layout, SlotFields x,
                SlotFields y) {
    return {to_vector(weight), {}, eps, width, std::move(layout), slot(x), slot(y)};
}

NormOp layer_norm(const Floats& weight, const Floats& bias, float eps, SharedPacked layout,
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
    cls.def("prepare", [](Program& p, SharedPacked weight, SlotFields x, SlotFields y) {
        p.append(PrepareOp{std::move(weight), slot(x), slot(y)});
    });
    cls.def(
        "linear",
        [](Program& p, SharedPacked weight, std::optional<Floats> bias, SlotFields x,
           SlotFields y) {
            std::vector<float> padded;
            if (bias) padded = to_vector(*bias, round_up(weight->matrix().outputs, kLanes));
            p.append(LinearOp{std::move(weight), std::move(padded), slot(x), slot(y)});
        },
        "weight"_a, "bias"_a.none(), "x"_a, "y"_a);
    cls.def(
        "rms_norm",
        [](Program& p, const Floats& weight, float eps, int64_t width, SharedPacked layout,
           SlotFields x, SlotFields y) { p.append(rms_norm(weight, eps, width, layout, x, y)); },
        "weight"_a, "eps"_a, "width"_a, "layout"_a.none(), "x"_a, "y"_a);
    cls.def(
        "add_rms_norm",
        [](Program& p, const Floats& weight, float eps, int64_t width, SharedPacked layout,
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
        [](Program& p, int64_t width, SharedPacked layout, SlotFields a, SlotFields b,
           SlotFields y) {
            p.append(SiluMulOp{width, std::move(layout), slot(a), slot(b), slot(y)});
        },
        "width"_a, "layout"_a.none(), "a"_a, "b"_a, "y"_a);
    cls.def(
        "layer_norm",
        [](Program& p, const Floats& weight, const Floats& bias, float eps, SharedPacked layout,
           SlotFields x, SlotFields y) { p.append(layer_norm(weight, bias, eps, layout, x, y)); },
        "weight"_a, "bias"_a, "eps"_a, "layout"_a.none(), "x"_a, "y"_a);
    cls.def(
        "add_layer_norm",
        [](Program& p, const Floats& weight, const Floats& bias, float eps, SharedPacked layout,
           SlotFields a, SlotFields b, SlotFields sum, SlotFields y) {
            p.append(AddNormOp{slot(a), slot(b), layer_norm(weight, bias, eps, layout, sum, y)});
        },
        "weight"_a, "bias"_a, "eps"_a, "layout"_a.none(), "a"_a, "b"_a, "sum"_a, "y"_a);
    cls.def(
        "gelu",
        [](Program& p, int64_t width, SharedPacked layout, SlotFields x, SlotFields y) {
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
    cls.def("neighbours",
            [](Program& p, int64_t width, int64_t size, int64_t stride, SlotFields x,
               SlotFields y) { p.append(NeighboursOp{width, size, stride, slot(x), slot(y)}); });
    cls.def("embed_positions", [](Program& p, const Floats& weight, int64_t width, SlotFields y) {
        p.append(EmbedPositionsOp{to_vector(weight), width, slot(y)});
    });
    cls.def("window_attention", [](Program& p, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                   float scale, bool exact, SlotFields q, SlotFields k,
                                   SlotFields v, SlotFields y) {
        const KvType type = exact ? KvType::kF32 : KvType::kPairs;
        const Cache cache = cache_of(kv_heads, head_dim, type);
        p.append(WindowAttentionOp{cache, heads, scale, slot(q), slot(k), slot(v), slot(y)});
    });
    cls.def("cross_kv", [](Program& p, int64_t layer, SlotFields k, SlotFields v) {
        p.append(CrossKvOp{layer, slot(k), slot(v)});
    });
    cls.def("cross_attention",
            [](Program& p, int64_t layer, int64_t heads, float scale, SlotFields q, SlotFields y) {
                p.append(CrossAttentionOp{layer, heads, scale, slot(q), slot(y)});
            });
}

std::vector<double> bind_read_rates(const std::string& isa, int threads,
                                    const std::vector<int>& cpus, int64_t bytes, bool huge,
                                    int repeats) {
    nb::gil_scoped_release release;
    Pool pool(threads, cpus);
    return read_rates(kernels(isa), pool, bytes, huge, repeats);
}

std::vector<double> bind_multiply_rates(const std::string& isa, int threads,
                                        const std::vector<int>& cpus, const std::string& kind,
                                        double seconds, int repeats) {
    const Kind of = kind_named(kind);
    nb::gil_scoped_release release;
    Pool pool(threads, cpus);
    return multiply_rates(kernels(isa), pool, of, seconds, repeats);
}

}  // namespace
}  // namespace galley

NB_MODULE(_native, m) {
    using namespace galley;
    m.def("supported_isas", &supported_isas);
    m.attr("LOGITS") = Slot::kLogits;
    m.attr("LAYOUT_VERSION") = kLayoutVersion;
    m.attr("EXP_BLOCK") = kExpBlock;
    bind_sampling<float>(m);
    bind_sampling<double>(m);
    m.def("read_rates", &bind_read_rates, "isa"_a, "threads"_a, "cpus"_a, "bytes"_a, "huge"_a,
          "repeats"_a);
    m.def("multiply_rates", &bind_multiply_rates, "isa"_a, "threads"_a, "cpus"_a, "kind"_a,
          "seconds"_a, "repeats"_a);

    nb::class_<Packed>(m, "Packed")
        .def(
            "__init__",
            [](Packed* self, const std::string& kind, int64_t outputs, int64_t depth, int64_t group,
               const std::string& scale_type, bool zeros, std::optional<RawBytes> memory) {
                const auto shape = shape_of(kind, outputs, depth, group, scale_type, zeros);
                if (!memory) {
                    new (self) Packed(shape);
                    return;
                }
                const auto owner = std::make_shared<RawBytes>(*memory);
                const auto size = static_cast<int64_t>(owner->size());
                new (self) Packed(shape, owner->data(), size, owner);
            },
            "kind"_a, "outputs"_a, "depth"_a, "group"_a = 0, "scale_type"_a = "F32",
            "zeros"_a = false, "memory"_a.none() = nb::none())
        .def("fill", &fill, "parts"_a, "threads"_a)
        .def("fill_integer", &fill_integer, "q"_a, "scales"_a, "zeros"_a.none(), "threads"_a)
        .def_prop_ro(
            "memory",
            [](const Packed& packed) {
                const auto size = static_cast<size_t>(packed.bytes());
                return nb::ndarray<nb::numpy, const uint8_t>(packed.data(), {size}, nb::handle());
            },
            nb::rv_policy::reference_internal)
        .def_prop_ro("outputs", [](const Packed& p) { return p.matrix().outputs; })
        .def_prop_ro("bytes", &Packed::bytes)
        .def_prop_ro("activation_bytes", &Packed::activation_bytes);

    nb::class_<Runtime>(m, "Runtime")
        .def(
            "__init__",
            [](Runtime* self, const std::string& isa, int threads, const std::vector<int>& cpus) {
                new (self) Runtime(kernels(isa), threads, cpus);
            },
            "isa"_a, "threads"_a, "cpus"_a)
        .def(
            "add_kv_layer",
            [](Runtime& r, int64_t kv_heads, int64_t head_dim, const std::string& type) {
                r.add_kv_layer(kv_heads, head_dim, kv_type_named(type));
            },
            "kv_heads"_a, "head_dim"_a, "type"_a)
        .def("kv_bytes_per_block", &Runtime::kv_bytes_per_block)
        .def("allocate_kv", &Runtime::allocate_kv, "blocks"_a)
        .def("copy_block", &Runtime::copy_block, "from_"_a, "to"_a)
        .def("greatest", &greatest_rows, "logits"_a.noconvert(), "ids"_a.noconvert())
        .def_prop_ro("isa", [](const Runtime& r) { return r.kernels().name; });

    auto program = nb::class_<Program>(m, "Program");
    program
        .def(nb::init<std::shared_ptr<Runtime>, int64_t, int64_t>(), "runtime"_a, "arena_bytes"_a,
             "vocab_size"_a)
        .def("forward", &forward, "tokens"_a, "positions"_a, "starts"_a, "tables"_a,
             "table_starts"_a, "wanted"_a, "logits"_a, "cross"_a.none() = nb::none())
        .def("encode", &encode, "frames"_a, "starts"_a, "tables"_a, "table_starts"_a);
    bind_ops(program);
    bind_speech_ops(program);
}
