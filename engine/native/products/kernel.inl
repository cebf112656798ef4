// Included once, for the one instruction set that has all of these products.

constexpr std::size_t kUnitsAhead = 512;        // units of a panel prefetched ahead
constexpr std::size_t kUnitsOfBlock = 1 << 11;  // units of a row: this much of two panels stays in a core's cache
constexpr std::size_t kRowsOfBlock = 128;

// Units of one float.
struct Singles {
    using Sum = __m512;

    static BATON_INLINE Sum none() { return _mm512_setzero_ps(); }

    static BATON_INLINE Sum with(Sum sum, __m512i input, __m512i weights) {
        return _mm512_fmadd_ps((__m512)input, (__m512)weights, sum);
    }

    static BATON_INLINE __m512 value(Sum sum, const Task&, std::size_t, std::size_t) { return sum; }
};

// Units of two bfloat16.
struct Pairs {
    using Sum = __m512;

    static BATON_INLINE Sum none() { return _mm512_setzero_ps(); }

    static BATON_INLINE Sum with(Sum sum, __m512i input, __m512i weights) {
        return _mm512_dpbf16_ps(sum, (__m512bh)input, (__m512bh)weights);
    }

    static BATON_INLINE __m512 value(Sum sum, const Task&, std::size_t, std::size_t) { return sum; }
};

// Units of four bytes.
struct Quads {
    using Sum = __m512i;

    static BATON_INLINE Sum none() { return _mm512_setzero_si512(); }

    static BATON_INLINE Sum with(Sum sum, __m512i input, __m512i weights) {
        return _mm512_dpbusd_epi32(sum, input, weights);
    }

    static BATON_INLINE __m512 value(Sum sum, const Task& task, std::size_t row, std::size_t column) {
        const __m512i offsets = _mm512_loadu_si512(task.weight.offsets + column);
        const __m512 scales = _mm512_loadu_ps(task.weight.scales + column);
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sum, offsets)), scales);
        return _mm512_mul_ps(scaled, _mm512_set1_ps(task.row_scales[row]));
    }
};

// Of one row and two panels.
template <typename Units>
struct Sums {
    typename Units::Sum first, second;
};

// Adds units `begin` to `end` of rows [kRows, num_units] times two panels; from 0 on these are the first. Loops over rows
// are unrolled so that the sums stay in registers.
template <typename Units, std::size_t kRows>
static void multiply(const Unit* rows, std::size_t num_units, std::size_t begin, std::size_t end, const Unit* panel,
                     const Unit* other, Sums<Units>* sums) {
    typename Units::Sum first[kRows], second[kRows];
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kRows; ++row) {
        first[row] = begin ? sums[row].first : Units::none();
        second[row] = begin ? sums[row].second : Units::none();
    }
    panel += begin * kColumns;
    other += begin * kColumns;
    for (std::size_t unit = begin; unit < end; ++unit, panel += kColumns, other += kColumns) {
        const __m512i weights = _mm512_loadu_si512(panel), others = _mm512_loadu_si512(other);
        _mm_prefetch(reinterpret_cast<const char*>(panel + kUnitsAhead), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(other + kUnitsAhead), _MM_HINT_T0);
#pragma GCC unroll 8
        for (std::size_t row = 0; row < kRows; ++row) {
            const __m512i input = _mm512_set1_epi32(static_cast<int>(rows[row * num_units + unit]));
            first[row] = Units::with(first[row], input, weights);
            second[row] = Units::with(second[row], input, others);
        }
    }
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kRows; ++row) {
        sums[row].first = first[row];
        sums[row].second = second[row];
    }
}

static BATON_INLINE __mmask16 first_columns(std::size_t count) {
    return static_cast<__mmask16>(count >= kColumns ? 0xFFFF : (1u << count) - 1);
}

static BATON_INLINE void store_columns(__m512 sums, std::size_t count, float* to) {
    _mm512_mask_storeu_ps(to, first_columns(count), sums);
}

static BATON_INLINE void store_columns(__m512 sums, std::size_t count, std::uint16_t* to) {
    _mm256_mask_storeu_epi16(to, first_columns(count), (__m256i)_mm512_cvtneps_pbh(sums));
}

static BATON_INLINE __m512 bias_of(const Task& task, std::size_t column, std::size_t count) {
    if (!task.bias) return _mm512_setzero_ps();
    const __m256i halves = _mm256_maskz_loadu_epi16(first_columns(count), task.bias + column);
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
}

// Rows times weight, plus bias; a step is two panels, the last one, if it is alone, both times the same.
struct Plain {
    static std::size_t num_steps(const Weight& weight) { return divided_up(weight.num_panels(), 2); }

    static std::size_t panel(std::size_t step) { return 2 * step; }

    static std::size_t other_panel(const Weight& weight, std::size_t step) {
        return std::min(2 * step + 1, weight.num_panels() - 1);
    }

