// Attention within encoder inputs and whole texts: a row sees all rows, or those near it.
#include <algorithm>

#include "ops/attend.hpp"
#include "ops/ops.hpp"

namespace galley {
namespace {

class EncoderAttentionOp : public Op {
  public:
    // `cache`: of one layer's keys and values while it runs; its data is Runtime's.
    // A row sees `before` rows before it and `after` after it; -1: all.
    EncoderAttentionOp(Cache cache, int64_t heads, float scale, int64_t before, int64_t after,
                       Slot q, Slot k, Slot v, Slot y)
        : cache_(cache),
          heads_(heads),
          scale_(scale),
          before_(before),
          after_(after),
          q_(q),
          k_(k),
          v_(v),
          y_(y) {}

    void check(Execution& e) override {
        require(before_ >= -1 && after_ >= -1, "a row sees a negative number of rows");
        e.limits.whole_texts = true;
        check_kv(e, cache_, k_, v_);
        check_attention(e, cache_, heads_, q_, y_);
    }

    void run(Execution& e) const override {
        const Tables tables = {e.input_blocks.data(), e.input_block_starts.data()};
        const int64_t blocks = e.input_block_starts.back();
        Cache cache = cache_;
        cache.data = e.runtime.encoder_kv(blocks * cache.kv_heads * cache.head_bytes);
        write_all_kv(e, cache, tables, k_, v_);
        if (cache.type == KvType::kPairs) fill_pairs(e, cache, tables);
        attend_all(
            e, {cache, tables, e.plan, heads_, scale_, reach(), 0.0f, nullptr, q_, y_, after()});
    }

  private:
    // More rows than there are.
    static constexpr int64_t kAll = int64_t{1} << 40;

    int64_t after() const { return before_ < 0 && after_ < 0 ? 0 : after_ < 0 ? kAll : after_; }
    Reach reach() const {
        if (before_ < 0 && after_ < 0) return {};
        return {(before_ < 0 ? kAll : before_) + 1 + after(), false};
    }

    // An input's last value may have no neighbor; what lies there has no weight, but might be
    // infinite.
    static void fill_pairs(Execution& e, const Cache& cache, const Tables& tables) {
        e.zeros.resize(cache.kv_heads * std::max(cache.key_dim, cache.value_dim));
        for (int64_t input = 0; input < e.step.sequences; ++input) {
            const int64_t rows = e.step.starts[input + 1] - e.step.starts[input];
            if (rows % 2)
                e.kernels.write_kv(cache, e.zeros.data(), e.zeros.data(),
                                   tables.of(input)[rows / kBlockTokens], rows % kBlockTokens);
        }
    }

    Cache cache_;
    int64_t heads_;
    float scale_;
    int64_t before_, after_;
    Slot q_, k_, v_, y_;
};

}  // namespace

OpPtr make_encoder_attention(int64_t heads, int64_t kv_heads, int64_t key_dim, int64_t value_dim,
                             float scale, int64_t before, int64_t after, bool exact, Slot q, Slot k,
                             Slot v, Slot y) {
    require(kv_heads > 0 && key_dim > 0 && value_dim > 0, "a head has no columns");
    const KvType type = exact ? KvType::kF32 : KvType::kPairs;
    return std::make_unique<EncoderAttentionOp>(cache_of(kv_heads, key_dim, value_dim, type), heads,
                                                scale, before, after, q, k, v, y);
}

}  // namespace galley
