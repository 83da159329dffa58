// What the programs of a model share: kernels, threads, keys and values, working memory.
#pragma once

#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"
#include "runtime/adapters.hpp"
#include "system/memory.hpp"
#include "system/pool.hpp"

namespace galley {

// A layer's cache, laid out but without memory. Values that are `shared` are the first columns of
// keys: throws std::invalid_argument if keys have fewer, or for kPairs.
Cache cache_of(int64_t kv_heads, int64_t key_dim, int64_t value_dim, KvType type,
               bool shared = false);

class Runtime {
  public:
    // As Pool's constructor.
    Runtime(const Kernels& kernels, int threads, const std::vector<int>& cpus);

    const Kernels& kernels() const { return kernels_; }
    Pool& pool() { return pool_; }

    // Called between two ops, about once a millisecond: it may wait, for others who want the
    // cores. Nothing is called by default.
    void set_pause(std::function<void()> pause) { pause_ = std::move(pause); }
    void pause() {
        if (pause_) pause_if_due();
    }

    // A layer of KV group `group` (see galley.graph.program.KVGroup). Layers of different groups
    // with the same `page` share its memory: a block belongs to one group at a time. Throws
    // std::invalid_argument if their blocks differ in size, or pages do not follow each other.
    // `cache`: as cache_of() makes it; `factors`: as Cache has them, or none.
    void add_kv_layer(const Cache& cache, int64_t group, int64_t page, std::vector<float> factors);
    int64_t kv_groups() const { return groups_; }
    int64_t kv_pages() const { return static_cast<int64_t>(pages_.size()); }
    int64_t kv_layers() const { return static_cast<int64_t>(layers_.size()); }
    int64_t kv_bytes_per_block() const;
    void allocate_kv(int64_t blocks);
    int64_t kv_blocks() const { return blocks_; }
    // What a layer keeps of a sequence in a state of fixed size: [rows][width] floats, zeros at
    // first.
    struct StateLayer {
        int64_t rows, width;
        int64_t stride;  // width, rounded up to whole vectors
        Memory memory;

        int64_t floats() const { return rows * stride; }
        float* at(int64_t slot) const {
            return reinterpret_cast<float*>(memory.data()) + slot * floats();
        }
    };
    void add_state_layer(int64_t rows, int64_t width);
    int64_t state_layers() const { return static_cast<int64_t>(states_.size()); }
    // Of all layers.
    int64_t bytes_per_state() const;
    // Slots for so many states.
    void allocate_states(int64_t slots);
    int64_t state_slots() const { return state_slots_; }
    // Throws std::out_of_range for a layer that was not added.
    const StateLayer& state(int64_t layer) const { return states_.at(layer); }
    // Copies block `from` in every page. Throws std::out_of_range for a block that does not
    // exist.
    void copy_block(int64_t from, int64_t to);
    // A block as bytes, to be stored elsewhere: its part of each page that a layer of `group` has,
    // in the order of the pages. Another thread may copy blocks that no step uses.
    int64_t kv_bytes_per_block(int64_t group) const;
    // Throws std::out_of_range for a block that does not exist, and std::invalid_argument for
    // another number of bytes.
    void read_block(int64_t block, int64_t group, uint8_t* bytes, int64_t size) const;
    void write_block(int64_t block, int64_t group, const uint8_t* bytes, int64_t size);
    // Throws std::out_of_range for a layer that was not added.
    const Cache& cache(int64_t layer) const { return layers_.at(layer).cache; }
    int64_t group_of(int64_t layer) const { return layers_.at(layer).group; }

    // Set between two steps alone.
    Adapters& adapters() { return adapters_; }
    void set_adapter(int64_t slot, int64_t module, Adapters::Factors factors);

    // Working memory, as large as the largest request so far; smaller ones allocate nothing.
    // What a step leaves there is gone in the next, or in that of another program.
    uint8_t* arena(int64_t bytes) { return grown(arena_, bytes); }
    float* partials(int64_t floats);
    uint8_t* encoder_kv(int64_t bytes) { return grown(encoder_kv_, bytes); }
    // Each thread's own; it must have been wished for before the threads work.
    void need_scratch(int64_t bytes);
    uint8_t* scratch(int thread) const { return scratch_.data() + thread * scratch_bytes_; }

  private:
    struct Layer {
        Cache cache;
        int64_t group, page;
        std::vector<float> factors;
    };
    struct Page {
        int64_t block_bytes;
        Memory memory;
    };
    static uint8_t* grown(Memory& memory, int64_t bytes);
    void pause_if_due();
    // Indices of the pages of the group's layers, ascending.
    std::vector<int64_t> pages_of(int64_t group) const;
    void check_block(int64_t block, int64_t group, int64_t size) const;

    const Kernels& kernels_;
    Pool pool_;
    Adapters adapters_;
    std::vector<Layer> layers_;
    std::vector<Page> pages_;
    std::vector<StateLayer> states_;
    int64_t groups_ = 0, blocks_ = 0, state_slots_ = 0;
    Memory arena_, scratch_, partials_, encoder_kv_;
    int64_t scratch_bytes_ = 0;  // a thread's share
    std::function<void()> pause_;
    std::chrono::steady_clock::time_point paused_{};
};

}  // namespace galley
