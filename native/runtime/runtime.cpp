#include "runtime/runtime.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace galley {
namespace {

int64_t bits_of(KvType type) {
    switch (type) {
        case KvType::kF32:
            return 32;
        case KvType::kInt8:
            return 8;
        case KvType::kInt4:
            return 4;
        default:
            return 16;
    }
}

// Of one token, in addition to its integers.
int64_t scale_bytes(KvType type) {
    return type == KvType::kInt8   ? 2 * sizeof(float)
           : type == KvType::kInt4 ? 4 * sizeof(uint16_t)
                                   : 0;
}

}  // namespace

Cache cache_of(int64_t kv_heads, int64_t key_dim, int64_t value_dim, KvType type, bool shared) {
    if (shared && (value_dim > key_dim || type == KvType::kPairs))
        throw std::invalid_argument("these keys cannot hold the values, too");
    constexpr int64_t kLine = 64;
    const bool two = type == KvType::kPairs || type == KvType::kInt4;  // columns of a key together
    const int64_t padded = round_up(value_dim, kLanes);
    const int64_t depth = two ? round_up(key_dim, 2) : key_dim;
    const int64_t cut = shared ? std::min(key_dim, round_up(value_dim, 2)) : key_dim;
    const int64_t values = round_up(kBlockTokens * depth * bits_of(type) / 8, kLine);
    const int64_t scales = values + (shared ? 0 : kBlockTokens * padded * bits_of(type) / 8);
    const int64_t bytes = round_up(scales + kBlockTokens * scale_bytes(type), kLine);
    return {nullptr, type, kv_heads, key_dim, value_dim, padded,
            shared,  cut,  values,   scales,  bytes,     nullptr};
}

Runtime::Runtime(const Kernels& kernels, int threads, const std::vector<int>& cpus)
    : kernels_(kernels), pool_(threads, cpus) {}

void Runtime::pause_if_due() {
    if (std::chrono::steady_clock::now() - paused_ < std::chrono::milliseconds(1)) return;
    pause_();
    paused_ = std::chrono::steady_clock::now();
}

void Runtime::add_kv_layer(const Cache& cache, int64_t group, int64_t page,
                           std::vector<float> factors) {
    const int64_t bytes = cache.kv_heads * cache.head_bytes;
    const auto pages = static_cast<int64_t>(pages_.size());
    if (group < 0 || page < 0 || page > pages)
        throw std::invalid_argument("pages are numbered in the order of the layers");
    if (page == pages) pages_.push_back({bytes, Memory()});
    if (pages_[page].block_bytes != bytes)
        throw std::invalid_argument("layers whose blocks differ in size cannot share a page");
    const bool factored = !factors.empty();
    if (factored && (cache.type != KvType::kInt4 ||
                     static_cast<int64_t>(factors.size()) != cache.kv_heads * cache.key_dim))
        throw std::invalid_argument("factors are of each column of int4 keys");
    groups_ = std::max(groups_, group + 1);
    layers_.push_back({cache, group, page, std::move(factors)});
    if (factored) layers_.back().cache.factors = layers_.back().factors.data();
}

int64_t Runtime::kv_bytes_per_block() const {
    int64_t bytes = 0;
    for (const Page& page : pages_) bytes += page.block_bytes;
    return bytes;
}

void Runtime::allocate_kv(int64_t blocks) {
    for (Page& page : pages_) page.memory = Memory(blocks * page.block_bytes);
    for (Layer& layer : layers_) layer.cache.data = pages_[layer.page].memory.data();
    blocks_ = blocks;
}

void Runtime::add_state_layer(int64_t rows, int64_t width) {
    if (rows < 1 || width < 1) throw std::invalid_argument("a state has rows and columns");
    states_.push_back({rows, width, round_up(width, kLanes), Memory()});
}

int64_t Runtime::bytes_per_state() const {
    int64_t floats = 0;
    for (const StateLayer& layer : states_) floats += layer.floats();
    return floats * static_cast<int64_t>(sizeof(float));
}

void Runtime::allocate_states(int64_t slots) {
    for (StateLayer& layer : states_) layer.memory = Memory(slots * layer.floats() * sizeof(float));
    state_slots_ = slots;
}

void Runtime::copy_block(int64_t from, int64_t to) {
    if (from < 0 || from >= blocks_ || to < 0 || to >= blocks_)
        throw std::out_of_range("a block to copy does not exist");
    for (Page& page : pages_) {
        const int64_t bytes = page.block_bytes;
        std::memcpy(page.memory.data() + to * bytes, page.memory.data() + from * bytes, bytes);
    }
}

std::vector<int64_t> Runtime::pages_of(int64_t group) const {
    std::vector<int64_t> found;
    for (const Layer& layer : layers_)
        if (layer.group == group) found.push_back(layer.page);
    std::sort(found.begin(), found.end());
    return found;
}

int64_t Runtime::kv_bytes_per_block(int64_t group) const {
    int64_t bytes = 0;
    for (const int64_t page : pages_of(group)) bytes += pages_[page].block_bytes;
    return bytes;
}

void Runtime::check_block(int64_t block, int64_t group, int64_t size) const {
    if (block < 0 || block >= blocks_) throw std::out_of_range("a block to copy does not exist");
    if (size != kv_bytes_per_block(group))
        throw std::invalid_argument("the bytes are not those of a block of this KV group");
}

void Runtime::read_block(int64_t block, int64_t group, uint8_t* bytes, int64_t size) const {
    check_block(block, group, size);
    for (const int64_t page : pages_of(group)) {
        const int64_t part = pages_[page].block_bytes;
        std::memcpy(bytes, pages_[page].memory.data() + block * part, part);
        bytes += part;
    }
}

void Runtime::write_block(int64_t block, int64_t group, const uint8_t* bytes, int64_t size) {
    check_block(block, group, size);
    for (const int64_t page : pages_of(group)) {
        const int64_t part = pages_[page].block_bytes;
        std::memcpy(pages_[page].memory.data() + block * part, bytes, part);
        bytes += part;
    }
}

void Runtime::set_adapter(int64_t slot, int64_t module, Adapters::Factors factors) {
    adapters_.set(slot, module, std::move(factors));
    need_scratch(Adapters::kRows * adapters_.widest() * static_cast<int64_t>(sizeof(float)));
}

uint8_t* Runtime::grown(Memory& memory, int64_t bytes) {
    if (memory.size() < static_cast<std::size_t>(bytes)) memory = Memory(bytes);
    return memory.data();
}

float* Runtime::partials(int64_t floats) {
    return reinterpret_cast<float*>(grown(partials_, floats * static_cast<int64_t>(sizeof(float))));
}

void Runtime::need_scratch(int64_t bytes) {
    if (round_up(bytes, 64) <= scratch_bytes_) return;
    scratch_bytes_ = round_up(bytes, 64);
    scratch_ = Memory(scratch_bytes_ * pool_.threads());
}

}  // namespace galley
