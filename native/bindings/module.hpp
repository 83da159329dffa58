// What crosses from Python: arrays, and the parts of galley._native.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "runtime/program.hpp"

namespace galley {

namespace nb = nanobind;

using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RawBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// What sampling asks of one row (runtime/sampling.hpp).
void bind_sampling(nb::module_& m);

// Drawing tokens (runtime/draws.hpp).
void bind_draw(nb::class_<Runtime>& runtime);

// Program (runtime/program.hpp), once Packed and Runtime are there.
void bind_program(nb::module_& m);

// Its methods that append ops (ops/ops.hpp).
void bind_ops(nb::class_<Program>& program);

}  // namespace galley
