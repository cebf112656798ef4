// The kernels, by what a processor must have to run them.
#pragma once

#include <cstring>

#include "kernel.hpp"
#include "lanes_avx2.hpp"
#include "lanes_avx512.hpp"
#include "lanes_plain.hpp"

namespace baton {

struct InstructionSet {
    const char* name;
    bool (*is_here)();
    Kernel float32;
    Kernel bfloat16;
};

inline bool always() { return true; }

#if defined(__x86_64__)
inline bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

inline bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

inline bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

// The best first.
inline const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {"avx512_bf16", has_avx512_bf16,
     {avx512::attend<float, avx512::SingleCells>, avx512::combine<float, avx512::SingleCells>},
     {avx512_bf16::attend<Bfloat16, avx512_bf16::PairCells>, avx512_bf16::combine<Bfloat16, avx512_bf16::PairCells>}},
    {"avx512", has_avx512,
     {avx512::attend<float, avx512::SingleCells>, avx512::combine<float, avx512::SingleCells>},
     {avx512::attend<Bfloat16, avx512::SingleCells>, avx512::combine<Bfloat16, avx512::SingleCells>}},
    {"avx2", has_avx2,
     {avx2::attend<float, avx2::SingleCells>, avx2::combine<float, avx2::SingleCells>},
     {avx2::attend<Bfloat16, avx2::SingleCells>, avx2::combine<Bfloat16, avx2::SingleCells>}},
#endif
    {"plain", always,
     {plain::attend<float, plain::SingleCells>, plain::combine<float, plain::SingleCells>},
     {plain::attend<Bfloat16, plain::SingleCells>, plain::combine<Bfloat16, plain::SingleCells>}},
};

// Null if this processor lacks it, or nothing has that name.
inline const InstructionSet* find_instruction_set(const char* name) {
    for (const InstructionSet& found : kInstructionSets) {
        if (!std::strcmp(found.name, name)) return found.is_here() ? &found : nullptr;
    }
    return nullptr;
}

}  // namespace baton
