// Large zeroed memory, on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace galley {

class Memory {
  public:
    Memory() = default;
    // Pages are taken from the system when they are first touched. Throws std::bad_alloc.
    explicit Memory(std::size_t bytes);
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory& operator=(Memory&& other) noexcept;

    uint8_t* data() const { return data_; }  // 64-byte aligned
    std::size_t size() const { return size_; }

  private:
    void* mapped_ = nullptr;
    std::size_t mapped_size_ = 0;
    uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
};

inline int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

}  // namespace galley
