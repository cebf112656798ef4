// Products of pairs of bfloat16, summed in single precision; a cell holds two elements.

struct QuadProducts;

struct PairCells {
    using Quads = QuadProducts;  // for scores of keys in int8
    using Cell = std::uint32_t;
    using Vector = __m512bh;
    static constexpr std::size_t kPerCell = 2;
    static constexpr bool kHasQuads = true;

    static BATON_INLINE Vector load(const Cell* from) { return (__m512bh)_mm512_loadu_si512(from); }
    static BATON_INLINE Vector broadcast(const Cell* from) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(*from)); }

    static BATON_INLINE Lanes::Floats multiply_add(Vector left, Vector right, Lanes::Floats sum) {
        return _mm512_dpbf16_ps(sum, left, right);
    }

    // 32 weights as cells. Returns the sum of the weights as they were rounded, by lanes.
    static BATON_INLINE Lanes::Floats store_weights(Cell* to, Lanes::Floats low, Lanes::Floats high) {
        const __m512i cells = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_storeu_si512(to, cells);
        const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
        return _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(cells, 16)),
                             _mm512_castsi512_ps(_mm512_and_si512(cells, upper)));
    }

    // Two values' elements side by side, the first `count` <= 32 of them, in cells.
    static BATON_INLINE void interleave(const char* even, const char* odd, std::size_t count, Cell* to) {
        const __mmask32 mask = count < 32 ? (__mmask32{1} << count) - 1 : ~__mmask32{0};
        const __m512i left = _mm512_maskz_loadu_epi16(mask, even), right = _mm512_maskz_loadu_epi16(mask, odd);
        const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,  //
                                             39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(left, low, right));
        if (count > 16) _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(left, high, right));
    }

    // 16 elements of each of two values, from int8.
    static BATON_INLINE void spread_values(const char* const* rows, Cell* to) {
        const __m512i first = _mm512_castps_si512(Lanes::load_int8(rows[0]));  // as bfloat16 has them: the rest is zeros
        const __m512i second = _mm512_castps_si512(Lanes::load_int8(rows[1]));
        _mm512_storeu_si512(to, _mm512_or_si512(_mm512_srli_epi32(first, 16), second));
    }
};
