// A model as a list of ops over one arena, run in one call.
#pragma once

#include <memory>
#include <vector>

#include "runtime/execution.hpp"

namespace galley {

class Program {
  public:
    // As Execution's constructor.
    Program(std::shared_ptr<Runtime> runtime, int64_t arena_bytes, int64_t vocab_size);

    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // Checks the op: throws std::invalid_argument as Op::check. Attention's layer must be there
    // already.
    void append(std::unique_ptr<Op> op);

    // Both throw std::invalid_argument, before anything is computed, for what does not fit
    // together.
    void forward(const Step& step);
    // Of a program that begins with `features`.
    void encode(const EncoderInputs& inputs);

    const Kernels& kernels() const { return execution_.kernels; }
    int64_t kv_groups() const { return execution_.runtime.kv_groups(); }
    int64_t vocab_size() const { return execution_.vocab_size; }
    int64_t aligned_heads() const { return limits().aligned_heads; }
    int64_t mels() const { return limits().mels; }
    int64_t given_width() const { return limits().given_width; }
    // Of the encoder's outputs, all of them.
    int64_t encoded_rows(const EncoderInputs& inputs) const;

  private:
    const Limits& limits() const { return execution_.limits; }
    void check(const Step& step) const;
    void check_cross(const Step& step) const;
    void check_states(const Step& step) const;
    void check(const EncoderInputs& inputs) const;
    void check_blocks(const Tables& tables, int64_t count) const;
    int64_t encoded_rows(int64_t frames) const;
    void run_ops();

    std::shared_ptr<Runtime> runtime_;
    Execution execution_;
    std::vector<std::unique_ptr<Op>> ops_;
};

}  // namespace galley
