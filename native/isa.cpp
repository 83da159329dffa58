#include "isa.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <stdexcept>

namespace galley {

const Kernels& kernels_portable();
#ifdef GALLEY_HAS_avx2
const Kernels& kernels_avx2();
#endif
#ifdef GALLEY_HAS_avx512
const Kernels& kernels_avx512();
#endif
#ifdef GALLEY_HAS_amx
const Kernels& kernels_amx();
#endif

namespace {

#if defined(GALLEY_HAS_avx2)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
#endif
#if defined(GALLEY_HAS_avx512)
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif
#if defined(GALLEY_HAS_amx)
// Linux lends a process the tiles' registers when it asks for them; its threads inherit that.
bool lent_tiles() {
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
bool has_amx() {
    static const bool has = has_avx512() && __builtin_cpu_supports("amx-tile") &&
                            __builtin_cpu_supports("amx-int8") &&
                            __builtin_cpu_supports("amx-bf16") && lent_tiles();
    return has;
}
#endif

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
#ifdef GALLEY_HAS_amx
    if (has_amx()) names.push_back("amx");
#endif
#ifdef GALLEY_HAS_avx512
    if (has_avx512()) names.push_back("avx512");
#endif
#ifdef GALLEY_HAS_avx2
    if (has_avx2()) names.push_back("avx2");
#endif
    names.push_back("portable");
    return names;
}

const Kernels& kernels(const std::string& name) {
    for (const std::string& supported : supported_isas()) {
        if (supported != name) continue;
#ifdef GALLEY_HAS_amx
        if (name == "amx") return kernels_amx();
#endif
#ifdef GALLEY_HAS_avx512
        if (name == "avx512") return kernels_avx512();
#endif
#ifdef GALLEY_HAS_avx2
        if (name == "avx2") return kernels_avx2();
#endif
        return kernels_portable();
    }
    throw std::invalid_argument("instruction set '" + name + "' is not supported by this CPU");
}

}  // namespace galley
