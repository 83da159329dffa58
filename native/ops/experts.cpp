// Mixtures of experts: the rows of a step, grouped by expert, so that weights are read once.
//
// A row that goes to k experts becomes k rows, which lie in the order of their experts:
//
//   x of the rows, as gate and up want it    later: what down makes of them
//   gate's product, then silu(gate) * up
//   up's product                             later: that, as down wants it
//
// Rows of one expert are rows of one linear layer, whose kernels keep them independent. A row's
// results are added up in the order of its choices.
//
// Of several ranks, each has rows of gate, up and down. The products of gate and up are gathered,
// as down reads all of their columns; the result is this rank's columns of y.
//
// Experts may stay in a file (ExpertCache): those that the rows chose are then read first, unless
// they are in memory still.
#include <algorithm>

#include "ops/ops.hpp"
#include "runtime/expert_cache.hpp"

namespace galley {
namespace {

constexpr int64_t kCoreCache = 512 << 10;

// A matrix, and what its inputs become; null: floats.
struct Product {
    Weights weight;
    SharedLayout layout;
    std::vector<float> bias;         // empty, or padded to whole blocks
    const Matrix* cached = nullptr;  // where the expert cache keeps it

    const Matrix& matrix() const { return cached ? *cached : weight->matrix(); }

    int64_t input_bytes() const {
        return round_up(layout ? layout->row_bytes() : 4 * weight->matrix().depth, 64);
    }
    void check(int64_t outputs, int64_t depth) const {
        const Matrix& m = weight->matrix();
        require(m.outputs == outputs && m.depth == depth, "experts differ in size");
        require(!layout || layout->suits(m), "x is quantized for other weights");
        require(cached || weight->data(), "an expert is in a file, and there is no cache");
    }
    void take(const Kernels& kernels, const float* x, uint8_t* row) const {
        if (layout)
            layout->write(kernels, x, row);
        else
            std::copy_n(x, weight->matrix().depth, reinterpret_cast<float*>(row));
    }
};

using Products = std::vector<Product>;
using SharedCache = std::shared_ptr<ExpertCache>;

// How gate and up meet: silu(gate) * up, or if there is a limit, as in gpt-oss, both clamped to it,
// gate * sigmoid(alpha * gate) * (up + 1).
// `scaled_inputs`: a row's weight scales what its expert reads. Without biases that is scaling both
// products.
struct Gating {
    float alpha, limit;
    bool scaled_inputs;

    // What silu(gate) * up is that, of both.
    void prepare(int64_t width, float weight, float* gate, float* up) const {
        if (scaled_inputs)
            for (int64_t i = 0; i < width; ++i) {
                gate[i] *= weight;
                up[i] *= weight;
            }
        if (limit == 0.0f) return;
        for (int64_t i = 0; i < width; ++i) {
            gate[i] = alpha * std::min(gate[i], limit);
            up[i] = (std::min(std::max(up[i], -limit), limit) + 1.0f) / alpha;
        }
    }
};

// Rows some bytes apart.
struct Rows {
    uint8_t* data;
    int64_t stride;

    uint8_t* at(int64_t i) const { return data + i * stride; }
    float* floats(int64_t i) const { return reinterpret_cast<float*>(at(i)); }
};

class ExpertsOp : public Op {
  public:
    ExpertsOp(Products gate, Products up, Products down, int64_t per_token, Gating gating,
              std::optional<Gather> gather, SharedCache cache, Slot work, Slot x, Slot routes,
              Slot y)
        : gate_(std::move(gate)),
          up_(std::move(up)),
          down_(std::move(down)),
          per_token_(per_token),
          gating_(gating),
          gather_(std::move(gather)),
          cache_(std::move(cache)),
          work_(work),
          x_(x),
          routes_(routes),
          y_(y) {}

