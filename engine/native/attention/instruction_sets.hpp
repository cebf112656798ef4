// Attention kernels by instruction set.
#pragma once

#include <cstring>

#include "kernel.hpp"
#include "lanes_avx2.hpp"
#include "lanes_avx512.hpp"
#include "lanes_plain.hpp"

namespace baton {

// Kernels of one instruction set, by computed type and cached type.
struct InstructionSet {
    const char* name;
    bool (*is_here)();
    Kernel float32;
    Kernel bfloat16;
    Kernel float32_of_int8;
    Kernel bfloat16_of_int8;

    const Kernel& kernel(const AttentionShape& shape) const {
        if (shape.is_quantised) return shape.is_bfloat16 ? bfloat16_of_int8 : float32_of_int8;
        return shape.is_bfloat16 ? bfloat16 : float32;
    }
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

inline bool has_avx512_bf16() {
    return has_avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

// Fastest first.
inline const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {"avx512_bf16", has_avx512_bf16,
     avx512::kKernel<float, float, avx512::SingleCells>, avx512_bf16::kKernel<Bfloat16, Bfloat16, avx512_bf16::PairCells>,
     avx512::kKernel<float, Int8, avx512::SingleCells>, avx512_bf16::kKernel<Bfloat16, Int8, avx512_bf16::PairCells>},
    {"avx512", has_avx512,
     avx512::kKernel<float, float, avx512::SingleCells>, avx512::kKernel<Bfloat16, Bfloat16, avx512::SingleCells>,
     avx512::kKernel<float, Int8, avx512::SingleCells>, avx512::kKernel<Bfloat16, Int8, avx512::SingleCells>},
    {"avx2", has_avx2,
     avx2::kKernel<float, float, avx2::SingleCells>, avx2::kKernel<Bfloat16, Bfloat16, avx2::SingleCells>,
     avx2::kKernel<float, Int8, avx2::SingleCells>, avx2::kKernel<Bfloat16, Int8, avx2::SingleCells>},
#endif
    {"plain", always,
     plain::kKernel<float, float, plain::SingleCells>, plain::kKernel<Bfloat16, Bfloat16, plain::SingleCells>,
     plain::kKernel<float, Int8, plain::SingleCells>, plain::kKernel<Bfloat16, Int8, plain::SingleCells>},
};

// Null if this processor lacks the set, or the name is unknown.
inline const InstructionSet* find_instruction_set(const char* name) {
    for (const InstructionSet& found : kInstructionSets) {
        if (!std::strcmp(found.name, name)) return found.is_here() ? &found : nullptr;
    }
    return nullptr;
}

}  // namespace baton
