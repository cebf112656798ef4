// Included once per instruction set, after its Singles, Pairs and Quads: units of one float, two bfloat16 and four bytes.
// A row has kSteps units for each unit of the weight, which are multiplied one after the other.

constexpr std::size_t kUnitsAhead = 512;  // units of a panel prefetched ahead

// Of one row and two panels.
template <typename Sum>
struct Sums {
    Sum of[2];
};

// Adds units `begin` to `end` of rows [kRows, row_units] times kPanels panels; from 0 on these are the first. Loops over
// rows are unrolled so that the sums stay in registers.
template <typename Units, std::size_t kRows, std::size_t kPanels>
static BATON_INLINE void multiply_panels(const Unit* rows, std::size_t row_units, std::size_t begin, std::size_t end,
                                         const Unit* const* panels, Sums<typename Units::Sum>* sums,
                                         std::size_t first_panel) {
    typename Units::Sum added[kPanels][kRows];
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
        for (std::size_t k = 0; k < kPanels; ++k) {
            added[k][row] = begin ? sums[row].of[first_panel + k] : Units::none();
        }
    }
    for (std::size_t unit = begin; unit < end; ++unit) {
        const Unit* at[kPanels];
#pragma GCC unroll 2
        for (std::size_t k = 0; k < kPanels; ++k) {
            at[k] = panels[first_panel + k] + unit * kColumns;
            _mm_prefetch(reinterpret_cast<const char*>(at[k] + kUnitsAhead), _MM_HINT_T0);
        }
#pragma GCC unroll 2
        for (std::size_t step = 0; step < Units::kSteps; ++step) {
            typename Units::Weights weights[kPanels];
#pragma GCC unroll 2
            for (std::size_t k = 0; k < kPanels; ++k) weights[k] = Units::weights(at[k], step);
#pragma GCC unroll 8
            for (std::size_t row = 0; row < kRows; ++row) {
                const auto input = Units::input(rows[row * row_units + unit * Units::kSteps + step]);
#pragma GCC unroll 2
                for (std::size_t k = 0; k < kPanels; ++k) Units::add(added[k][row], input, weights[k]);
            }
        }
    }
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
        for (std::size_t k = 0; k < kPanels; ++k) sums[row].of[first_panel + k] = added[k][row];
    }
}

// Products whose sums are in registers. `Units`: Singles, Pairs or Quads.
template <typename Units>
struct InRegisters : Units {
    static constexpr std::size_t kMaxRows = kMaxTile;
    static constexpr std::size_t kUnitsOfBlock = kUnitsOfRegisters;

    // Tiles of about the same size.
    static std::size_t rows_at_once(std::size_t num_rows) { return divided_up(num_rows, divided_up(num_rows, kMaxTile)); }

    // Adds units `begin` to `end` of at most kMaxRows rows times two panels.
    void multiply(std::size_t num_rows, const Unit* rows, std::size_t row_units, std::size_t begin, std::size_t end,
                  const Unit* const* panels, Sums<typename Units::Sum>* sums) {
        static constexpr auto kMultiply = functions(std::make_index_sequence<kMaxTile>());
        kMultiply[num_rows - 1](rows, row_units, begin, end, panels, sums);
    }

private:
    // Of two panels at once if their sums fit in registers.
    template <std::size_t kRows>
    static void multiply_rows(const Unit* rows, std::size_t row_units, std::size_t begin, std::size_t end,
                              const Unit* const* panels, Sums<typename Units::Sum>* sums) {
        if constexpr (kRows <= kRowsOfTwoPanels) {
            multiply_panels<Units, kRows, 2>(rows, row_units, begin, end, panels, sums, 0);
        } else {
            multiply_panels<Units, kRows, 1>(rows, row_units, begin, end, panels, sums, 0);
            multiply_panels<Units, kRows, 1>(rows, row_units, begin, end, panels, sums, 1);
        }
    }

    template <std::size_t... kRowsLessOne>
    static constexpr auto functions(std::index_sequence<kRowsLessOne...>) {
        return std::array{multiply_rows<kRowsLessOne + 1>...};
    }
};

#if defined(BATON_TILES)
#include "amx.inl"
#else
using FloatProducts = InRegisters<Singles>;
using PairProducts = InRegisters<Pairs>;
using ByteProducts = InRegisters<Quads>;
#endif

static BATON_INLINE Floats bias_of(const Task& task, std::size_t column, std::size_t count) {
    return task.bias ? load(reinterpret_cast<const Bfloat16*>(task.bias) + column, count) : Floats{};
}

// Rows times weight, plus bias; a step is two panels, the last one, if it is alone, both times the same.
struct Plain {
    static std::size_t panel(std::size_t step) { return 2 * step; }

    static std::size_t other_panel(const Weight& weight, std::size_t step) {
        return std::min(2 * step + 1, weight.num_panels() - 1);
    }

    template <typename Units>
    static void store(const Task& task, std::size_t step, std::size_t row, std::size_t count,
                      const Sums<typename Units::Sum>* sums) {
        using Result = std::conditional_t<std::is_same<Units, FloatProducts>::value, float, Bfloat16>;
        const std::size_t width = task.weight.num_outputs, column = 2 * step * kColumns, left = width - column;
        const bool has_others = left > kColumns;
        const Floats bias = bias_of(task, column, left);
        const Floats others = has_others ? bias_of(task, column + kColumns, left - kColumns) : bias;
        auto* result = static_cast<Result*>(task.result) + row * width + column;
        for (std::size_t i = 0; i < count; ++i, result += width) {
            store_columns(Units::value(sums[i].of[0], task, row + i, column) + bias, left, result);
            if (!has_others) continue;
            const Floats second = Units::value(sums[i].of[1], task, row + i, column + kColumns);
            store_columns(second + others, left - kColumns, result + kColumns);
        }
    }
};