    void check(Execution& e) override {
        require(!gate_.empty() && up_.size() == gate_.size() && down_.size() == gate_.size(),
                "each expert has three matrices");
        require(per_token_ > 0 && per_token_ <= experts(),
                "more experts are chosen than there are");
        if (cache_) add_to_cache();
        require(gating_.limit >= 0.0f && gating_.alpha > 0.0f, "a limit is negative");
        require(!gating_.scaled_inputs || (gate_[0].bias.empty() && up_[0].bias.empty()),
                "experts with biases have scaled inputs");
        const int64_t hidden = gate_[0].weight->matrix().depth;
        width_ = gate_[0].weight->matrix().outputs;
        inner_ = down_[0].weight->matrix().depth;
        made_ = down_[0].weight->matrix().outputs;
        require(gather_ ? gather_->own() == width_ && gather_->width() == inner_ : width_ == inner_,
                "down is not as deep as gate is wide");
        if (gather_) first_ = gather_->first_own();
        for (int64_t n = 0; n < experts(); ++n) {
            gate_[n].check(width_, hidden);
            up_[n].check(width_, hidden);
            down_[n].check(made_, inner_);
            gate_bytes_ = std::max(gate_bytes_, gate_[n].input_bytes());
            up_bytes_ = std::max(up_bytes_, up_[n].input_bytes());
            down_bytes_ = std::max(down_bytes_, down_[n].input_bytes());
            shared_ &= gate_[n].layout == up_[n].layout;
        }
        silu_mul_ = e.kernels.elementwise_named("silu_mul");
        e.check_floats_read(x_, hidden);
        e.check_floats_read(routes_, 2 * per_token_);
        e.check_written(work_, per_token_ * (outer_bytes() + inner_bytes() + second_bytes()));
        e.check_floats_written(y_, made_);
        e.runtime.need_scratch(kLinearScratch);
    }

    void run(Execution& e) const override {
        group(e);
        if (cache_) read_chosen(e);
        const int64_t count = e.rows * per_token_;
        uint8_t* work = e.at(work_);
        const Rows x = {work, gate_bytes_};
        const Rows x_up = shared_ ? x : Rows{work + count * gate_bytes_, up_bytes_};
        const Rows made = {work, made_bytes()};
        const Rows gate = {work + count * outer_bytes(), inner_bytes()};
        const Rows own = {gate.data + 4 * first_, inner_bytes()};
        const Rows up = {gate.at(count), second_bytes()};
        each(e, gate_[0].weight->matrix().depth, [&](int64_t i, int64_t expert, int64_t row) {
            gate_[expert].take(e.kernels, e.row(x_, row), x.at(i));
            if (!shared_) up_[expert].take(e.kernels, e.row(x_, row), x_up.at(i));
        });
        items(e).clear();
        add_items(e, gate_, x, own);
        add_items(e, up_, x_up, up);
        multiply(e);
        const auto combine = [&](int64_t i, int64_t expert, int64_t row) {
            const float weight = gating_.scaled_inputs ? weight_of(e, row, expert) : 1.0f;
            gating_.prepare(width_, weight, own.floats(i), up.floats(i));
            silu_mul_->run(own.floats(i), up.floats(i), 0.0f, width_, own.floats(i));
        };
        const auto take = [&](int64_t i, int64_t expert, int64_t) {
            down_[expert].take(e.kernels, gate.floats(i), up.at(i));
        };
        if (gather_) {
            each(e, 4 * width_, combine);
            gather_->run(e.pool, count, own.data, own.stride, gate.data, gate.stride);
            each(e, inner_, take);
        } else {
            each(e, 4 * width_, [&](int64_t i, int64_t expert, int64_t row) {
                combine(i, expert, row);
                take(i, expert, row);
            });
        }
        items(e).clear();
        add_items(e, down_, up, made);
        multiply(e);
        e.each_row(per_token_ * made_, [&](int64_t r, int) { add_up(e, made, r); });
    }

  private:
    using Item = ExpertGroups::Item;

