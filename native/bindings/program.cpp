// galley._native.Program.
#include "runtime/program.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "bindings/module.hpp"

using namespace nanobind::literals;

namespace galley {
namespace {

using FloatCube = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Whether the offsets ascend from 0 to `total`, one more than there are owners (`count`).
bool are_starts(const Ids& starts, int64_t count, size_t total) {
    if (count < 1 || static_cast<int64_t>(starts.size()) != count + 1) return false;
    return starts(0) == 0 && std::is_sorted(starts.data(), starts.data() + starts.size()) &&
           starts(count) == static_cast<int64_t>(total);
}

// The same of blocks, of which a program without a cache has none.
bool are_tables(const Ids& starts, int64_t count, size_t total) {
    if (count > 0) return are_starts(starts, count, total);
    return starts.size() == 1 && starts(0) == 0 && total == 0;
}

// Blocks, where each sequence's begin, and how many rows each sequence's encoder output has.
using CrossArrays = std::tuple<Ids, Ids, Ids>;

// Slots and rows of states, and where each sequence's begin.
using StateArrays = std::tuple<Ids, Ids>;

// Without a result yet, and no row is wanted.
Step step_of(int64_t groups, const Ids& tokens, const Ids& positions, const Ids& starts,
             const Ids& tables, const Ids& table_starts, const std::optional<CrossArrays>& cross) {
    const auto sequences = static_cast<int64_t>(starts.size()) - 1;
    if (positions.size() != tokens.size() || !are_starts(starts, sequences, tokens.size()) ||
        !are_tables(table_starts, groups * sequences, tables.size()))
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
            throw std::invalid_argument(
                "the arrays of a step's encoder outputs do not fit together");
        step.cross_tables = {blocks.data(), block_starts.data()};
        step.cross_rows = cross_rows.data();
    }
    return step;
}

void forward(Program& program, const Ids& tokens, const Ids& positions, const Ids& starts,
             const Ids& tables, const Ids& table_starts, const Ids& wanted, FloatRows logits,
             const std::optional<CrossArrays>& cross, const std::optional<Ids>& adapters,
             const std::optional<Ids>& types, const std::optional<StateArrays>& states) {
    Step step =
        step_of(program.kv_groups(), tokens, positions, starts, tables, table_starts, cross);
    if (types && types->size() != tokens.size())
        throw std::invalid_argument("there is not one type for each token");
    step.types = types ? types->data() : nullptr;
    if (logits.shape(0) != wanted.size() ||
        static_cast<int64_t>(logits.shape(1)) != program.vocab_size())
        throw std::invalid_argument("logits have the wrong shape");
    if (adapters && static_cast<int64_t>(adapters->size()) != step.sequences)
        throw std::invalid_argument("a step has an adapter, or none, for each sequence");
    step.adapters = adapters ? adapters->data() : nullptr;
    if (states) {
        const auto& [slots, slot_starts] = *states;
        if (!are_starts(slot_starts, step.sequences, slots.size()))
            throw std::invalid_argument("the arrays of a step's states do not fit together");
        step.states = {slots.data(), slot_starts.data()};
    }
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
            const Ids& table_starts, std::optional<FloatRows> given) {
    const auto inputs = static_cast<int64_t>(starts.size()) - 1;
    if (!are_starts(starts, inputs, frames.shape(0)) ||
        static_cast<int64_t>(frames.shape(1)) != program.mels() ||
        !are_starts(table_starts, inputs, tables.size()))
        throw std::invalid_argument("the arrays of encoder inputs do not fit together");
    const EncoderInputs all = {frames.data(),
                               starts.data(),
                               inputs,
                               {tables.data(), table_starts.data()},
                               given ? given->data() : nullptr};
    if (given && (static_cast<int64_t>(given->shape(0)) != program.encoded_rows(all) ||
                  static_cast<int64_t>(given->shape(1)) != program.given_width()))
        throw std::invalid_argument("the rows that are given have the wrong shape");
    nb::gil_scoped_release release;
    program.encode(all);
}

}  // namespace

void bind_program(nb::module_& m) {
    auto program = nb::class_<Program>(m, "Program");
    program
        .def(nb::init<std::shared_ptr<Runtime>, int64_t, int64_t>(), "runtime"_a, "arena_bytes"_a,
             "vocab_size"_a)
        .def("forward", &forward, "tokens"_a, "positions"_a, "starts"_a, "tables"_a,
             "table_starts"_a, "wanted"_a, "logits"_a, "cross"_a.none() = nb::none(),
             "adapters"_a.none() = nb::none(), "types"_a.none() = nb::none(),
             "states"_a.none() = nb::none())
        .def("align", &align, "tokens"_a, "positions"_a, "starts"_a, "tables"_a, "table_starts"_a,
             "attention"_a.noconvert(), "cross"_a)
        .def("encode", &encode, "frames"_a, "starts"_a, "tables"_a, "table_starts"_a,
             "given"_a.none() = nb::none());
    bind_ops(program);
}

}  // namespace galley
