// Row functions by instruction set.
#pragma once

#include <string>
#include <vector>

#include "../processor.hpp"
#include "numbers.hpp"

namespace baton {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;  // few digits, so that products with integers are exact
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kMinExp = -87.0f;
constexpr float kMaxExp = 89.0f;  // above it the result is infinite
constexpr float kLeastScaled = 1e-35f;  // rows with a smaller maximum are quantised to zero
constexpr std::size_t kMaxHalf = 512;  // of a head that is rotated

constexpr float kGeluScale = 1.59576912f;  // 2 * sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715f;
constexpr float kSwigluAlpha = 1.702f;
constexpr float kSwigluLimit = 7.0f;

enum class Activation { kSilu, kGeluTanh, kClampedSwiglu };
constexpr std::size_t kNumActivations = 3;

// Weight of a norm, to which an offset is added in single precision.
template <typename T>
struct NormWeight {
    const T* data;
    float offset;
};

template <typename T>
struct RowFunctions {
    void (*norm)(const T* x, NormWeight<T> weight, std::size_t width, float eps, T* result);
    void (*add_norm)(T* x, const T* addend, NormWeight<T> weight, std::size_t width, float eps, T* result);
    void (*gate[kNumActivations])(const T* gate, const T* up, std::size_t width, T* result);
    void (*score)(const float* x, std::size_t width, bool is_sigmoid, float* result);
    float (*quantise)(const T* x, std::size_t width, std::uint8_t* result);
    void (*scale)(T* x, float factor, const T* bias, std::size_t width);
    void (*weighted_sum)(const T* rows, std::size_t width, const std::int64_t* places, const float* weights,
                         std::size_t count, T* result);
    void (*rotate)(T* x, NormWeight<T> weight, float eps, const float* cos, const float* sin, std::size_t half,
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

#define BATON_ROW_FUNCTIONS(rows) \
    {rows::norm_row<T>, rows::add_norm_row<T>, \
     {rows::gate_row<Activation::kSilu, T>, rows::gate_row<Activation::kGeluTanh, T>, \
      rows::gate_row<Activation::kClampedSwiglu, T>}, rows::score_row, \
     rows::quantise_row<T>, rows::scale_row<T>, rows::weighted_sum_row<T>, rows::rotate_row<T>}

template <typename T>
RowFunctions<T> row_functions(const std::string& name) {
#if defined(__x86_64__)
    if (name == "avx512") return BATON_ROW_FUNCTIONS(rows_avx512);
    if (name == "avx2") return BATON_ROW_FUNCTIONS(rows_avx2);
#endif
    return BATON_ROW_FUNCTIONS(rows_plain);
}

}  // namespace baton
