#include "kernels/isa.hpp"

#if defined(__linux__)
#include <sys/auxv.h>  // with HWCAP_ASIMDDP, of Arm alone
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstring>
#include <stdexcept>

namespace galley {
namespace {

// An instruction set that is compiled: whether this CPU has it, and its kernels.
struct Set {
    const char* name;
    bool (*runs)();
    const Kernels& (*kernels)();
};

bool always() { return true; }

#if defined(GALLEY_HAS_avx2)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
bool has_avx512f() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx512vnni() { return has_avx512f() && __builtin_cpu_supports("avx512vnni"); }
bool has_avx512() {
    return has_avx512vnni() && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("gfni");
}
#endif
#if defined(GALLEY_HAS_avxvnni)
bool has_avxvnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }
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
#if defined(GALLEY_HAS_neon)
#if defined(__linux__)
bool has_neon() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
#else
bool has_neon() { return true; }  // macOS: every Apple silicon has dot products
#endif
#endif

}  // namespace

const Kernels& kernels_amx();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512vnni();
const Kernels& kernels_avx512f();
const Kernels& kernels_avxvnni();
const Kernels& kernels_avx2();
const Kernels& kernels_neon();
const Kernels& kernels_portable();

namespace {

// Best first.
constexpr Set kSets[] = {
#if defined(GALLEY_HAS_amx)
    {"amx", has_amx, kernels_amx},
#endif
#if defined(GALLEY_HAS_avx2)
    {"avx512", has_avx512, kernels_avx512},
    {"avx512vnni", has_avx512vnni, kernels_avx512vnni},
    {"avx512f", has_avx512f, kernels_avx512f},
#endif
#if defined(GALLEY_HAS_avxvnni)
    {"avxvnni", has_avxvnni, kernels_avxvnni},
#endif
#if defined(GALLEY_HAS_avx2)
    {"avx2", has_avx2, kernels_avx2},
#endif
#if defined(GALLEY_HAS_neon)
    {"neon", has_neon, kernels_neon},
#endif
    {"portable", always, kernels_portable},
};

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Set& set : kSets)
        if (set.runs()) names.push_back(set.name);
    return names;
}

const Elementwise* Kernels::elementwise_named(const char* wanted) const {
    for (const Elementwise* op = elementwise; op->name; ++op)
        if (std::strcmp(op->name, wanted) == 0) return op;
    return nullptr;
}

const Kernels& kernels(const std::string& name) {
    for (const Set& set : kSets)
        if (name == set.name && set.runs()) return set.kernels();
    throw std::invalid_argument("instruction set '" + name + "' is not supported by this CPU");
}

void Kernels::linear(const Linear& l, int64_t begin, int64_t end, uint8_t* scratch) const {
    switch (l.x.type) {
        case Inputs::kFloats:
            return linear_float(l, begin, end, scratch);
        case Inputs::kBF16:
            return linear_bf16(l, begin, end, scratch);
        case Inputs::kInt8:
            return linear_int8(l, begin, end, scratch);
    }
}

}  // namespace galley
