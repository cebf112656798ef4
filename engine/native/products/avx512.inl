// Units of AVX-512, with or without products of bfloat16 pairs.

constexpr std::size_t kMaxTile = 8;  // rows multiplied at once, with sums in registers
constexpr std::size_t kRowsOfTwoPanels = 8;
constexpr std::size_t kRowsOfBlock = 128;
constexpr std::size_t kUnitsOfRegisters = 1 << 11;  // units of a row: this much of two panels stays in a core's cache

// Units of one float.
struct Singles {
    using Sum = __m512;
    using Weights = __m512;
    static constexpr std::size_t kSteps = 1;

    static BATON_INLINE Sum none() { return _mm512_setzero_ps(); }

    static BATON_INLINE Weights weights(const Unit* at, std::size_t) { return _mm512_loadu_ps(at); }

    static BATON_INLINE __m512 input(Unit of_row) { return (__m512)_mm512_set1_epi32(static_cast<int>(of_row)); }

    static BATON_INLINE void add(Sum& sum, __m512 input, Weights weights) { sum = _mm512_fmadd_ps(input, weights, sum); }

    static BATON_INLINE Floats value(Sum sum, const Task&, std::size_t, std::size_t) { return (Floats)sum; }
};

// Units of two bfloat16.
#if defined(BATON_BFLOAT16_PAIRS)

struct Pairs : Singles {
    using Weights = __m512i;

    static BATON_INLINE Weights weights(const Unit* at, std::size_t) { return _mm512_loadu_si512(at); }

    static BATON_INLINE __m512i input(Unit of_row) { return _mm512_set1_epi32(static_cast<int>(of_row)); }

    static BATON_INLINE void add(Sum& sum, __m512i input, Weights weights) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)input, (__m512bh)weights);
    }
};

#else

struct Pairs : Singles {  // a float a step
    static constexpr std::size_t kSteps = 2;

    static BATON_INLINE Weights weights(const Unit* at, std::size_t step) {
        const __m512i both = _mm512_loadu_si512(at);
        return (__m512)(step ? _mm512_and_si512(both, _mm512_set1_epi32(~0xFFFF)) : _mm512_slli_epi32(both, 16));
    }
};

#endif

// Units of four bytes.
struct Quads {
    using Sum = __m512i;
    using Weights = __m512i;
    static constexpr std::size_t kSteps = 1;

    static BATON_INLINE Sum none() { return _mm512_setzero_si512(); }

    static BATON_INLINE Weights weights(const Unit* at, std::size_t) { return _mm512_loadu_si512(at); }

    static BATON_INLINE __m512i input(Unit of_row) { return _mm512_set1_epi32(static_cast<int>(of_row)); }

    static BATON_INLINE void add(Sum& sum, __m512i input, Weights weights) {
        sum = _mm512_dpbusd_epi32(sum, input, weights);
    }

    static void spread(const std::uint8_t*, std::size_t, Unit*) {}

    static BATON_INLINE Floats value(Sum sum, const Task& task, std::size_t row, std::size_t column) {
        const __m512i offsets = _mm512_loadu_si512(task.weight.offsets + column);
        const __m512 scales = _mm512_loadu_ps(task.weight.scales + column);
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sum, offsets)), scales);
        return (Floats)_mm512_mul_ps(scaled, _mm512_set1_ps(task.row_scales[row]));
    }
};

static BATON_INLINE void store_columns(Floats sums, std::size_t count, float* to) { store(sums, count, to); }

static BATON_INLINE void store_columns(Floats sums, std::size_t count, Bfloat16* to) {
#if defined(BATON_BFLOAT16_PAIRS)
    const auto columns = static_cast<__mmask16>(count >= kColumns ? 0xFFFF : (1u << count) - 1);
    _mm256_mask_storeu_epi16(to, columns, (__m256i)_mm512_cvtneps_pbh((__m512)sums));
#else
    store(sums, count, to);
#endif
}
