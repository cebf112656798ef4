// Products of tiles (AMX): 16 rows times 16 columns, of 32 bfloat16 or 64 bytes. The layout of a panel is that of tiles.

struct TileConfig {  // as the processor reads it
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t num_rows[16] = {};
};

constexpr std::size_t kTileRows = 16;
constexpr std::size_t kTileUnits = 16;  // of a row

// The compiler does not know what tiles are loaded from.
static BATON_INLINE void finish_writes() { __asm__ volatile("" ::: "memory"); }

// Tiles 0 to 3 are sums: of the first rows with both panels, then of the others. 4 and 5 are rows, 6 and 7 panels.
static void configure_tiles(std::size_t num_rows, std::size_t num_units) {
    TileConfig config;
    const std::size_t first = std::min(num_rows, kTileRows), others = num_rows - first;
    const std::size_t rows[] = {first, first, others, others, first, others, num_units, num_units};
    for (std::size_t tile = 0; tile < 8; ++tile) {
        const bool has_units = tile == 4 || tile == 5;  // the others have the columns of a panel
        config.num_rows[tile] = static_cast<std::uint8_t>(rows[tile] ? rows[tile] : 1);
        config.row_bytes[tile] = static_cast<std::uint16_t>((has_units ? num_units : kColumns) * sizeof(Unit));
    }
    finish_writes();
    _tile_loadconfig(&config);
}

#define BATON_TILE_PRODUCT(sums, rows, columns) \
    if constexpr (std::is_same<Units, Quads>::value) { \
        _tile_dpbusd(sums, rows, columns); \
    } else { \
        _tile_dpbf16ps(sums, rows, columns); \
    }

// `Units`: Pairs or Quads. Owns the configuration of this thread's tiles.
template <typename Units>
class InTiles : public Units {
public:
    using Sum = typename Units::Sum;
    static constexpr std::size_t kMaxRows = 2 * kTileRows;
    static constexpr std::size_t kUnitsOfBlock = 1 << 8;  // this much of two panels stays in the first cache

    ~InTiles() { _tile_release(); }

    static std::size_t rows_at_once(std::size_t) { return kMaxRows; }

    // Adds units `begin` to `end` of at most kMaxRows rows times two panels.
    void multiply(std::size_t num_rows, const Unit* rows, std::size_t row_units, std::size_t begin, std::size_t end,
                  const Unit* const* panels, Sums<Sum>* sums) {
        const std::size_t units_at_once = std::min(end - begin, kTileUnits);
        configure(num_rows, units_at_once);
        const bool has_others = num_rows > kTileRows;
        load_sums(begin == 0, has_others, sums);
        std::size_t unit = begin;
        for (; unit + units_at_once <= end; unit += units_at_once) {
            const Unit *first = panels[0] + unit * kColumns, *second = panels[1] + unit * kColumns;
            if (num_rows <= kFewRows) prefetch(first, second);
            add_products(rows + unit, row_units, first, second, has_others);
        }
        if (unit < end) add_last(num_rows, rows + unit, row_units, panels, unit, end - unit, has_others);
        store_sums(has_others, sums);
    }

private:
    static constexpr std::size_t kFewRows = 8;  // with so few, memory is the limit
    static constexpr long kStride = sizeof(Sums<Sum>);

    void configure(std::size_t num_rows, std::size_t num_units) {
        if (num_rows == configured_rows_ && num_units == configured_units_) return;
        configure_tiles(configured_rows_ = num_rows, configured_units_ = num_units);
    }

    std::size_t configured_rows_ = 0, configured_units_ = 0;

    static BATON_INLINE void prefetch(const Unit* first, const Unit* second) {
#pragma GCC unroll 16
        for (std::size_t unit = 0; unit < kTileUnits; ++unit) {
            _mm_prefetch(reinterpret_cast<const char*>(first + unit * kColumns + kUnitsAhead), _MM_HINT_T0);
            _mm_prefetch(reinterpret_cast<const char*>(second + unit * kColumns + kUnitsAhead), _MM_HINT_T0);
        }
    }

    static BATON_INLINE void load_sums(bool is_first, bool has_others, const Sums<Sum>* sums) {
        if (is_first) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            return;
        }
        finish_writes();
        _tile_loadd(0, &sums[0].of[0], kStride);
        _tile_loadd(1, &sums[0].of[1], kStride);
        if (!has_others) return;
        _tile_loadd(2, &sums[kTileRows].of[0], kStride);
        _tile_loadd(3, &sums[kTileRows].of[1], kStride);
    }

    static BATON_INLINE void store_sums(bool has_others, Sums<Sum>* sums) {
        _tile_stored(0, &sums[0].of[0], kStride);
        _tile_stored(1, &sums[0].of[1], kStride);
        if (has_others) {
            _tile_stored(2, &sums[kTileRows].of[0], kStride);
            _tile_stored(3, &sums[kTileRows].of[1], kStride);
        }
        finish_writes();
    }

    static BATON_INLINE void add_products(const Unit* rows, std::size_t row_units, const Unit* first, const Unit* second,
                                          bool has_others) {
        const long row_bytes = static_cast<long>(row_units * sizeof(Unit));
        _tile_loadd(6, first, kColumns * sizeof(Unit));
        _tile_loadd(4, rows, row_bytes);
        BATON_TILE_PRODUCT(0, 4, 6)
        _tile_loadd(7, second, kColumns * sizeof(Unit));
        BATON_TILE_PRODUCT(1, 4, 7)
        if (!has_others) return;
        _tile_loadd(5, rows + kTileRows * row_units, row_bytes);
        BATON_TILE_PRODUCT(2, 5, 6)
        BATON_TILE_PRODUCT(3, 5, 7)
    }

    // The last units, if they do not fill tiles, with zeros behind them.
    static void add_last(std::size_t num_rows, const Unit* rows, std::size_t row_units, const Unit* const* panels,
                         std::size_t unit, std::size_t count, bool has_others) {
        Unit last_rows[kMaxRows * kTileUnits] = {}, last[2][kTileUnits * kColumns] = {};
        for (std::size_t row = 0; row < num_rows; ++row) {
            std::memcpy(last_rows + row * kTileUnits, rows + row * row_units, count * sizeof(Unit));
        }
        for (std::size_t k = 0; k < 2; ++k) {
            std::memcpy(last[k], panels[k] + unit * kColumns, count * kColumns * sizeof(Unit));
        }
        finish_writes();
        add_products(last_rows, kTileUnits, last[0], last[1], has_others);
    }
};

#undef BATON_TILE_PRODUCT

using FloatProducts = InRegisters<Singles>;
using PairProducts = InTiles<Pairs>;
using ByteProducts = InTiles<Quads>;
