// galley._native: the Python face of the executor.
#include "bindings/module.hpp"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "kernels/isa.hpp"
#include "packing/packed.hpp"
#include "packing/rounding.hpp"
#include "runtime/expert_cache.hpp"
#include "runtime/machine.hpp"
#include "runtime/program.hpp"
#include "system/communicator.hpp"

using namespace nanobind::literals;

namespace galley {
namespace {

// In the order of Kind.
constexpr const char* kKindNames[] = {"float32", "bf16", "f16", "int8", "int4"};

Kind kind_named(const std::string& name) {
    for (size_t i = 0; i < std::size(kKindNames); ++i)
        if (name == kKindNames[i]) return static_cast<Kind>(i);
    throw std::invalid_argument("unknown weight kind '" + name + "'");
}

// Of kInt8 that is narrow.
constexpr const char* kNarrowName = "int7";

const char* name_of(const Matrix& m) {
    return m.narrow ? kNarrowName : kKindNames[static_cast<int>(m.kind)];
}

Inputs inputs_named(const std::string& name) {
    if (name == "bfloat16") return Inputs::kBF16;
    if (name == "int8") return Inputs::kInt8;
    throw std::invalid_argument("unknown type of activations '" + name + "'");
}

KvType kv_type_named(const std::string& name) {
    if (name == "float32") return KvType::kF32;
    if (name == "bfloat16") return KvType::kBF16;
    if (name == "int8") return KvType::kInt8;
    if (name == "int4") return KvType::kInt4;
    throw std::invalid_argument("unknown KV type '" + name + "'");
}

// Tags as in galley.formats.weights.
FloatType type_tagged(const std::string& tag) {
    if (tag == "F32") return FloatType::kF32;
    if (tag == "BF16") return FloatType::kBF16;
    if (tag == "F16") return FloatType::kF16;
    throw std::invalid_argument("unknown element type '" + tag + "'");
}

using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// For executors in Python: y becomes the columns of all ranks, side by side.
void gather(Communicator& communicator, const FloatTable& x, const std::vector<int64_t>& ranks,
            FloatRows y) {
    const auto rows = static_cast<int64_t>(x.shape(0)), own = static_cast<int64_t>(x.shape(1));
    const int64_t total = std::accumulate(ranks.begin(), ranks.end(), int64_t{0});
    const int64_t widest = ranks.empty() ? 0 : *std::max_element(ranks.begin(), ranks.end());
    if (static_cast<int>(ranks.size()) != communicator.ranks() || widest < 1 ||
        ranks[communicator.rank()] != own || static_cast<int64_t>(y.shape(0)) != rows ||
        static_cast<int64_t>(y.shape(1)) != total || 4 * widest > communicator.slot_bytes())
        throw std::invalid_argument("the arrays of an exchange do not fit together");
    const auto first = [&](int rank) {
        return std::accumulate(ranks.begin(), ranks.begin() + rank, int64_t{0});
    };
    const auto copy = [&](const float* from, int rank, int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
            std::copy_n(from + (r - begin) * ranks[rank], ranks[rank],
                        y.data() + r * total + first(rank));
    };
    nb::gil_scoped_release release;
    communicator.exchange(
        rows, 4 * widest,
        [&](uint8_t* slot, int64_t begin, int64_t end) {
            std::copy_n(x.data() + begin * own, (end - begin) * own,
                        reinterpret_cast<float*>(slot));
            copy(x.data() + begin * own, communicator.rank(), begin, end);
            return static_cast<int64_t>(sizeof(float)) * (end - begin) * own;
        },
        [&](int other, const uint8_t* slot, int64_t begin, int64_t end) {
            copy(reinterpret_cast<const float*>(slot), other, begin, end);
        });
}

// `carrier(parity, bytes)` returns whether it is done, or None if a rank was lost.
void reach(Communicator& communicator, const std::vector<int>& elsewhere, nb::object carrier) {
    communicator.reach(elsewhere, [carrier](int parity, int64_t bytes) {
        const nb::gil_scoped_acquire acquire;
        const nb::object done = carrier(parity, bytes);
        if (done.is_none()) return Communicator::Carried::kLost;
        return nb::cast<bool>(done) ? Communicator::Carried::kDone : Communicator::Carried::kNotYet;
    });
}

FloatType scale_type_tagged(const std::string& tag) {
    return tag == "F16xI8" ? FloatType::kNested : type_tagged(tag);
}

void require_size(const RawBytes& array, int64_t bytes, const char* what) {
    if (static_cast<int64_t>(array.size()) != bytes)
        throw std::invalid_argument(std::string(what) + " has the wrong size");
}

// Tensors' bytes with their element types.
using Tensors = std::vector<std::tuple<RawBytes, std::string>>;

Packed::Shape shape_of(const std::string& kind, int64_t outputs, int64_t depth, int64_t group,
                       const std::string& scale_type, bool zeros, bool minima) {
    const bool narrow = kind == kNarrowName;
    return {narrow ? Kind::kInt8 : kind_named(kind), outputs, depth,  group,
            scale_type_tagged(scale_type),           zeros,   minima, narrow};
}

int64_t fill(Packed& packed, const Tensors& tensors, int threads) {
    std::vector<Source> parts;
    for (const auto& [bytes, tag] : tensors) {
        const FloatType type = type_tagged(tag);
        const int64_t row = packed.matrix().depth * bytes_of(type);
        const auto size = static_cast<int64_t>(bytes.size());
        if (size % row) throw std::invalid_argument("a part is no whole number of rows");
        parts.push_back({bytes.data(), type, size / row});
    }
    nb::gil_scoped_release release;
    return packed.fill(parts, threads);
}

using MaybeBytes = std::optional<RawBytes>;

void fill_integer(Packed& packed, const RawBytes& q, const RawBytes& scales,
                  const MaybeBytes& zeros, int threads, const MaybeBytes& minima,
                  const MaybeBytes& super_scales, const MaybeBytes& super_minima) {
    const Matrix& m = packed.matrix();
    const int64_t groups = m.outputs * m.groups, size = bytes_of(m.scale_type);
    const auto data = [](const MaybeBytes& bytes, int64_t wanted, const char* what) {
        if (bytes) require_size(*bytes, wanted, what);
        return bytes ? bytes->data() : nullptr;
    };
    require_size(q, m.outputs * m.depth, "q");
    require_size(scales, groups * size, "scales");
    const Packed::Integers integers = {
        q.data(),
        scales.data(),
        data(zeros, groups, "zeros"),
        data(minima, groups * size, "minima"),
        data(super_scales, 2 * m.outputs * m.supers, "super_scales"),
        data(super_minima, 2 * m.outputs * m.supers, "super_minima"),
    };
    nb::gil_scoped_release release;
    packed.fill_integer(integers, threads);
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
    nb::exception<TooFewThreads>(m, "TooFewThreads", PyExc_RuntimeError);
    m.attr("LOGITS") = Slot::kLogits;
    m.attr("LONGEST_GROUP") = Packed::kLongestGroup;
    m.attr("LAYOUT_VERSION") = kLayoutVersion;
    bind_sampling(m);
    m.def("read_rates", &bind_read_rates, "isa"_a, "threads"_a, "cpus"_a, "bytes"_a, "huge"_a,
          "repeats"_a);
    m.def("multiply_rates", &bind_multiply_rates, "isa"_a, "threads"_a, "cpus"_a, "kind"_a,
          "seconds"_a, "repeats"_a);

    m.def(
        "packed_bytes",
        [](const std::string& kind, int64_t outputs, int64_t depth, int64_t group,
           const std::string& scale_type, bool zeros, bool minima) {
            return Packed::bytes_of(
                shape_of(kind, outputs, depth, group, scale_type, zeros, minima));
        },
        "kind"_a, "outputs"_a, "depth"_a, "group"_a = 0, "scale_type"_a = "F32", "zeros"_a = false,
        "minima"_a = false);
    m.def(
        "kv_block_bytes",
        [](int64_t kv_heads, int64_t key_dim, int64_t value_dim, const std::string& type,
           bool shared) {
            return kv_heads *
                   cache_of(kv_heads, key_dim, value_dim, kv_type_named(type), shared).head_bytes;
        },
        "kv_heads"_a, "key_dim"_a, "value_dim"_a, "type"_a, "shared"_a = false);

    nb::class_<Packed>(m, "Packed")
        .def(
            "__init__",
            [](Packed* self, const std::string& kind, int64_t outputs, int64_t depth, int64_t group,
               const std::string& scale_type, bool zeros, bool minima,
               std::optional<RawBytes> memory, std::optional<int64_t> file_offset) {
                const auto shape = shape_of(kind, outputs, depth, group, scale_type, zeros, minima);
                if (file_offset) {
                    new (self) Packed(shape, *file_offset);
                    return;
                }
                if (!memory) {
                    new (self) Packed(shape);
                    return;
                }
                const auto owner = std::make_shared<RawBytes>(*memory);
                const auto size = static_cast<int64_t>(owner->size());
                new (self) Packed(shape, owner->data(), size, owner);
            },
            "kind"_a, "outputs"_a, "depth"_a, "group"_a = 0, "scale_type"_a = "F32",
            "zeros"_a = false, "minima"_a = false, "memory"_a.none() = nb::none(),
            "file_offset"_a.none() = nb::none())
        .def("fill", &fill, "parts"_a, "threads"_a)
        .def("fill_integer", &fill_integer, "q"_a, "scales"_a, "zeros"_a.none(), "threads"_a,
             "minima"_a.none() = nb::none(), "super_scales"_a.none() = nb::none(),
             "super_minima"_a.none() = nb::none())
        .def_prop_ro(
            "memory",
            [](const Packed& packed) {
                const auto size = static_cast<size_t>(packed.data() ? packed.bytes() : 0);
                return nb::ndarray<nb::numpy, const uint8_t>(packed.data(), {size}, nb::handle());
            },
            nb::rv_policy::reference_internal)
        .def_prop_ro("kind", [](const Packed& p) { return name_of(p.matrix()); })
        .def_prop_ro("depth", [](const Packed& p) { return p.matrix().depth; })
        .def_prop_ro("group", [](const Packed& p) { return p.matrix().group; })
        .def_prop_ro("outputs", [](const Packed& p) { return p.matrix().outputs; })
        .def_prop_ro("bytes", &Packed::bytes);

    m.def("joined", &joined, "parts"_a);

    nb::class_<ExpertCache>(m, "ExpertCache")
        .def(nb::init<int, int64_t, int64_t>(), "file"_a, "slots"_a, "slot_bytes"_a)
        .def_prop_ro("slots", &ExpertCache::slots)
        .def_prop_ro("bytes", &ExpertCache::bytes)
        .def("counts", [](const ExpertCache& cache) {
            const auto& c = cache.counts();
            return std::make_tuple(c.hits, c.misses, c.evictions, c.read_bytes, c.read_seconds);
        });

    nb::exception<RankLost>(m, "RankLost", PyExc_RuntimeError);
    nb::class_<Communicator>(m, "Communicator")
        .def(
            "__init__",
            [](Communicator* self, const Bytes& memory, int rank, int ranks, int64_t slot_bytes,
               int64_t timeout) {
                if (static_cast<int64_t>(memory.size()) < Communicator::bytes(ranks, slot_bytes))
                    throw std::invalid_argument("shared memory is too small");
                new (self) Communicator(memory.data(), rank, ranks, slot_bytes,
                                        std::chrono::milliseconds(timeout));
            },
            "memory"_a, "rank"_a, "ranks"_a, "slot_bytes"_a, "timeout"_a, nb::keep_alive<1, 2>())
        .def_static("bytes", &Communicator::bytes, "ranks"_a, "slot_bytes"_a)
        .def_prop_ro("rank", &Communicator::rank)
        .def_prop_ro("ranks", &Communicator::ranks)
        .def("gather", &gather, "x"_a, "ranks"_a, "y"_a.noconvert())
        .def("reach", &reach, "elsewhere"_a, "carrier"_a)
        .def_static("slot_at", &Communicator::slot_at, "ranks"_a, "slot_bytes"_a, "rank"_a,
                    "parity"_a)
        .def("fail", &Communicator::fail)
        .def_prop_ro("failed", &Communicator::failed);

    nb::class_<InputLayout>(m, "InputLayout")
        .def(
            "__init__",
            [](InputLayout* self, const std::string& kind, int64_t depth, int64_t group,
               const std::string& inputs, float step) {
                const auto shape = shape_of(kind, 1, depth, group, "F32", false, false);
                new (self) InputLayout(Packed::matrix_of(shape), inputs_named(inputs), step);
            },
            "kind"_a, "depth"_a, "group"_a, "inputs"_a, "step"_a = 0.0f)
        .def_prop_ro("row_bytes", &InputLayout::row_bytes);

    auto runtime = nb::class_<Runtime>(m, "Runtime");
    runtime
        .def(
            "__init__",
            [](Runtime* self, const std::string& isa, int threads, const std::vector<int>& cpus) {
                new (self) Runtime(kernels(isa), threads, cpus);
            },
            "isa"_a, "threads"_a, "cpus"_a)
        .def(
            "add_kv_layer",
            [](Runtime& r, int64_t kv_heads, int64_t key_dim, int64_t value_dim,
               const std::string& type, int64_t group, std::optional<int64_t> page,
               std::vector<float> factors, bool shared) {
                r.add_kv_layer(cache_of(kv_heads, key_dim, value_dim, kv_type_named(type), shared),
                               group, page.value_or(r.kv_pages()), std::move(factors));
            },
            "kv_heads"_a, "key_dim"_a, "value_dim"_a, "type"_a, "group"_a = 0,
            "page"_a = nb::none(), "factors"_a = std::vector<float>(), "shared"_a = false)
        .def("set_pause", &Runtime::set_pause, "pause"_a)
        .def("kv_bytes_per_block", nb::overload_cast<>(&Runtime::kv_bytes_per_block, nb::const_))
        .def("kv_bytes_per_block",
             nb::overload_cast<int64_t>(&Runtime::kv_bytes_per_block, nb::const_), "group"_a)
        .def(
            "read_block",
            [](const Runtime& r, int64_t block, int64_t group, const Bytes& bytes) {
                nb::gil_scoped_release release;
                r.read_block(block, group, bytes.data(), static_cast<int64_t>(bytes.size()));
            },
            "block"_a, "group"_a, "bytes"_a)
        .def(
            "write_block",
            [](Runtime& r, int64_t block, int64_t group, const RawBytes& bytes) {
                nb::gil_scoped_release release;
                r.write_block(block, group, bytes.data(), static_cast<int64_t>(bytes.size()));
            },
            "block"_a, "group"_a, "bytes"_a)
        .def("add_state_layer", &Runtime::add_state_layer, "rows"_a, "width"_a)
        .def("bytes_per_state", &Runtime::bytes_per_state)
        .def(
            "allocate_kv",
            [](Runtime& r, int64_t blocks, int64_t states) {
                r.allocate_kv(blocks);
                r.allocate_states(states);
            },
            "blocks"_a, "states"_a = 0)
        .def("copy_block", &Runtime::copy_block, "from_"_a, "to"_a)
        .def(
            "set_adapter",
            [](Runtime& r, int64_t slot, int64_t module, std::shared_ptr<Packed> a,
               std::shared_ptr<Packed> b,
               float scale) { r.set_adapter(slot, module, {std::move(a), std::move(b), scale}); },
            "slot"_a, "module"_a, "a"_a, "b"_a, "scale"_a)
        .def(
            "clear_adapter", [](Runtime& r, int64_t slot) { r.adapters().clear(slot); }, "slot"_a)
        .def_prop_ro("isa", [](const Runtime& r) { return r.kernels().name; });
    bind_draw(runtime);
    bind_program(m);
}
