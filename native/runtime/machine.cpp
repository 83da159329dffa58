#include "runtime/machine.hpp"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "system/memory.hpp"

namespace galley {

namespace {

constexpr int64_t kPiece = int64_t{1} << 20;
constexpr int64_t kPiecesPerThread = 16;  // a thread that is held up leaves some to the others

template <class Body>
double seconds_of(const Body& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::vector<double> read_rates(const Kernels& kernels, Pool& pool, int64_t bytes, bool huge,
                               int repeats) {
    const int64_t pieces = round_up(bytes, kPiece) / kPiece;
    const Memory memory(pieces * kPiece);
#if defined(MADV_NOHUGEPAGE)  // of Linux
    if (!huge) (void)madvise(memory.data(), memory.size(), MADV_NOHUGEPAGE);
#else
    (void)huge;
#endif
    const auto each_piece = [&](const auto& body) {
        pool.run(pieces, 1, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; ++i) body(memory.data() + i * kPiece);
        });
    };
    // Pages that were never written are all the same one.
    each_piece([](uint8_t* piece) { std::memset(piece, 1, kPiece); });
    std::vector<double> rates;
    for (int i = 0; i < repeats; ++i)
        rates.push_back(pieces * kPiece / seconds_of([&] {
                            each_piece([&](uint8_t* piece) { kernels.read(piece, kPiece); });
                        }));
    return rates;
}

std::vector<double> multiply_rates(const Kernels& kernels, Pool& pool, Kind kind, double seconds,
                                   int repeats) {
    const auto multiply = is_integer(kind)      ? kernels.multiply_int8
                          : kind == Kind::kBF16 ? kernels.multiply_bf16
                                                : kernels.multiply_f32;
    const int64_t pieces = kPiecesPerThread * pool.threads();
    std::atomic<int64_t> operations{0};
    const auto timed = [&](int64_t steps) {
        operations = 0;
        return seconds_of([&] {
            pool.run(pieces, 1, [&](int64_t begin, int64_t end, int) {
                for (int64_t i = begin; i < end; ++i) operations += multiply(steps);
            });
        });
    };
    int64_t steps = 1000;
    double taken = timed(steps);
    while (taken < seconds / 4) taken = timed(steps *= 2);
    steps = static_cast<int64_t>(steps * seconds / taken) + 1;
    std::vector<double> rates;
    for (int i = 0; i < repeats; ++i) {
        taken = timed(steps);
        rates.push_back(operations / taken);
    }
    return rates;
}

}  // namespace galley
