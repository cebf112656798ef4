// The functions on rows, by what a processor must have to run them.
#pragma once

#include <string>
#include <vector>

#include "numbers.hpp"

namespace baton {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;  // few digits: its products with whole numbers are exact
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kMinExp = -87.0f;
constexpr float kMaxExp = 89.0f;  // beyond: infinite
constexpr std::size_t kMaxHalf = 512;  // of a head that is rotated

template <typename T>
struct RowFunctions {
    void (*norm)(const T* x, const T* weight, std::size_t width, float eps, T* result);
    void (*add_norm)(T* x, const T* addend, const T* weight, std::size_t width, float eps, T* result);
    void (*silu)(const T* gate, const T* up, std::size_t width, T* result);
    void (*rotate)(T* x, const T* weight, float eps, const float* cos, const float* sin, std::size_t half,
                   bool is_interleaved);
};

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
namespace rows_avx512 {
#include "rows.inl"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2")
namespace rows_avx2 {
#include "rows.inl"
}
#pragma GCC pop_options
#endif

namespace rows_plain {
#include "rows.inl"
}

template <typename T>
RowFunctions<T> row_functions(const std::string& name) {
#if defined(__x86_64__)
    if (name == "avx512") {
        return {rows_avx512::norm_row<T>, rows_avx512::add_norm_row<T>, rows_avx512::silu_row<T>,
                rows_avx512::rotate_row<T>};
    }
    if (name == "avx2") {
        return {rows_avx2::norm_row<T>, rows_avx2::add_norm_row<T>, rows_avx2::silu_row<T>, rows_avx2::rotate_row<T>};
    }
#endif
    return {rows_plain::norm_row<T>, rows_plain::add_norm_row<T>, rows_plain::silu_row<T>, rows_plain::rotate_row<T>};
}

// The best first.
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
