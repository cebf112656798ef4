// Packs queries, keys and values into cells, in the order in which products read them. `Storage` is the source
// type.

template <typename Storage, typename Cells>
static inline void load_query(const char* from, std::size_t width, typename Cells::Cell* to) {
    if constexpr (sizeof(Storage) == sizeof(*to)) {
        std::memcpy(to, from, width * sizeof(Storage));
    } else if constexpr (Cells::kPerCell == 2) {
        to[(width - 1) / 2] = 0;  // its second half, if the width is odd
        std::memcpy(to, from, width * sizeof(Storage));
    } else {
        for (std::size_t i = 0; i < width; ++i) {
            std::uint16_t bits;
            std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
            to[i] = widened(bits);
        }
    }
}

// The cell of elements `place` and, if it holds two, `place + 1`; zero beyond the width.
template <typename Storage, typename Cells>
static inline typename Cells::Cell cell_at(const char* row, std::size_t place, std::size_t width) {
    typename Cells::Cell cell;
    load_query<Storage, Cells>(row + place * sizeof(Storage), smaller(Cells::kPerCell, width - place), &cell);
    return cell;
}

// Columns of as many rows as there are lanes: out[cell * kPanel + row].
template <typename Storage, typename Cells>
static inline void pack_key_group(const char* const* rows, std::size_t width, typename Cells::Cell* out) {
    constexpr std::size_t kTileBytes = 4 * Lanes::kWidth, kTile = kTileBytes / sizeof(Storage);
    std::size_t place = 0;
    for (; place + kTile <= width; place += kTile) {
        const std::size_t offset = place * sizeof(Storage);
        for (std::size_t row = 0; row < Lanes::kWidth; ++row) __builtin_prefetch(rows[row + kDistance] + offset);
        typename Cells::Cell* to = out + place / Cells::kPerCell * kPanel;
        if constexpr (sizeof(Storage) * Cells::kPerCell == 4) {
            Lanes::transpose(rows, offset, reinterpret_cast<std::uint32_t*>(to), kPanel);
        } else {
            std::uint32_t pairs[Lanes::kWidth * Lanes::kWidth];
            Lanes::transpose(rows, offset, pairs, Lanes::kWidth);
            for (std::size_t pair = 0; pair < Lanes::kWidth; ++pair, to += 2 * kPanel) {
                Lanes::store(to, Lanes::low_halves(pairs + pair * Lanes::kWidth));
                Lanes::store(to + kPanel, Lanes::high_halves(pairs + pair * Lanes::kWidth));
            }
        }
    }
    for (; place < width; place += Cells::kPerCell) {
        typename Cells::Cell* to = out + place / Cells::kPerCell * kPanel;
        for (std::size_t row = 0; row < Lanes::kWidth; ++row) to[row] = cell_at<Storage, Cells>(rows[row], place, width);
    }
}

// `count` keys, a multiple of the lanes, as columns of a panel. Reads kDistance pointers more, to prefetch what they point
// at.
template <typename Storage, typename Cells>
static inline void pack_keys(const char* const* rows, std::size_t count, std::size_t width, typename Cells::Cell* out) {
    for (std::size_t key = 0; key < count; key += Lanes::kWidth) {
        if constexpr (kIsInt8<Storage>) pack_int8_keys<Cells>(rows + key, width, out + key);
        else pack_key_group<Storage, Cells>(rows + key, width, out + key);
    }
}

// One value in single precision; of its last vector, zeros beyond the width.
template <typename Storage, typename Cells>
static inline void spread_value(const char* row, std::size_t width, float* out, std::size_t panel_stride) {
    for (std::size_t place = 0; place < width; place += Lanes::kWidth) {
        float* to = out + place / kPanel * panel_stride + place % kPanel;
        const char* from = row + place * sizeof(Storage);
        if (place + Lanes::kWidth > width) {
            for (std::size_t i = 0; i < Lanes::kWidth; ++i) {
                to[i] = place + i < width ? cell_at<Storage, Cells>(row, place + i, width) : 0.0f;
            }
        } else if constexpr (sizeof(Storage) == 4) {
            std::memcpy(to, from, sizeof(float) * Lanes::kWidth);
        } else {
            Lanes::store(to, Lanes::load_bfloat16(from));
        }
    }
}

// Values by panels: [panels of a value, cells of a split, kPanel]. Where a cell holds two keys, the row after an odd last
// one is readable. Reads kDistance pointers more, as above.
template <typename Storage, typename Cells>
static inline void pack_values(const char* const* rows, std::size_t num_keys, std::size_t width,
                               typename Cells::Cell* out) {
    constexpr std::size_t kPanelStride = kSplit / Cells::kPerCell * kPanel;
    for (std::size_t key = 0; key < num_keys; key += Cells::kPerCell, out += kPanel) {
        for (std::size_t ahead = 0; ahead < Cells::kPerCell; ++ahead) {
            for (std::size_t byte = 0; byte < width * sizeof(Storage); byte += 64) {
                __builtin_prefetch(rows[key + ahead + kDistance] + byte);
            }
        }
        if constexpr (kIsInt8<Storage>) {
            spread_int8_values<Cells>(rows + key, width, out, kPanelStride);
        } else if constexpr (Cells::kPerCell == 1) {
            spread_value<Storage, Cells>(rows[key], width, out, kPanelStride);
        } else {
            for (std::size_t place = 0; place < width; place += 32) {
                const std::size_t offset = place * sizeof(Storage);
                Cells::interleave(rows[key] + offset, rows[key + 1] + offset, width - place,
                                  out + place / kPanel * kPanelStride + place % kPanel);
            }
        }
    }
}
