// The ops of a program: each function makes one from the fields of its Python method, in their
// order. All throw std::invalid_argument for fields that contradict each other.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/execution.hpp"
#include "runtime/expert_cache.hpp"
#include "system/communicator.hpp"

namespace galley {

using OpPtr = std::unique_ptr<Op>;
using Values = std::vector<float>;
using MaybeValues = std::optional<Values>;
// Matrices, each with what its inputs become; none: floats.
using WeightFields = std::vector<std::tuple<Weights, std::optional<SharedLayout>>>;
// Linear layers whose outputs are columns of one buffer: their numbers among those that adapters
// may add to, first columns and widths.
using ModuleFields = std::vector<std::tuple<int64_t, int64_t, int64_t>>;

using SharedCommunicator = std::shared_ptr<Communicator>;

// Puts the columns of all ranks side by side; rank r has `widths[r]` of them.
class Gather {
  public:
    // `leader_only`: other ranks than the first do not need the result. Throws
    // std::invalid_argument.
    Gather(SharedCommunicator communicator, std::vector<int64_t> widths, bool leader_only);

    int64_t own() const { return widths_[communicator_->rank()]; }
    int64_t width() const;
    int64_t first_own() const { return first(communicator_->rank()); }
    // Of floats. Rows of x are this rank's columns; they may already lie in their place in y.
    void run(Pool& pool, int64_t rows, const uint8_t* x, int64_t x_stride, uint8_t* y,
             int64_t y_stride) const;

  private:
    int64_t widest() const;
    int64_t first(int rank) const;

    SharedCommunicator communicator_;
    std::vector<int64_t> widths_;
    bool leader_only_;
};

// `layout` is null where the result, or x of `linear`, is floats.
OpPtr make_add_layer_norm(Values weight, MaybeValues bias, float eps, int64_t head_dim,
                          SharedLayout layout, Slot a, Slot b, Slot sum, Slot y);
OpPtr make_add_rms_norm(Values weight, float eps, int64_t width, SharedLayout layout, Slot a,
                        Slot b, Slot sum, Slot y);
OpPtr make_all_gather(SharedCommunicator communicator, std::vector<int64_t> widths,
                      bool leader_only, Slot x, Slot y);
OpPtr make_attention(MaybeValues sinks, int64_t layer, int64_t heads, float scale, int64_t window,
                     bool chunked, float cap, Slot q, Slot k, Slot v, Slot y);
OpPtr make_causal_conv(Values weight, MaybeValues bias, int64_t state, int64_t size, int64_t width,
                       Slot x, Slot y);
OpPtr make_cross_attention(int64_t layer, int64_t heads, float scale, Slot q, Slot y);
OpPtr make_cross_kv(int64_t layer, Slot k, Slot v);
OpPtr make_cross_weights(int64_t layer, int64_t heads, std::vector<int64_t> chosen, int64_t first,
                         float scale, Slot q);
OpPtr make_delta_rule(Values a_log, Values dt_bias, int64_t state, int64_t heads, int64_t groups,
                      Slot q, Slot k, Slot v, Slot a, Slot b, Slot y);
// `name`: of a kernel in kernels/elementwise.cpp, which stays; `b`: none for an op of one input.
OpPtr make_elementwise(const char* name, float number, int64_t width, SharedLayout layout, Slot a,
                       std::optional<Slot> b, Slot y);
OpPtr make_embed(Weights weight, Slot y);
OpPtr make_embed_part(Weights weight, std::vector<int64_t> ranks, SharedCommunicator communicator,
                      Slot y);
OpPtr make_embed_positions(Values weight, int64_t first, int64_t width, Slot y);
OpPtr make_embed_types(Values weight, int64_t width, Slot y);
OpPtr make_encoder_attention(int64_t heads, int64_t kv_heads, int64_t key_dim, int64_t value_dim,
                             float scale, int64_t before, int64_t after, bool exact, Slot q, Slot k,
                             Slot v, Slot y);
OpPtr make_encoder_rows(int64_t width, Slot x);
OpPtr make_experts(WeightFields gate, WeightFields up, WeightFields down, MaybeValues gate_bias,
                   MaybeValues up_bias, MaybeValues down_bias, int64_t per_token, float alpha,
                   float limit, bool scaled_inputs, std::vector<int64_t> widths,
                   SharedCommunicator communicator, std::shared_ptr<ExpertCache> cache, Slot work,
                   Slot x, Slot routes, Slot y);
OpPtr make_features(int64_t mels, Slot y);
OpPtr make_scale_queries_by_position(int64_t interval, float factor, int64_t width, Slot x, Slot y);
OpPtr make_head_columns(int64_t start, int64_t size, int64_t stride, int64_t width, Slot x, Slot y);
OpPtr make_head_linear(WeightFields weight, Slot work, Slot x, Slot y);
OpPtr make_im2col(int64_t channels, int64_t size, int64_t stride, Slot x, Slot y);
OpPtr make_join_heads(int64_t heads, int64_t size, int64_t width, Slot a, Slot b, Slot y);
OpPtr make_layer_norm(Values weight, MaybeValues bias, float eps, int64_t head_dim,
                      SharedLayout layout, Slot x, Slot y);
OpPtr make_linear(Weights weight, MaybeValues bias, SharedLayout layout, Slot x, Slot y);
OpPtr make_lora(ModuleFields modules, int64_t depth, int64_t width, Slot y, Slot x, Slot z);
OpPtr make_quantize_input(SharedLayout layout, Slot x, Slot y);
OpPtr make_rms_norm(Values weight, float eps, int64_t width, SharedLayout layout, Slot x, Slot y);
OpPtr make_rope(std::vector<double> inv_freq, float scale, bool adjacent, int64_t head_dim,
                int64_t width, Slot x, Slot y);
OpPtr make_rope_attention(std::vector<double> inv_freq, float rope_scale, bool adjacent,
                          MaybeValues sinks, int64_t layer, int64_t heads, float scale,
                          int64_t window, bool chunked, float cap, Slot q, Slot k, Slot v,
                          Slot turned, Slot y);
OpPtr make_route(MaybeValues bias, int64_t experts, int64_t per_token, std::string scores,
                 bool normalize, float factor, int64_t groups, int64_t kept_groups,
                 int64_t group_best, Slot x, Slot y);
OpPtr make_select_rows(int64_t width, Slot x, Slot y);
OpPtr make_sigmoid_scale(int64_t width, Slot x, Slot gate, Slot y);
OpPtr make_ssm(Values a_log, Values dt_bias, Values skip, int64_t state, int64_t heads,
               int64_t groups, Slot x, Slot b, Slot c, Slot dt, Slot y);

}  // namespace galley
