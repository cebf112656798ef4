// Kernels for weights in groups, by instruction set.
#pragma once

#include <string>

#include "../processor.hpp"
#include "weight.hpp"

namespace baton {

struct GroupedFunctions {
    void (*decode)(const GroupedWeight& weight, std::size_t row, float* numbers, float* result);
    void (*dot)(const float* outputs, std::size_t num_outputs, const float* tokens, std::size_t num_tokens,
                std::size_t width, float* sums);
};

// Sums of a tile of outputs and tokens stay in the processor's registers, as far as it has so many.
#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#define BATON_GROUPED_WIDTH 16
namespace grouped_avx512 {
constexpr std::size_t kWidth = BATON_GROUPED_WIDTH, kTileOutputs = 4, kTileTokens = 4, kOutputsOfOne = 4;
#include "kernel.inl"
}
#undef BATON_GROUPED_WIDTH
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2")
#define BATON_GROUPED_WIDTH 8
namespace grouped_avx2 {
constexpr std::size_t kWidth = BATON_GROUPED_WIDTH, kTileOutputs = 2, kTileTokens = 2, kOutputsOfOne = 4;
#include "kernel.inl"
}
#undef BATON_GROUPED_WIDTH
#pragma GCC pop_options
#endif

#define BATON_GROUPED_WIDTH 4
namespace grouped_plain {
constexpr std::size_t kWidth = BATON_GROUPED_WIDTH, kTileOutputs = 1, kTileTokens = 2, kOutputsOfOne = 2;
#include "kernel.inl"
}
#undef BATON_GROUPED_WIDTH

inline GroupedFunctions grouped_functions(const std::string& name) {
#if defined(__x86_64__)
    if (name == "avx512") return {grouped_avx512::decode, grouped_avx512::dot};
    if (name == "avx2") return {grouped_avx2::decode, grouped_avx2::dot};
#endif
    return {grouped_plain::decode, grouped_plain::dot};
}

}  // namespace baton
