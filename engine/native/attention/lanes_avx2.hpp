// Vectors of eight floats, with fused multiply-add.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../exponential.hpp"
#include "kernel.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace baton::avx2 {

#include "exponential.inl"

struct Lanes {
    static constexpr std::size_t kWidth = 8;
    static constexpr std::size_t kRows = 6;     // of a product that stay in registers
    static constexpr std::size_t kVectors = 2;  // of each of them
    using Floats = __m256;

    static BATON_INLINE Floats broadcast(float value) { return _mm256_set1_ps(value); }
    static BATON_INLINE Floats load(const float* from) { return _mm256_loadu_ps(from); }
    static BATON_INLINE void store(float* to, Floats lanes) { _mm256_storeu_ps(to, lanes); }

    static BATON_INLINE Floats load_bfloat16(const char* from) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
    }

    static BATON_INLINE Floats load_int8(const char* from) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
    }

    // Of cells of four int8, those in one place.
    template <int kPlace>
    static BATON_INLINE Floats int8_at(const std::uint32_t* cells) {
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(load_cells(cells), 24 - 8 * kPlace), 24));
    }

    // Of pairs of bfloat16, the first ones and the second ones.
    static BATON_INLINE Floats low_halves(const std::uint32_t* pairs) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(load_cells(pairs), 16));
    }

    static BATON_INLINE Floats high_halves(const std::uint32_t* pairs) {
        return _mm256_castsi256_ps(_mm256_and_si256(load_cells(pairs), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    }

    static BATON_INLINE Floats add(Floats left, Floats right) { return _mm256_add_ps(left, right); }
    static BATON_INLINE Floats subtract(Floats left, Floats right) { return _mm256_sub_ps(left, right); }
    static BATON_INLINE Floats multiply(Floats left, Floats right) { return _mm256_mul_ps(left, right); }
    static BATON_INLINE Floats divide(Floats left, Floats right) { return _mm256_div_ps(left, right); }
    static BATON_INLINE Floats multiply_add(Floats left, Floats right, Floats sum) {
        return _mm256_fmadd_ps(left, right, sum);
    }
    static BATON_INLINE Floats max(Floats left, Floats right) { return _mm256_max_ps(left, right); }

    // The first `count` lanes, and `other` in the rest.
    static BATON_INLINE Floats first(Floats lanes, std::size_t count, Floats other) {
        const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), places);
        return _mm256_blendv_ps(other, lanes, _mm256_castsi256_ps(mask));
    }

    static BATON_INLINE float max_across(Floats lanes) {
        __m128 half = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    }

    static BATON_INLINE float sum_across(Floats lanes) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }

    // 2^x for x <= 0; what is below 2^-126 becomes that.
    static BATON_INLINE Floats exp2(Floats x) {
        const Floats bounded = _mm256_max_ps(x, broadcast(kMinExponent));
        const Floats whole = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
        const Floats power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
        return multiply(exp2_fraction<Lanes>(subtract(bounded, whole)), power);
    }

    // Columns of 8 rows of 8 cells, from `offset` bytes on.
    static BATON_INLINE void transpose(const char* const* rows, std::size_t offset, std::uint32_t* out,
                                       std::size_t stride) {
        __m256i a[kWidth], b[kWidth];
        for (std::size_t i = 0; i < kWidth; ++i) {
            a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + offset));
        }
        for (std::size_t i = 0; i < kWidth; i += 2) {
            b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
            b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
        }
        for (std::size_t i = 0; i < kWidth; i += 4) {  // a[i + j]: columns j and 4 + j of rows i to i + 3
            a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
            a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
            a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
            a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
        }
        for (std::size_t j = 0; j < 4; ++j) {
            store_cells(out + j * stride, _mm256_permute2x128_si256(a[j], a[4 + j], 0x20));
            store_cells(out + (4 + j) * stride, _mm256_permute2x128_si256(a[j], a[4 + j], 0x31));
        }
    }

private:
    static BATON_INLINE __m256i load_cells(const std::uint32_t* from) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }

    static BATON_INLINE void store_cells(std::uint32_t* to, __m256i cells) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), cells);
    }
};

#include "single_cells.inl"

#include "kernel.inl"

}  // namespace baton::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
