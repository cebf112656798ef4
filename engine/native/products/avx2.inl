// Units of AVX2, with or without products of four bytes. A panel's 16 columns fill two registers.

constexpr std::size_t kMaxTile = 6;  // rows multiplied at once, with sums in registers
constexpr std::size_t kRowsOfTwoPanels = 3;
constexpr std::size_t kRowsOfBlock = 128;
constexpr std::size_t kUnitsOfRegisters = 1 << 9;  // units of a row: this much of a tile's rows stays in the first cache

// Units of one float.
struct Singles {
    struct Sum {
        __m256 low, high;
    };
    using Weights = Sum;
    static constexpr std::size_t kSteps = 1;

    static BATON_INLINE Sum none() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

    static BATON_INLINE Weights weights(const Unit* at, std::size_t) {
        const auto* floats = reinterpret_cast<const float*>(at);
        return {_mm256_loadu_ps(floats), _mm256_loadu_ps(floats + 8)};
    }

    static BATON_INLINE __m256 input(Unit of_row) { return (__m256)_mm256_set1_epi32(static_cast<int>(of_row)); }

    static BATON_INLINE void add(Sum& sum, __m256 input, const Weights& weights) {
        sum.low = _mm256_fmadd_ps(input, weights.low, sum.low);
        sum.high = _mm256_fmadd_ps(input, weights.high, sum.high);
    }

    static BATON_INLINE Floats value(const Sum& sum, const Task&, std::size_t, std::size_t) {
        return bits_of<Floats>(sum);
    }
};

// Units of two bfloat16, a float a step.
struct Pairs : Singles {
    static constexpr std::size_t kSteps = 2;

    static BATON_INLINE Weights weights(const Unit* at, std::size_t step) {
        const auto* both = reinterpret_cast<const __m256i*>(at);
        return {one_of(_mm256_loadu_si256(both), step), one_of(_mm256_loadu_si256(both + 1), step)};
    }

private:
    static BATON_INLINE __m256 one_of(__m256i both, std::size_t step) {
        return (__m256)(step ? _mm256_and_si256(both, _mm256_set1_epi32(~0xFFFF)) : _mm256_slli_epi32(both, 16));
    }
};

// Units of four bytes.
struct Quads {
    struct Sum {
        __m256i low, high;
    };
    using Weights = Sum;

    static BATON_INLINE Sum none() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }

    static BATON_INLINE __m256i input(Unit of_row) { return _mm256_set1_epi32(static_cast<int>(of_row)); }

    static BATON_INLINE Floats value(const Sum& sum, const Task& task, std::size_t row, std::size_t column) {
        Words offsets;
        Floats scales;
        std::memcpy(&offsets, task.weight.offsets + column, sizeof offsets);
        std::memcpy(&scales, task.weight.scales + column, sizeof scales);
        const auto numbers = bits_of<Integers>(bits_of<Words>(sum) - offsets);
        return __builtin_convertvector(numbers, Floats) * scales * task.row_scales[row];
    }

#if defined(BATON_BYTE_QUADS)

    static constexpr std::size_t kSteps = 1;

    static BATON_INLINE Weights weights(const Unit* at, std::size_t) {
        const auto* bytes = reinterpret_cast<const __m256i*>(at);
        return {_mm256_loadu_si256(bytes), _mm256_loadu_si256(bytes + 1)};
    }

    static BATON_INLINE void add(Sum& sum, __m256i input, const Weights& weights) {
        sum.low = _mm256_dpbusd_avx_epi32(sum.low, input, weights.low);
        sum.high = _mm256_dpbusd_avx_epi32(sum.high, input, weights.high);
    }

    static void spread(const std::uint8_t*, std::size_t, Unit*) {}

#else

    // The first and third byte of a unit, then the second and fourth, as integers of 16 bits: their sums cannot overflow.
    static constexpr std::size_t kSteps = 2;

    static BATON_INLINE Weights weights(const Unit* at, std::size_t step) {
        const auto* bytes = reinterpret_cast<const __m256i*>(at);
        return {two_of(_mm256_loadu_si256(bytes), step), two_of(_mm256_loadu_si256(bytes + 1), step)};
    }

    static BATON_INLINE void add(Sum& sum, __m256i input, const Weights& weights) {
        sum.low = _mm256_add_epi32(sum.low, _mm256_madd_epi16(input, weights.low));
        sum.high = _mm256_add_epi32(sum.high, _mm256_madd_epi16(input, weights.high));
    }

    static void spread(const std::uint8_t* bytes, std::size_t num_units, Unit* result) {
        for (std::size_t unit = 0; unit < num_units; ++unit) {
            Unit four;
            std::memcpy(&four, bytes + 4 * unit, sizeof four);
            result[2 * unit] = four & 0x00FF00FF;
            result[2 * unit + 1] = four >> 8 & 0x00FF00FF;
        }
    }

private:
    static BATON_INLINE __m256i two_of(__m256i bytes, std::size_t step) {
        return _mm256_srai_epi16(step ? bytes : _mm256_slli_epi16(bytes, 8), 8);
    }

#endif
};

template <typename T>
static BATON_INLINE void store_columns(Floats sums, std::size_t count, T* to) {
    store(sums, count, to);
}
