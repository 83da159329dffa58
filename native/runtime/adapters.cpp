#include "runtime/adapters.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace galley {
namespace {

constexpr int64_t kMost = 1 << 16;  // slots, and modules

void require_that(bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(what);
}

}  // namespace

std::vector<std::shared_ptr<Packed>> joined(const std::vector<std::shared_ptr<Packed>>& parts) {
    int64_t bytes = 0;
    for (const auto& part : parts) bytes += round_up(part->bytes(), 64);
    const auto memory = std::make_shared<Memory>(bytes);
    std::vector<std::shared_ptr<Packed>> made;
    uint8_t* at = memory->data();
    for (const auto& part : parts) {
        const Matrix& m = part->matrix();
        require_that(!is_integer(m.kind), "matrices that are joined are floats");
        std::memcpy(at, part->data(), part->bytes());
        const Packed::Shape shape = {m.kind, m.outputs, m.depth, 0, m.scale_type, false, false};
        made.push_back(std::make_shared<Packed>(shape, at, part->bytes(), memory));
        at += round_up(part->bytes(), 64);
    }
    return made;
}

void Adapters::declare(int64_t module, int64_t depth, int64_t outputs) {
    require_that(module >= 0 && module < kMost, "a module of adapters is out of range");
    require_that(depth > 0 && outputs > 0, "a module of adapters has no columns");
    if (module >= static_cast<int64_t>(modules_.size())) modules_.resize(module + 1);
    Module& declared = modules_[module];
    if (!declared.depth) declared = {depth, outputs};
    require_that(declared.depth == depth && declared.outputs == outputs,
                 "a module of adapters has two shapes");
}

void Adapters::set(int64_t slot, int64_t module, Factors factors) {
    require_that(slot >= 0 && slot < kMost, "an adapter's slot is out of range");
    require_that(module >= 0 && module < static_cast<int64_t>(modules_.size()),
                 "a module of adapters does not exist");
    const Matrix &a = factors.a->matrix(), &b = factors.b->matrix();
    require_that(!is_integer(a.kind) && a.kind == b.kind, "an adapter's factors are floats");
    require_that(a.depth == modules_[module].depth && b.outputs == modules_[module].outputs &&
                     a.outputs == b.depth,
                 "an adapter's factors do not fit the module");
    if (slot >= slots()) slots_.resize(slot + 1);
    slots_[slot].resize(modules_.size());
    widest_ = std::max(widest_, round_up(a.outputs, kLanes));
    slots_[slot][module] = std::move(factors);
}

void Adapters::clear(int64_t slot) {
    require_that(slot >= 0 && slot < kMost, "an adapter's slot is out of range");
    if (slot >= slots()) slots_.resize(slot + 1);
    slots_[slot].assign(modules_.size(), {});
}

const Adapters::Factors& Adapters::of(int64_t slot, int64_t module) const {
    static const Factors nothing;
    const std::vector<Factors>& modules = slots_[slot];
    return module < static_cast<int64_t>(modules.size()) ? modules[module] : nothing;
}

}  // namespace galley