    template <typename Units>
    static void store(const Task& task, std::size_t step, std::size_t row, std::size_t count, const Sums<Units>* sums) {
        using Result = std::conditional_t<std::is_same<Units, Singles>::value, float, std::uint16_t>;
        const std::size_t width = task.weight.num_outputs, column = 2 * step * kColumns, left = width - column;
        const bool has_others = left > kColumns;
        const __m512 bias = bias_of(task, column, left);
        const __m512 others = has_others ? bias_of(task, column + kColumns, left - kColumns) : bias;
        auto* result = static_cast<Result*>(task.result) + row * width + column;
        for (std::size_t i = 0; i < count; ++i, result += width) {
            store_columns(_mm512_add_ps(Units::value(sums[i].first, task, row + i, column), bias), left, result);
            if (!has_others) continue;
            const __m512 second = Units::value(sums[i].second, task, row + i, column + kColumns);
            store_columns(_mm512_add_ps(second, others), left - kColumns, result + kColumns);
        }
    }
};

// silu(gate) * up of a weight whose first half of outputs, full panels, are gates; a step is a panel of each.
struct Gated {
    static std::size_t num_steps(const Weight& weight) { return weight.num_panels() / 2; }

    static std::size_t panel(std::size_t step) { return step; }

    static std::size_t other_panel(const Weight& weight, std::size_t step) { return step + num_steps(weight); }

    template <typename Units>
    static void store(const Task& task, std::size_t step, std::size_t row, std::size_t count, const Sums<Units>* sums) {
        const std::size_t width = task.weight.num_outputs / 2, column = step * kColumns;
        auto* result = static_cast<std::uint16_t*>(task.result) + row * width + column;
        for (std::size_t i = 0; i < count; ++i, result += width) {
            const auto gate = (Floats)Units::value(sums[i].first, task, row + i, column);
            const auto up = (Floats)Units::value(sums[i].second, task, row + i, width + column);
            store_columns((__m512)(gate / (1.0f + exponential(-gate)) * up), kColumns, result);
        }
    }
};

// One step for at most kRowsOfBlock rows.
template <typename Kind, typename Units>
static void compute_step(const Task& task, std::size_t step, std::size_t first_row, std::size_t num_rows) {
    using Multiply = void (*)(const Unit* rows, std::size_t num_units, std::size_t begin, std::size_t end,
                              const Unit* panel, const Unit* other, Sums<Units>* sums);
    static constexpr Multiply kMultiply[kMaxTile] = {  // so many rows, less one
        multiply<Units, 1>, multiply<Units, 2>, multiply<Units, 3>, multiply<Units, 4>,
        multiply<Units, 5>, multiply<Units, 6>, multiply<Units, 7>, multiply<Units, 8>};
    Sums<Units> sums[kRowsOfBlock];
    const std::size_t num_units = task.weight.num_units();
    const Unit* panel = task.weight.panel(Kind::panel(step));
    const Unit* other = task.weight.panel(Kind::other_panel(task.weight, step));
    for (std::size_t unit = 0; unit < num_units; unit += kUnitsOfBlock) {
        const std::size_t end = std::min(unit + kUnitsOfBlock, num_units);
        for (std::size_t row = 0; row < num_rows; row += kMaxTile) {
            const std::size_t count = std::min(kMaxTile, num_rows - row);
            const Unit* rows = task.rows + (first_row + row) * num_units;
            kMultiply[count - 1](rows, num_units, unit, end, panel, other, sums + row);
            if (end == num_units) Kind::template store<Units>(task, step, first_row + row, count, sums + row);
        }
    }
}

template <typename Kind>
static void compute(const Task& task, const Share& share) {
    for (std::size_t step = share.first_step; step < share.end_step; ++step) {
        for (std::size_t row = share.first_row; row < share.end_row; row += kRowsOfBlock) {
            const std::size_t num_rows = std::min(kRowsOfBlock, share.end_row - row);
            if (task.weight.is_bytes()) {
                compute_step<Kind, Quads>(task, step, row, num_rows);
            } else if (task.weight.is_floats()) {
                compute_step<Kind, Singles>(task, step, row, num_rows);
            } else {
                compute_step<Kind, Pairs>(task, step, row, num_rows);
            }
        }
    }
}

// Rows [.., width] of bfloat16 as floats.
static void widen_rows(const std::uint16_t* rows, std::size_t width, std::size_t first, std::size_t end, float* result) {
    for (std::size_t i = first * width; i < end * width; i += kLanes) {
        store(load(reinterpret_cast<const Bfloat16*>(rows) + i, end * width - i), end * width - i, result + i);
    }
}

// Rows [.., width] of bfloat16 as bytes around 128, and their scales.
static void quantise_rows(const std::uint16_t* rows, std::size_t width, std::size_t first, std::size_t end,
                          std::uint8_t* result, float* scales) {
    for (std::size_t row = first; row < end; ++row) {
        scales[row] = quantise_row(reinterpret_cast<const Bfloat16*>(rows) + row * width, width, result + row * width);
    }
}
