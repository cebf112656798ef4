// Products of a few rows with a packed panel. Each sum runs separately in the order of the depth, so that its bits do
// not depend on which rows are computed together.

template <typename Cells>
struct Factors {
    const typename Cells::Cell* left;  // [rows, left_stride]
    std::size_t left_stride;
    const typename Cells::Cell* right;  // [depth, kPanel]
    std::size_t depth;
    const float* start;  // initial sums, [rows, start_stride]; null for zeros
    std::size_t start_stride;
};

// Stores the sums as scores: [rows, kSplit].
struct Scores {
    float* to;
    Lanes::Floats scale;

    template <std::size_t kRows, std::size_t kVectors>
    BATON_INLINE void take(const Lanes::Floats (&sums)[kRows][kVectors]) const {
        for (std::size_t row = 0; row < kRows; ++row) {
            for (std::size_t vector = 0; vector < kVectors; ++vector) {
                Lanes::store(to + row * kSplit + vector * Lanes::kWidth, Lanes::multiply(sums[row][vector], scale));
            }
        }
    }
};

// Stores the sums as scores of keys with own scales, which include the factor on the scores.
struct KeyScores {
    float* to;
    const float* scales;

    template <std::size_t kRows, std::size_t kVectors>
    BATON_INLINE void take(const Lanes::Floats (&sums)[kRows][kVectors]) const {
        for (std::size_t vector = 0; vector < kVectors; ++vector) {
            const Lanes::Floats scale = Lanes::load(scales + vector * Lanes::kWidth);
            for (std::size_t row = 0; row < kRows; ++row) {
                Lanes::store(to + row * kSplit + vector * Lanes::kWidth, Lanes::multiply(sums[row][vector], scale));
            }
        }
    }
};

// Merges one vector of a split's value with the previous splits.
static BATON_INLINE Lanes::Floats joined(Lanes::Floats before, Lanes::Floats value, Lanes::Floats keep, Lanes::Floats add) {
    return Lanes::multiply_add(before, keep, Lanes::multiply(value, add));
}

// Stores the sums as values of a split: [rows, stride].
struct Values {
    float* to;
    std::size_t stride;
    const Merge* merges;
    bool is_first;  // no previous split

    template <std::size_t kRows, std::size_t kVectors>
    BATON_INLINE void take(const Lanes::Floats (&sums)[kRows][kVectors]) const {
        for (std::size_t row = 0; row < kRows; ++row) {
            const Lanes::Floats keep = Lanes::broadcast(merges[row].keep), add = Lanes::broadcast(merges[row].add);
            for (std::size_t vector = 0; vector < kVectors; ++vector) {
                float* place = to + row * stride + vector * Lanes::kWidth;
                Lanes::store(place, is_first ? sums[row][vector] : joined(Lanes::load(place), sums[row][vector], keep, add));
            }
        }
    }
};

template <typename Cells, std::size_t kRows, std::size_t kVectors, typename Sink>
static inline void multiply_tile(const Factors<Cells>& factors, const Sink& sink) {
    Lanes::Floats sums[kRows][kVectors];
    for (std::size_t row = 0; row < kRows; ++row) {
        for (std::size_t vector = 0; vector < kVectors; ++vector) {
            const float* start = factors.start + row * factors.start_stride + vector * Lanes::kWidth;
            sums[row][vector] = factors.start ? Lanes::load(start) : Lanes::broadcast(0.0f);
        }
    }
    const typename Cells::Cell* right = factors.right;
    for (std::size_t step = 0; step < factors.depth; ++step, right += kPanel) {
        typename Cells::Vector cells[kVectors];
        for (std::size_t vector = 0; vector < kVectors; ++vector) cells[vector] = Cells::load(right + vector * Lanes::kWidth);
        for (std::size_t row = 0; row < kRows; ++row) {
            const typename Cells::Vector left = Cells::broadcast(factors.left + row * factors.left_stride + step);
            for (std::size_t vector = 0; vector < kVectors; ++vector) {
                sums[row][vector] = Cells::multiply_add(left, cells[vector], sums[row][vector]);
            }
        }
    }
    sink.take(sums);
}

template <typename Cells, std::size_t kRows, std::size_t kVectors, typename Sink>
static inline void multiply_vectors(const Factors<Cells>& factors, std::size_t num_vectors, const Sink& sink) {
    if constexpr (kVectors > 1) {
        if (num_vectors < kVectors) return multiply_vectors<Cells, kRows, kVectors - 1>(factors, num_vectors, sink);
    }
    multiply_tile<Cells, kRows, kVectors>(factors, sink);
}

// `num_rows` up to Lanes::kRows, `num_vectors` up to Lanes::kVectors.
template <typename Cells, std::size_t kRows = Lanes::kRows, typename Sink>
static inline void multiply(const Factors<Cells>& factors, std::size_t num_rows, std::size_t num_vectors,
                            const Sink& sink) {
    if constexpr (kRows > 1) {
        if (num_rows < kRows) return multiply<Cells, kRows - 1>(factors, num_rows, num_vectors, sink);
    }
    multiply_vectors<Cells, kRows, Lanes::kVectors>(factors, num_vectors, sink);
}
