#include "runtime/expert_cache.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

namespace galley {

ExpertCache::ExpertCache(int file, int64_t slots, int64_t slot_bytes) : slot_bytes_(slot_bytes) {
    if (slots < 1 || slot_bytes < 64 || slot_bytes % 64)
        throw std::invalid_argument("an expert cache has slots of whole cache lines");
    file_ = fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (file_ < 0)
        throw std::runtime_error(std::string("cannot open the file of experts: ") +
                                 std::strerror(errno));
    memory_ = Memory(slots * slot_bytes);
    for (int64_t i = 0; i < slots; ++i) slots_.push_back({memory_.data() + i * slot_bytes, -1});
}

ExpertCache::~ExpertCache() {
    if (file_ >= 0) close(file_);
}

int64_t ExpertCache::add(const std::array<Weights, kParts>& parts) {
    int64_t bytes = 0;
    for (const Weights& part : parts) {
        if (part->file_offset() < 0)
            throw std::invalid_argument("an expert of the cache is not in a file");
        bytes += part->bytes();
    }
    if (bytes > slot_bytes_) throw std::invalid_argument("an expert is larger than a slot");
    experts_.push_back({parts, {}, slots_.end(), false});
    return static_cast<int64_t>(experts_.size()) - 1;
}

void ExpertCache::leave(Slot& slot) {
    if (slot.expert >= 0) experts_[slot.expert].here = false;
    slot.expert = -1;
}

void ExpertCache::take(const std::vector<int64_t>& wanted, Pool& pool) {
    if (static_cast<int64_t>(wanted.size()) > slots())
        throw std::invalid_argument("a layer has more experts than the cache has slots");
    missing_.clear();
    for (const int64_t expert : wanted) {
        if (!experts_[expert].here)
            missing_.push_back(expert);
        else
            slots_.splice(slots_.end(), slots_, experts_[expert].slot);
    }
    counts_.hits += static_cast<int64_t>(wanted.size() - missing_.size());
    if (missing_.empty()) return;
    counts_.misses += static_cast<int64_t>(missing_.size());
    for (const int64_t number : missing_) {
        const auto slot = slots_.begin();
        counts_.evictions += slot->expert >= 0;
        leave(*slot);
        slots_.splice(slots_.end(), slots_, slot);
        Expert& expert = experts_[number];
        expert.slot = slot;
        const uint8_t* data = slot->data;
        for (size_t part = 0; part < kParts; ++part) {
            expert.placed[part] = expert.parts[part]->placed(data);
            data += expert.parts[part]->bytes();
        }
    }
    const auto begun = std::chrono::steady_clock::now();
    std::atomic<int> failure{0};
    pool.run(static_cast<int64_t>(missing_.size() * kParts), 1,
             [&](int64_t begin, int64_t end, int) {
                 for (int64_t i = begin; i < end; ++i)
                     if (const int error = read(experts_[missing_[i / kParts]], i % kParts))
                         failure.store(error);
             });
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun;
    counts_.read_seconds += spent.count();
    if (failure.load())
        throw std::runtime_error(std::string("cannot read experts from their file: ") +
                                 std::strerror(failure.load()));
    for (const int64_t number : missing_) {
        Expert& expert = experts_[number];
        expert.here = true;
        expert.slot->expert = number;
        for (const Weights& part : expert.parts) counts_.read_bytes += part->bytes();
    }
}

// Into the expert's slot; returns an error number, or 0.
int ExpertCache::read(const Expert& expert, size_t part) const {
    int64_t offset = expert.parts[part]->file_offset(), left = expert.parts[part]->bytes();
    uint8_t* to = expert.slot->data + (expert.placed[part].weights - expert.placed[0].weights);
    while (left > 0) {
        const ssize_t got = pread(file_, to, left, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : EIO;  // the file was cut short
        to += got;
        offset += got;
        left -= got;
    }
    return 0;
}

}  // namespace galley
