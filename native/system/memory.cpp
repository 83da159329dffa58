#include "system/memory.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace galley {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

#if defined(GALLEY_SANITIZE)
// From the heap, whose bounds the address sanitizer knows.
Memory::Memory(std::size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    mapped_ = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!mapped_) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(mapped_);
    std::memset(data_, 0, bytes);
}

Memory::~Memory() { std::free(mapped_); }
#else
Memory::Memory(std::size_t bytes) : size_(bytes) {
    if (bytes == 0) return;
    const bool huge = bytes >= kHugePage;
    mapped_size_ = huge ? bytes + kHugePage : bytes;
    mapped_ = mmap(nullptr, mapped_size_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) {
        mapped_ = nullptr;
        throw std::bad_alloc();
    }
    auto address = reinterpret_cast<std::uintptr_t>(mapped_);
    if (huge) address = (address + kHugePage - 1) / kHugePage * kHugePage;
    data_ = reinterpret_cast<uint8_t*>(address);
#if defined(MADV_HUGEPAGE)  // of Linux
    // A refusal only costs speed.
    if (huge) (void)madvise(data_, bytes, MADV_HUGEPAGE);
#endif
}

Memory::~Memory() {
    if (mapped_) munmap(mapped_, mapped_size_);
}
#endif

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_size_, other.mapped_size_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace galley
