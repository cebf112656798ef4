// Vectors of sixteen floats. Included once for each instruction set that has them.

#include "exponential.inl"

struct Lanes {
    static constexpr std::size_t kWidth = 16;
    static constexpr std::size_t kRows = 6;     // of a product that stay in registers
    static constexpr std::size_t kVectors = 4;  // of each of them
    using Floats = __m512;

    static BATON_INLINE Floats broadcast(float value) { return _mm512_set1_ps(value); }
    static BATON_INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
    static BATON_INLINE void store(float* to, Floats lanes) { _mm512_storeu_ps(to, lanes); }

    static BATON_INLINE Floats load_bfloat16(const char* from) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }

    static BATON_INLINE Floats load_int8(const char* from) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    }

    // Of cells of four int8, those in one place.
    template <int kPlace>
    static BATON_INLINE Floats int8_at(const std::uint32_t* cells) {
        const __m512i upper = _mm512_slli_epi32(_mm512_loadu_si512(cells), 24 - 8 * kPlace);
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(upper, 24));
    }

    // Of pairs of bfloat16, the first ones and the second ones.
    static BATON_INLINE Floats low_halves(const std::uint32_t* pairs) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
    }

    static BATON_INLINE Floats high_halves(const std::uint32_t* pairs) {
        const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), upper));
    }

    static BATON_INLINE Floats add(Floats left, Floats right) { return _mm512_add_ps(left, right); }
    static BATON_INLINE Floats subtract(Floats left, Floats right) { return _mm512_sub_ps(left, right); }
    static BATON_INLINE Floats multiply(Floats left, Floats right) { return _mm512_mul_ps(left, right); }
    static BATON_INLINE Floats divide(Floats left, Floats right) { return _mm512_div_ps(left, right); }
    static BATON_INLINE Floats multiply_add(Floats left, Floats right, Floats sum) {
        return _mm512_fmadd_ps(left, right, sum);
    }
    static BATON_INLINE Floats max(Floats left, Floats right) { return _mm512_max_ps(left, right); }

    // The first `count` lanes, and `other` in the rest.
    static BATON_INLINE Floats first(Floats lanes, std::size_t count, Floats other) {
        return _mm512_mask_mov_ps(other, static_cast<__mmask16>((1u << count) - 1), lanes);
    }

    static BATON_INLINE float max_across(Floats lanes) { return _mm512_reduce_max_ps(lanes); }
    static BATON_INLINE float sum_across(Floats lanes) { return _mm512_reduce_add_ps(lanes); }

    // 2^x for x <= 0; what is below 2^-126 becomes that.
    static BATON_INLINE Floats exp2(Floats x) {
        const Floats bounded = _mm512_max_ps(x, broadcast(kMinExponent));
        const Floats whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        return _mm512_scalef_ps(exp2_fraction<Lanes>(subtract(bounded, whole)), whole);
    }

    // Columns of 16 rows of 16 cells, from `offset` bytes on.
    static BATON_INLINE void transpose(const char* const* rows, std::size_t offset, std::uint32_t* out,
                                       std::size_t stride) {
        __m512i a[kWidth], b[kWidth];
        for (std::size_t i = 0; i < kWidth; ++i) a[i] = _mm512_loadu_si512(rows[i] + offset);
        for (std::size_t i = 0; i < kWidth; i += 2) {
            b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
            b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
        }
        for (std::size_t i = 0; i < kWidth; i += 4) {  // a[i + j]: columns j, 4 + j, 8 + j, 12 + j of rows i to i + 3
            a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
            a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
            a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
            a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
        }
        for (std::size_t j = 0; j < 4; ++j) {
            const __m512i even_low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);  // columns j and 8 + j of rows 0 to 7
            const __m512i even_high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
            const __m512i odd_low = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xdd);  // columns 4 + j and 12 + j
            const __m512i odd_high = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xdd);
            _mm512_storeu_si512(out + j * stride, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
            _mm512_storeu_si512(out + (4 + j) * stride, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
            _mm512_storeu_si512(out + (8 + j) * stride, _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
            _mm512_storeu_si512(out + (12 + j) * stride, _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
        }
    }
};
