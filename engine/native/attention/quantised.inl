// 8-bit keys and values: a row is int8 elements, followed by their scale in single precision.
// Products use the unscaled elements, which all kinds of cells hold exactly; a key's scale goes to its score, a value's
// to its weight.

template <typename T>
static constexpr bool kIsInt8 = sizeof(T) == 1;

static constexpr std::int32_t kInfinity = 0x7f800000;  // its bits

static BATON_INLINE float scale_of(const char* row, std::size_t width) {
    float scale;
    std::memcpy(&scale, row + width, sizeof scale);
    return scale;
}

// A row's elements in single precision.
template <typename Storage>
static BATON_INLINE float element(const char* row, std::size_t place) {
    if constexpr (sizeof(Storage) == 4) {
        float value;
        std::memcpy(&value, row + place * sizeof value, sizeof value);
        return value;
    } else {
        std::uint16_t bits;
        std::memcpy(&bits, row + place * sizeof bits, sizeof bits);
        return widened(bits);
    }
}

// Largest absolute value of a row, as bits, which have the order of the numbers; infinity and NaN come
// last.
template <typename Storage>
static inline std::int32_t greatest_bits(const char* row, std::size_t width) {
    std::int32_t greatest = 0;
    for (std::size_t i = 0; i < width; ++i) {
        const float value = element<Storage>(row, i);
        std::int32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        bits &= 0x7fffffff;
        greatest = bits > greatest ? bits : greatest;
    }
    return greatest;
}

// The scale is the largest absolute value over 127; elements are rounded to nearest, ties to even. A row
// that is not finite has an infinite scale, so that it decodes to NaN. `engine/attention/int8_rows.py` writes the same
// bits.
template <typename Storage>
static inline void quantise(const char* row, std::size_t width, char* to) {
    const std::int32_t bits = greatest_bits<Storage>(row, width);
    float greatest;
    std::memcpy(&greatest, &bits, sizeof greatest);
    const float scale = bits < kInfinity ? greatest / 127.0f : INFINITY;
    std::memcpy(to + width, &scale, sizeof scale);
    if (scale == 0.0f || scale == INFINITY) {
        std::memset(to, 0, width);
        return;
    }
    for (std::size_t i = 0; i < width; ++i) {
        const float nearest = (element<Storage>(row, i) / scale + kRounding) - kRounding;
        const float bounded = nearest > 127.0f ? 127.0f : nearest < -127.0f ? -127.0f : nearest;  // if scale is inexact
        to[i] = static_cast<char>(static_cast<std::int8_t>(bounded));
    }
}

// 4 * kWidth elements, or the `count` that are left, of as many keys as there are lanes.
template <typename Cells>
static inline void pack_int8_tile(const char* const* rows, std::size_t place, std::size_t count,
                                  typename Cells::Cell* out) {
    std::uint32_t quads[Lanes::kWidth * Lanes::kWidth];
    Lanes::transpose(rows, place, quads, Lanes::kWidth);
    if constexpr (Cells::kHasQuads) {
        Cells::Quads::store_keys(quads, count, out);
    } else {
        for (std::size_t i = 0; i < count; i += 4) {
            Cells::spread_keys(quads + i / 4 * Lanes::kWidth, smaller(4, count - i), out + i * kPanel, kPanel);
        }
    }
}

// Columns of as many rows as there are lanes: out[cell * kPanel + row]; a cell holds four elements or one.
template <typename Cells>
static inline void pack_int8_keys(const char* const* rows, std::size_t width, typename Cells::Cell* out) {
    constexpr std::size_t kTile = 4 * Lanes::kWidth, kPerCell = Cells::kHasQuads ? 4 : 1;
    std::size_t place = 0;
    for (; place + kTile <= width; place += kTile) {
        for (std::size_t row = 0; row < Lanes::kWidth; ++row) __builtin_prefetch(rows[row + kDistance] + place);
        pack_int8_tile<Cells>(rows, place, kTile, out + place / kPerCell * kPanel);
    }
    if (place == width) return;
    char rest[Lanes::kWidth][kTile] = {};
    const char* copies[Lanes::kWidth];
    for (std::size_t row = 0; row < Lanes::kWidth; ++row) {
        std::memcpy(rest[row], rows[row] + place, width - place);
        copies[row] = rest[row];
    }
    pack_int8_tile<Cells>(copies, 0, width - place, out + place / kPerCell * kPanel);
}

// As many values as a cell holds; of their last vector, zeros beyond the width.
template <typename Cells>
static inline void spread_int8_values(const char* const* rows, std::size_t width, typename Cells::Cell* out,
                                      std::size_t panel_stride) {
    for (std::size_t place = 0; place < width; place += Lanes::kWidth) {
        typename Cells::Cell* to = out + place / kPanel * panel_stride + place % kPanel;
        char rest[Cells::kPerCell][Lanes::kWidth];
        const char* from[Cells::kPerCell];
        for (std::size_t row = 0; row < Cells::kPerCell; ++row) {
            from[row] = rows[row] + place;
            if (place + Lanes::kWidth <= width) continue;
            std::memset(rest[row], 0, sizeof rest[row]);
            std::memcpy(rest[row], from[row], width - place);
            from[row] = rest[row];
        }
        Cells::spread_values(from, to);
    }
}

static BATON_INLINE Lanes::Floats scaled_at(const float* weights, const float* scales, std::size_t key, std::size_t seen) {
    if (key >= seen) return Lanes::broadcast(0.0f);
    const Lanes::Floats scaled = Lanes::multiply(Lanes::load(weights + key), Lanes::load(scales + key));
    return key + Lanes::kWidth <= seen ? scaled : Lanes::first(scaled, seen - key, Lanes::broadcast(0.0f));
}

// Weights of the `seen` first keys times scales, zeros for the others of `count`: in place, or in `cells` of two keys each.
template <typename Cells>
static inline void scale(float* weights, const float* scales, std::size_t seen, std::size_t count, std::uint32_t* cells) {
    for (std::size_t key = 0; key < count; key += Lanes::kWidth * Cells::kPerCell) {
        const Lanes::Floats scaled = scaled_at(weights, scales, key, seen);
        if constexpr (Cells::kPerCell == 1) Lanes::store(weights + key, scaled);
        else Cells::store_weights(cells + key / 2, scaled, scaled_at(weights, scales, key + Lanes::kWidth, seen));
    }
}
