// Scores of int8 keys by integer products, four elements per cell. A query is stored as two 8-bit digits, 256 *
// high + low, times a scale: slightly more precise than bfloat16 for its largest elements. Integer sums are exact.

struct QuadProducts {
    using Cell = std::uint32_t;
    static constexpr std::size_t kRows = Lanes::kRows / 2;  // both digits of each stay in registers
    static constexpr float kGreatest = 127 * 256;     // of a query in digits
    static constexpr float kSmallestScale = 1e-37f;  // below it a query counts as zeros

    static BATON_INLINE std::size_t num_cells(std::size_t width) { return (width + 3) / 4; }

    // `to`: [2, cells], the high digits and the low ones.
    template <typename Storage>
    static inline QueryDigits load_query(const char* from, std::size_t width, Cell* to) {
        std::int8_t* high = reinterpret_cast<std::int8_t*>(to);
        std::int8_t* low = high + 4 * num_cells(width);
        std::memset(to, 0, 2 * num_cells(width) * sizeof *to);
        const std::int32_t bits = greatest_bits<Storage>(from, width);
        if (bits >= kInfinity) return {INFINITY, {0, 0}};  // scores become NaN
        float greatest;
        std::memcpy(&greatest, &bits, sizeof greatest);
        const float scale = greatest / kGreatest;
        if (scale < kSmallestScale) return {0.0f, {0, 0}};
        std::int32_t high_sum = 0, low_sum = 0;
        for (std::size_t i = 0; i < width; ++i) {
            const auto whole = static_cast<std::int32_t>((element<Storage>(from, i) / scale + kRounding) - kRounding);
            const std::int32_t upper = (whole + 128) >> 8, lower = whole - 256 * upper;
            high[i] = static_cast<std::int8_t>(upper);
            low[i] = static_cast<std::int8_t>(lower);
            high_sum += upper;
            low_sum += lower;
        }
        return {scale, {128 * high_sum, 128 * low_sum}};
    }

    // 4 * kWidth elements, or the `count` that are left, of as many keys as there are lanes, from `quads`.
    static BATON_INLINE void store_keys(const std::uint32_t* quads, std::size_t count, Cell* to) {
        const __m512i unsigned_bias = _mm512_set1_epi8(-128);
        for (std::size_t cell = 0; 4 * cell < count; ++cell) {
            const __m512i cells = _mm512_loadu_si512(quads + cell * Lanes::kWidth);
            _mm512_storeu_si512(to + cell * kPanel, _mm512_xor_si512(cells, unsigned_bias));
        }
    }

    // `queries`: [rows, 2, cells]; `keys`: [cells, kPanel]; `scales`: of the keys; `to`: [rows, kSplit].
    template <std::size_t kNumRows, std::size_t kVectors>
    static inline void score_tile(const Cell* queries, const QueryDigits* digits, const Cell* keys, std::size_t depth,
                                  const float* scales, float* to) {
        __m512i sums[2 * kNumRows][kVectors];
        for (auto& row : sums) {
            for (__m512i& sum : row) sum = _mm512_setzero_si512();
        }
        for (std::size_t cell = 0; cell < depth; ++cell, keys += kPanel) {
            __m512i right[kVectors];
            for (std::size_t i = 0; i < kVectors; ++i) right[i] = _mm512_loadu_si512(keys + i * Lanes::kWidth);
            for (std::size_t row = 0; row < 2 * kNumRows; ++row) {
                const __m512i left = _mm512_set1_epi32(static_cast<int>(queries[row * depth + cell]));
                for (std::size_t i = 0; i < kVectors; ++i) sums[row][i] = _mm512_dpbusd_epi32(sums[row][i], right[i], left);
            }
        }
#pragma GCC unroll 8  // else the sums are in memory, and are written there at every step
        for (std::size_t row = 0; row < kNumRows; ++row) {
            const Lanes::Floats scale = Lanes::broadcast(digits[row].scale);
#pragma GCC unroll 8
            for (std::size_t i = 0; i < kVectors; ++i) {
                const Lanes::Floats high = floats(sums[2 * row][i], digits[row].bias[0]);
                const Lanes::Floats low = floats(sums[2 * row + 1][i], digits[row].bias[1]);
                const Lanes::Floats whole = Lanes::multiply_add(high, Lanes::broadcast(256.0f), low);
                const Lanes::Floats by_key = Lanes::multiply(Lanes::load(scales + i * Lanes::kWidth), scale);
                Lanes::store(to + row * kSplit + i * Lanes::kWidth, Lanes::multiply(whole, by_key));
            }
        }
    }

    // `num_rows` up to kRows, `num_vectors` up to Lanes::kVectors.
    template <std::size_t kNumRows = kRows, std::size_t kVectors = Lanes::kVectors>
    static inline void score(const Cell* queries, const QueryDigits* digits, const Cell* keys, std::size_t depth,
                             const float* scales, float* to, std::size_t num_rows, std::size_t num_vectors) {
        if constexpr (kNumRows > 1) {
            if (num_rows < kNumRows) {
                return score<kNumRows - 1, kVectors>(queries, digits, keys, depth, scales, to, num_rows, num_vectors);
            }
        }
        if constexpr (kVectors > 1) {
            if (num_vectors < kVectors) {
                return score<kNumRows, kVectors - 1>(queries, digits, keys, depth, scales, to, num_rows, num_vectors);
            }
        }
        score_tile<kNumRows, kVectors>(queries, digits, keys, depth, scales, to);
    }

private:
    static BATON_INLINE Lanes::Floats floats(__m512i sums, std::int32_t bias) {
        return _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_set1_epi32(bias)));
    }
};