    int64_t experts() const { return static_cast<int64_t>(gate_.size()); }
    int64_t outer_bytes() const { return std::max(gate_bytes_ + up_bytes_, made_bytes()); }
    int64_t made_bytes() const { return round_up(4 * made_, 64); }
    int64_t inner_bytes() const { return round_up(4 * inner_, 64); }
    int64_t second_bytes() const { return std::max(inner_bytes(), down_bytes_); }
    static std::vector<Item>& items(Execution& e) { return e.experts.items; }

    void add_to_cache() {
        require(experts() <= cache_->slots(), "a layer has more experts than the cache has slots");
        for (int64_t n = 0; n < experts(); ++n) {
            const int64_t number = cache_->add({gate_[n].weight, up_[n].weight, down_[n].weight});
            if (n == 0) first_cached_ = number;
            gate_[n].cached = cache_->matrix(number, 0);
            up_[n].cached = cache_->matrix(number, 1);
            down_[n].cached = cache_->matrix(number, 2);
        }
    }

    void read_chosen(Execution& e) const {
        ExpertGroups& g = e.experts;
        g.wanted.clear();
        for (int64_t n = 0; n < experts(); ++n)
            if (g.starts[n] < g.starts[n + 1]) g.wanted.push_back(first_cached_ + n);
        cache_->take(g.wanted, e.pool);
    }

    // Sorts the choices of all rows by expert, then by row.
    void group(Execution& e) const {
        ExpertGroups& g = e.experts;
        g.starts.assign(experts() + 1, 0);
        g.rows.resize(e.rows * per_token_);
        g.chosen.resize(g.rows.size());
        g.places.resize(g.rows.size());
        for (int64_t r = 0; r < e.rows; ++r)
            for (int64_t i = 0; i < per_token_; ++i) {
                const float number = e.row(routes_, r)[i];
                const bool exists = number >= 0.0f && number < static_cast<float>(experts());
                const int64_t expert = exists ? static_cast<int64_t>(number) : 0;
                g.places[r * per_token_ + i] = expert;
                ++g.starts[expert + 1];
            }
        for (int64_t n = 0; n < experts(); ++n) g.starts[n + 1] += g.starts[n];
        g.next = g.starts;
        for (size_t choice = 0; choice < g.places.size(); ++choice) {
            const int64_t expert = g.places[choice], i = g.next[expert]++;
            g.places[choice] = i;
            g.rows[i] = static_cast<int64_t>(choice) / per_token_;
            g.chosen[i] = expert;
        }
    }

    // body(i, expert, row) for each choice in their order; `width` floats of work.
    template <class Body>
    void each(Execution& e, int64_t width, const Body& body) const {
        constexpr int64_t kShareFrom = 16384;
        const ExpertGroups& g = e.experts;
        const auto count = static_cast<int64_t>(g.rows.size());
        e.pool.run(count, std::max<int64_t>(1, kShareFrom / width),
                   [&](int64_t begin, int64_t end, int) {
                       for (int64_t i = begin; i < end; ++i) body(i, g.chosen[i], g.rows[i]);
                   });
    }

    // A matrix of each expert that has rows.
    void add_items(Execution& e, const Products& products, const Rows& x, const Rows& y) const {
        const ExpertGroups& g = e.experts;
        for (int64_t n = 0; n < experts(); ++n) {
            const int64_t first = g.starts[n], rows = g.starts[n + 1] - first;
            if (!rows) continue;
            const Product& p = products[n];
            const Matrix& m = p.matrix();
            const Activations in = {x.at(first), x.stride, p.layout ? p.layout->sums() : 0,
                                    p.layout ? p.layout->inputs() : Inputs::kFloats};
            const float* bias = p.bias.empty() ? nullptr : p.bias.data();
            const Linear linear = {&m, in, bias, y.floats(first), y.stride / int64_t{4}, rows};
            const int64_t blocks = round_up(m.outputs, kLanes) / kLanes;
            // Each item reads all rows: those that no cache of a core holds are read by fewer.
            const int64_t grain = rows * x.stride <= kCoreCache ? kBlocksPerItem : kMostBlocks;
            for (int64_t begin = 0; begin < blocks; begin += grain)
                items(e).push_back({linear, begin, std::min(begin + grain, blocks)});
        }
    }

