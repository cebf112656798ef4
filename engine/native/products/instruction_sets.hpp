// Products by instruction set.
#pragma once

#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../ops/instruction_sets.hpp"
#include "panels.hpp"

namespace baton {

struct ProductFunctions {
    const char* name;
    void (*plain)(const Task& task, const Share& share);
    void (*added)(const Task& task, const Share& share);
    void (*gated)(const Task& task, const Share& share);
    void (*convert)(const Weight& weight, const std::uint16_t* rows, std::size_t first, std::size_t end, Unit* result,
                    float* scales);
    std::size_t (*steps_of)(const Weight& weight);  // units of a row for each of the weight's
    bool takes_pairs;                               // rows for weights in bfloat16 are not converted
};

}  // namespace baton

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11
#define BATON_KNOWS_TILES  // and AVX-VNNI
#endif

#if defined(BATON_KNOWS_TILES)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,amx-tile,amx-bf16,amx-int8"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,amx-tile,amx-bf16,amx-int8")
#endif
namespace baton::products_amx {
#define BATON_BFLOAT16_PAIRS
#define BATON_TILES
#include "../ops/rows.inl"
#include "avx512.inl"
#include "kernel.inl"
#undef BATON_TILES
#undef BATON_BFLOAT16_PAIRS
}  // namespace baton::products_amx
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avxvnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avxvnni")
#endif
namespace baton::products_avxvnni {
#define BATON_BYTE_QUADS
#include "../ops/rows.inl"
#include "avx2.inl"
#include "kernel.inl"
#undef BATON_BYTE_QUADS
}  // namespace baton::products_avxvnni
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni")
#endif
namespace baton::products_avx512bf16 {
#define BATON_BFLOAT16_PAIRS
#include "../ops/rows.inl"
#include "avx512.inl"
#include "kernel.inl"
#undef BATON_BFLOAT16_PAIRS
}  // namespace baton::products_avx512bf16
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#endif
namespace baton::products_avx512vnni {
#include "../ops/rows.inl"
#include "avx512.inl"
#include "kernel.inl"
}  // namespace baton::products_avx512vnni
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace baton::products_avx2 {
#include "../ops/rows.inl"
#include "avx2.inl"
#include "kernel.inl"
}  // namespace baton::products_avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#define BATON_PRODUCT_FUNCTIONS(name, takes_pairs) \
    {#name, products_##name::compute<products_##name::Plain>, products_##name::compute<products_##name::Added>, \
     products_##name::compute<products_##name::Gated>, products_##name::convert, products_##name::steps_of, takes_pairs}

#endif  // __x86_64__

namespace baton {

#if defined(__x86_64__)

// AVX-512's products of four bytes, in vectors of AVX2.
inline bool has_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1u << 4;
}

// AMX, if the kernel lets this process use it.
inline bool has_tiles() {
#if defined(__linux__)
    constexpr unsigned kTilesAndTheirProducts = 1u << 22 | 1u << 24 | 1u << 25;  // of bfloat16 and of bytes
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTilesAndTheirProducts) != kTilesAndTheirProducts) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

#endif

inline std::vector<ProductFunctions> find_product_functions() {
    std::vector<ProductFunctions> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vnni");
    const bool has_pairs = has_avx512 && __builtin_cpu_supports("avx512bf16");
#if defined(BATON_KNOWS_TILES)
    if (has_pairs && has_tiles()) found.push_back(BATON_PRODUCT_FUNCTIONS(amx, true));
#endif
    if (has_pairs) found.push_back(BATON_PRODUCT_FUNCTIONS(avx512bf16, true));
    if (has_avx512) found.push_back(BATON_PRODUCT_FUNCTIONS(avx512vnni, false));
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if defined(BATON_KNOWS_TILES)
    if (has_avx2 && has_avxvnni()) found.push_back(BATON_PRODUCT_FUNCTIONS(avxvnni, false));
#endif
    if (has_avx2) found.push_back(BATON_PRODUCT_FUNCTIONS(avx2, false));
#endif
    return found;
}

// Those of this processor, fastest first. They stay the same: the kernel may refuse tiles once and later grant them, and
// all slots' products must be of one set. Virtual machines take microseconds for each question to the processor.
inline const std::vector<ProductFunctions>& product_functions() {
    static const std::vector<ProductFunctions> found = find_product_functions();
    return found;
}

}  // namespace baton
