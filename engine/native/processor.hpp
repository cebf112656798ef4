// Instruction sets of this processor that row kernels are compiled for.
#pragma once

#include <string>
#include <vector>

namespace baton {

// Fastest first.
inline std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        names.emplace_back("avx512");
    }
    if (__builtin_cpu_supports("avx2")) names.emplace_back("avx2");
#endif
    names.emplace_back("plain");
    return names;
}

}  // namespace baton
