// Sampling, for Python.
#include "runtime/sampling.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "bindings/module.hpp"
#include "kernels/isa.hpp"
#include "runtime/draws.hpp"

using namespace nanobind::literals;

namespace galley {
namespace {

template <class T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> draw(Runtime& runtime, const FloatTable& logits, std::vector<int64_t> rows,
                          std::vector<int64_t> positions, const nb::bytes& records) {
    Draws draws = {std::move(rows), std::move(positions), {}};
    if (records.size() % sizeof(SamplingRecord))
        throw std::invalid_argument("a sampling record is cut off");
    draws.records.resize(records.size() / sizeof(SamplingRecord));
    std::memcpy(draws.records.data(), records.c_str(), records.size());
    nb::gil_scoped_release release;
    return draw_tokens(runtime.pool(), runtime.kernels(), logits.data(),
                       static_cast<int64_t>(logits.shape(0)), static_cast<int64_t>(logits.shape(1)),
                       draws);
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def(
        "top_k",
        [](const Floats& row, const std::string& isa, Out<int64_t> ids) {
            if (ids.size() > row.size()) throw std::invalid_argument("more ids than elements");
            top_k(kernels(isa), row.data(), row.size(), ids.size(), ids.data());
        },
        "row"_a.noconvert(), "isa"_a, "ids"_a.noconvert());
    m.def(
        "sum_exp",
        [](const Floats& row, double most, const std::string& isa) {
            return kernels(isa).sum_exp(row.data(), row.size(), most);
        },
        "row"_a.noconvert(), "most"_a, "isa"_a);
    m.def(
        "softmax_weights",
        [](const Floats& row, float most, float scale, const std::string& isa,
           Out<int32_t> weights) {
            if (weights.size() != row.size()) throw std::invalid_argument("one weight for each");
            return kernels(isa).softmax_weights(row.data(), row.size(), most, scale,
                                                weights.data());
        },
        "row"_a.noconvert(), "most"_a, "scale"_a, "isa"_a, "weights"_a.noconvert());
}

void bind_draw(nb::class_<Runtime>& runtime) {
    runtime.def("draw", &draw, "logits"_a.noconvert(), "rows"_a, "positions"_a, "records"_a);
}

}  // namespace galley
