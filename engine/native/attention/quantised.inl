// 8-bit and 4-bit keys and values: a row is int8 elements, or codes that are unpacked to such elements before use, followed by their scale in single precision.
// Products use the unscaled elements, which all kinds of cells hold exactly; a key's scale goes to its score, a value's
// to its weight.

template <typename T>
static constexpr bool kIsInt8 = sizeof(T) == 1;

static constexpr std::int32_t kInfinity = 0x7f800000;  // its bits

static BATON_INLINE float scale_of(const char* row, std::size_t num_bytes) {
    float scale;
    std::memcpy(&scale, row + num_bytes, sizeof scale);
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

// A 4-bit row is codes from 0 to 15, which stand for -8 to 7: byte i holds element i in its low half, and element
// i + width / 2 in its high half. They are followed by the scale, as in 8 bits.
static BATON_INLINE std::size_t int4_bytes(std::size_t width) { return width / 2; }

// The element that is greatest in absolute value, or the positive one of two, becomes -8; the others are rounded to nearest,
// ties to even, and are at most 7. So the scale may be negative. Rows of zeros and rows that are not finite are as in 8 bits.
// `engine/attention/int4_rows.py` writes the same bits.
template <typename Storage>
static inline void quantise_int4(const char* row, std::size_t width, char* to) {
    constexpr std::uint8_t kZeros = 0x88;  // two of them
    float greatest = 0.0f, least = 0.0f;
    for (std::size_t i = 0; i < width; ++i) {
        const float value = element<Storage>(row, i);
        greatest = value > greatest ? value : greatest;
        least = value < least ? value : least;
    }
    float scale = (greatest >= -least ? greatest : least) / -8.0f;
    if (greatest_bits<Storage>(row, width) >= kInfinity) scale = INFINITY;
    if (scale == 0.0f) scale = 0.0f;  // without a sign
    std::memcpy(to + int4_bytes(width), &scale, sizeof scale);
    if (scale == 0.0f || scale == INFINITY) {
        std::memset(to, kZeros, int4_bytes(width));
        return;
    }
    const auto code = [&](std::size_t place) {
        const float nearest = (element<Storage>(row, place) / scale + kRounding) - kRounding;
        const float bounded = nearest > 7.0f ? 7.0f : nearest < -8.0f ? -8.0f : nearest;
        return static_cast<std::uint8_t>(static_cast<std::int32_t>(bounded) + 8);
    };
    for (std::size_t i = 0; i < int4_bytes(width); ++i) {
        to[i] = static_cast<char>(code(i) | code(i + int4_bytes(width)) << 4);
    }
}

// Unpacks `count` 4-bit rows into 8-bit elements. Returns pointers to them, with kDistance more that may be followed.
static inline const char* const* unpack_int4(const char* const* rows, std::size_t count, std::size_t width,
                                             std::int8_t* elements, const char** to) {
    const std::size_t half = int4_bytes(width), stride = round_up(width, 64);
    for (std::size_t row = 0; row < count; ++row) {
        for (std::size_t byte = 0; byte < half; byte += 64) __builtin_prefetch(rows[row + kDistance] + byte);
        const auto* __restrict from = reinterpret_cast<const std::uint8_t*>(rows[row]);
        std::int8_t* __restrict low = elements + row * stride;
        std::int8_t* __restrict high = low + half;
        for (std::size_t i = 0; i < half; ++i) {
            low[i] = static_cast<std::int8_t>((from[i] & 15) - 8);
            high[i] = static_cast<std::int8_t>((from[i] >> 4) - 8);
        }
        to[row] = reinterpret_cast<const char*>(low);
    }
    for (std::size_t row = count; row < count + kDistance; ++row) to[row] = reinterpret_cast<const char*>(elements);
    return to;
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
