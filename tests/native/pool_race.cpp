// Jobs of many sizes on pools of many threads, for the thread sanitizer.
#include <chrono>
#include <cstdio>
#include <vector>

#include "system/pool.hpp"

int main() {
    for (int threads : {1, 2, 3, 4, 7}) {
        galley::Pool pool(threads, {});
        std::vector<int64_t> out(4096);
        for (int64_t round = 0; round < 1000; ++round) {
            const int64_t items = 1 + round * 37 % 4096;
            pool.run(items, 1 + round % 5, [&](int64_t begin, int64_t end, int) {
                for (int64_t i = begin; i < end; ++i) out[i] = i + round;
            });
            for (int64_t i = 0; i < items; ++i)
                if (out[i] != i + round) return std::puts("an item was not done"), 1;
            // Long enough for the threads to fall asleep.
            if (round % 250 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
    return std::puts("all done"), 0;
}