    void multiply(Execution& e) const {
        const auto& all = items(e);
        e.pool.run(static_cast<int64_t>(all.size()), 1,
                   [&](int64_t begin, int64_t end, int thread) {
                       for (int64_t i = begin; i < end; ++i)
                           e.kernels.linear(all[i].linear, all[i].begin, all[i].end,
                                            e.runtime.scratch(thread));
                   });
    }

    // With which a row counts for an expert that it chose; 1 if that stands in for one that does
    // not exist.
    float weight_of(const Execution& e, int64_t row, int64_t expert) const {
        const float* routes = e.row(routes_, row);
        const float* found = std::find(routes, routes + per_token_, static_cast<float>(expert));
        return found == routes + per_token_ ? 1.0f : found[per_token_];
    }

    void add_up(const Execution& e, const Rows& made, int64_t r) const {
        const float* weights = e.row(routes_, r) + per_token_;
        const int64_t* places = e.experts.places.data() + r * per_token_;
        float* y = e.row(y_, r);
        for (int64_t i = 0; i < per_token_; ++i) {
            const float* from = made.floats(places[i]);
            const float weight = gating_.scaled_inputs ? 1.0f : weights[i];
            if (i == 0)
                for (int64_t c = 0; c < made_; ++c) y[c] = weight * from[c];
            else
                for (int64_t c = 0; c < made_; ++c) y[c] += weight * from[c];
        }
    }

    Products gate_, up_, down_;
    int64_t per_token_;
    Gating gating_;
    std::optional<Gather> gather_;  // of several ranks
    SharedCache cache_;             // null: all experts are in memory
    int64_t first_cached_ = 0;
    // Columns of the products of gate and up here, the first of them among all, which down reads,
    // and columns of the result.
    int64_t width_ = 0, first_ = 0, inner_ = 0, made_ = 0;
    int64_t gate_bytes_ = 0, up_bytes_ = 0, down_bytes_ = 0;  // of a row of inputs
    bool shared_ = true;                                      // gate and up want the same of x
    const Elementwise* silu_mul_ = nullptr;
    Slot work_, x_, routes_, y_;
};

// `biases`: one expert's after another's, or none.
Products products(const WeightFields& fields, const MaybeValues& biases) {
    Products all;
    const float* bias = biases ? biases->data() : nullptr;
    int64_t left = biases ? static_cast<int64_t>(biases->size()) : 0;
    for (const auto& [weight, layout] : fields) {
        all.push_back({weight, layout.value_or(nullptr), {}});
        if (!bias) continue;
        const int64_t outputs = weight->matrix().outputs;
        require(left >= outputs, "biases have the wrong size");
        all.back().bias.assign(bias, bias + outputs);
        all.back().bias.resize(round_up(outputs, kLanes));
        bias += outputs;
        left -= outputs;
    }
    require(left == 0, "biases have the wrong size");
    return all;
}

}  // namespace

OpPtr make_experts(WeightFields gate, WeightFields up, WeightFields down, MaybeValues gate_bias,
                   MaybeValues up_bias, MaybeValues down_bias, int64_t per_token, float alpha,
                   float limit, bool scaled_inputs, std::vector<int64_t> widths,
                   SharedCommunicator communicator, std::shared_ptr<ExpertCache> cache, Slot work,
                   Slot x, Slot routes, Slot y) {
    std::optional<Gather> gather;
    if (!widths.empty()) gather.emplace(std::move(communicator), std::move(widths), false);
    return std::make_unique<ExpertsOp>(products(gate, gate_bias), products(up, up_bias),
                                       products(down, down_bias), per_token,
                                       Gating{alpha, limit, scaled_inputs}, std::move(gather),
                                       std::move(cache), work, x, routes, y);
}

}  // namespace galley
