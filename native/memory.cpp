#include "memory.hpp"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace galley {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

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
    // A refusal only costs speed.
    if (huge) (void)madvise(data_, bytes, MADV_HUGEPAGE);
}

Memory::~Memory() {
    if (mapped_) munmap(mapped_, mapped_size_);
}

Memory::Memory(Memory&& other) noexcept { *this = std::move(other); }

Memory& Memory::operator=(Memory&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_size_, other.mapped_size_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

}  // namespace galley
