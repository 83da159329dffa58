// What LoRA adapters add to linear layers: to each row what the row's adapter does, to others
// nothing.
#include <algorithm>

#include "ops/ops.hpp"

namespace galley {
namespace {

// One of the linear layers whose outputs lie side by side: its number among those that adapters
// may add to, and its columns.
struct Module {
    int64_t index, start, width;
};

class LoraOp : public Op {
  public:
    LoraOp(std::vector<Module> modules, int64_t depth, int64_t width, Slot y, Slot x, Slot z)
        : modules_(std::move(modules)), depth_(depth), width_(width), y_(y), x_(x), z_(z) {}

    void check(Execution& e) override {
        require(depth_ > 0 && width_ > 0, "a buffer has no columns");
        e.check_floats_read(y_, width_);
        e.check_floats_read(x_, depth_);
        e.check_floats_written(z_, width_);
        require(y_.offset == z_.offset && y_.stride == z_.stride && y_.column == z_.column,
                "adapters add to a buffer in its place");
        for (const Module& m : modules_) {
            require(m.start >= 0 && m.width > 0 && m.start <= width_ - m.width,
                    "a module's columns do not lie in the buffer");
            e.runtime.adapters().declare(m.index, depth_, m.width);
        }
        e.limits.adapts = true;
    }

    void run(Execution& e) const override {
        const std::vector<AdapterRows>& parts = e.adapter_rows;
        const auto modules = static_cast<int64_t>(modules_.size());
        if (parts.empty()) return;
        // Less work than this, in floats, is not worth waking another thread for.
        constexpr int64_t kShareFrom = 16384;
        const int64_t each = e.runtime.adapters().widest() * (depth_ + width_ / modules);
        const int64_t grain = std::max<int64_t>(1, kShareFrom / std::max<int64_t>(1, each));
        e.pool.run(static_cast<int64_t>(parts.size()) * modules, grain,
                   [&](int64_t begin, int64_t end, int thread) {
                       for (int64_t i = begin; i < end; ++i)
                           add(e, parts[i / modules], modules_[i % modules], thread);
                   });
    }

  private:
    void add(const Execution& e, const AdapterRows& part, const Module& module, int thread) const {
        const Adapters& adapters = e.runtime.adapters();
        const Adapters::Factors& factors = adapters.of(part.slot, module.index);
        if (!factors.a) return;
        const int64_t rows = part.end - part.begin, between = adapters.widest();
        auto* low = reinterpret_cast<float*>(e.runtime.scratch(thread));
        constexpr int64_t kFloat = sizeof(float);
        e.kernels.low_rank({&factors.a->matrix(), e.row(x_, part.begin), x_.stride / kFloat, low,
                            between, rows, factors.scale, false});
        e.kernels.low_rank({&factors.b->matrix(), low, between,
                            e.row(z_, part.begin) + module.start, z_.stride / kFloat, rows, 1.0f,
                            true});
    }

    std::vector<Module> modules_;
    int64_t depth_, width_;
    Slot y_, x_, z_;
};

}  // namespace

OpPtr make_lora(ModuleFields fields, int64_t depth, int64_t width, Slot y, Slot x, Slot z) {
    std::vector<Module> modules;
    for (const auto& [index, start, columns] : fields) modules.push_back({index, start, columns});
    require(!modules.empty(), "adapters add to no module");
    return std::make_unique<LoraOp>(std::move(modules), depth, width, y, x, z);
}

}  // namespace galley
