// One split's weights, and how splits are merged.

// Lanes of the keys from `key` on, and `other` in those of keys that are not seen.
static BATON_INLINE Lanes::Floats where_seen(Lanes::Floats lanes, std::size_t key, Seen seen, Lanes::Floats other) {
    if (key + Lanes::kWidth > seen.end) lanes = Lanes::first(lanes, seen.end - key, other);
    return key < seen.first ? Lanes::first(other, seen.first - key, lanes) : lanes;
}

static BATON_INLINE float greatest(const float* scores, Seen seen) {
    const Lanes::Floats none = Lanes::broadcast(-INFINITY);
    Lanes::Floats max = none;
    for (std::size_t key = seen.first / Lanes::kWidth * Lanes::kWidth; key < seen.end; key += Lanes::kWidth) {
        max = Lanes::max(max, where_seen(Lanes::load(scores + key), key, seen, none));
    }
    return Lanes::max_across(max);
}

static BATON_INLINE Lanes::Floats weights_at(const float* scores, std::size_t key, Seen seen, Lanes::Floats max) {
    const Lanes::Floats zeros = Lanes::broadcast(0.0f);
    if (key >= seen.end || key + Lanes::kWidth <= seen.first) return zeros;
    return where_seen(Lanes::exp2(Lanes::subtract(Lanes::load(scores + key), max)), key, seen, zeros);
}

// Weights of the seen keys, zeros for the others from `start` to `padded`: in place, or in `cells` of two keys each.
template <typename Cells, bool kInPlace>
static inline RowState softmax(float* scores, Seen seen, std::size_t start, std::size_t padded, std::uint32_t* cells) {
    const float max = greatest(scores, seen);
    const Lanes::Floats maxima = Lanes::broadcast(max);
    Lanes::Floats sum = Lanes::broadcast(0.0f);
    for (std::size_t key = start; key < padded; key += Lanes::kWidth * (kInPlace ? 1 : Cells::kPerCell)) {
        const Lanes::Floats weights = weights_at(scores, key, seen, maxima);
        if constexpr (kInPlace) {
            Lanes::store(scores + key, weights);
            sum = Lanes::add(sum, weights);
        } else {
            const Lanes::Floats more = weights_at(scores, key + Lanes::kWidth, seen, maxima);
            sum = Lanes::add(sum, Cells::store_weights(cells + key / 2, weights, more));
        }
    }
    return {max, Lanes::sum_across(sum)};
}

// Merges a split into the row's state. A row that attends to nothing in the split is unchanged.
static inline Merge merged(RowState& state, const RowState& found, Seen seen) {
    if (seen.is_empty()) return {1.0f, 0.0f};
    const float max = state.max > found.max ? state.max : found.max;
    const Merge merge{exp2f(state.max - max), exp2f(found.max - max)};
    state = {max, state.sum * merge.keep + found.sum * merge.add};
    return merge;
}

// Factor on a row's value: 1 / sum of the weights, with that of the head's sink.
static inline float factor_of(const RowState& state, float sink) {
    const float sink_score = sink * static_cast<float>(kLog2E);
    const float max = state.max > sink_score ? state.max : sink_score, keep = exp2f(state.max - max);
    return keep / (state.sum * keep + exp2f(sink_score - max));
}

static inline void merge_values(float* values, const float* found, Merge merge, bool is_first, std::size_t stride) {
    const Lanes::Floats keep = Lanes::broadcast(merge.keep), add = Lanes::broadcast(merge.add);
    for (std::size_t place = 0; place < stride; place += Lanes::kWidth) {
        const Lanes::Floats lanes = Lanes::load(found + place);
        Lanes::store(values + place, is_first ? lanes : joined(Lanes::load(values + place), lanes, keep, add));
    }
}

// Rounds to nearest bfloat16, ties to even; NaN stays NaN.
static BATON_INLINE std::uint16_t rounded(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : nearest);
}

template <typename Storage>
static inline void write_row(const float* values, float factor, std::size_t width, char* out) {
    for (std::size_t place = 0; place < width; place += Lanes::kWidth) {
        float lanes[Lanes::kWidth];
        Lanes::store(lanes, Lanes::multiply(Lanes::load(values + place), Lanes::broadcast(factor)));
        const std::size_t count = smaller(Lanes::kWidth, width - place);
        if constexpr (sizeof(Storage) == 4) {
            std::memcpy(out + place * sizeof(Storage), lanes, count * sizeof(Storage));
        } else {
            std::uint16_t halves[Lanes::kWidth];
            for (std::size_t i = 0; i < Lanes::kWidth; ++i) halves[i] = rounded(lanes[i]);
            std::memcpy(out + place * sizeof(Storage), halves, count * sizeof(Storage));
        }
    }
}