// The same, added to columns of a wider result in bfloat16.
struct Added : Plain {
    template <typename Units>
    static void store(const Task& task, std::size_t step, std::size_t row, std::size_t count,
                      const Sums<typename Units::Sum>* sums) {
        const std::size_t column = 2 * step * kColumns, left = task.weight.num_outputs - column;
        auto* result = static_cast<Bfloat16*>(task.result) + row * task.stride + column;
        for (std::size_t i = 0; i < count; ++i, result += task.stride) {
            store_columns(load(result, left) + Units::value(sums[i].of[0], task, row + i, column), left, result);
            if (left <= kColumns) continue;
            Bfloat16* others = result + kColumns;
            const Floats second = Units::value(sums[i].of[1], task, row + i, column + kColumns);
            store_columns(load(others, left - kColumns) + second, left - kColumns, others);
        }
    }
};

// silu(gate) * up of a weight whose first half of outputs, full panels, are gates; a step is a panel of each.
struct Gated {
    static std::size_t panel(std::size_t step) { return step; }

    static std::size_t other_panel(const Weight& weight, std::size_t step) { return step + weight.num_panels() / 2; }

    template <typename Units>
    static void store(const Task& task, std::size_t step, std::size_t row, std::size_t count,
                      const Sums<typename Units::Sum>* sums) {
        const std::size_t width = task.weight.num_outputs / 2, column = step * kColumns;
        auto* result = static_cast<Bfloat16*>(task.result) + row * width + column;
        for (std::size_t i = 0; i < count; ++i, result += width) {
            const Floats gate = Units::value(sums[i].of[0], task, row + i, column);
            const Floats up = Units::value(sums[i].of[1], task, row + i, width + column);
            store_columns(gate / (1.0f + exponential(-gate)) * up, kColumns, result);
        }
    }
};

// Some steps for at most kRowsOfBlock rows.
template <typename Kind, typename Products>
static void compute_rows(Products& products, const Task& task, const Share& share, std::size_t first_row,
                         std::size_t num_rows) {
    Sums<typename Products::Sum> sums[kRowsOfBlock];
    const std::size_t num_units = task.weight.num_units(), row_units = num_units * Products::kSteps;
    const std::size_t at_once = Products::rows_at_once(num_rows);
    for (std::size_t step = share.first_step; step < share.end_step; ++step) {
        const Unit* panels[] = {task.weight.panel(Kind::panel(step)),
                                task.weight.panel(Kind::other_panel(task.weight, step))};
        for (std::size_t unit = 0; unit < num_units; unit += Products::kUnitsOfBlock) {
            const std::size_t end = std::min(unit + Products::kUnitsOfBlock, num_units);
            for (std::size_t row = 0; row < num_rows; row += at_once) {
                const std::size_t count = std::min(at_once, num_rows - row);
                const Unit* rows = task.rows + (first_row + row) * row_units;
                products.multiply(count, rows, row_units, unit, end, panels, sums + row);
                if (end == num_units) Kind::template store<Products>(task, step, first_row + row, count, sums + row);
            }
        }
    }
}

template <typename Kind, typename Products>
static void compute_share(const Task& task, const Share& share) {
    Products products;
    for (std::size_t row = share.first_row; row < share.end_row; row += kRowsOfBlock) {
        compute_rows<Kind>(products, task, share, row, std::min(kRowsOfBlock, share.end_row - row));
    }
}

template <typename Kind>
static void compute(const Task& task, const Share& share) {
    if (task.weight.is_bytes()) return compute_share<Kind, ByteProducts>(task, share);
    if (task.weight.is_floats()) return compute_share<Kind, FloatProducts>(task, share);
    compute_share<Kind, PairProducts>(task, share);
}

static std::size_t steps_of(const Weight& weight) {
    return weight.is_bytes() ? Quads::kSteps : weight.is_floats() ? Singles::kSteps : Pairs::kSteps;
}

// Converts rows `first` to `end` of bfloat16 for a weight: to floats, or to bytes around 128, with their scales.
static void convert(const Weight& weight, const std::uint16_t* rows, std::size_t first, std::size_t end, Unit* result,
                    float* scales) {
    const std::size_t width = weight.num_inputs, row_units = weight.num_units() * steps_of(weight);
    const auto* from = reinterpret_cast<const Bfloat16*>(rows);
    if (!weight.is_bytes()) {
        auto* to = reinterpret_cast<float*>(result);
        for (std::size_t i = first * width; i < end * width; i += kLanes) {
            store(load(from + i, end * width - i), end * width - i, to + i);
        }
        return;
    }
    for (std::size_t row = first; row < end; ++row) {
        // The bytes are at the end of their row, so that they can be spread in place from its beginning.
        auto* bytes = reinterpret_cast<std::uint8_t*>(result + (row + 1) * row_units) - width;
        scales[row] = quantise_row(from + row * width, width, bytes);
        Quads::spread(bytes, weight.num_units(), result + row * row_units);
    }
}
