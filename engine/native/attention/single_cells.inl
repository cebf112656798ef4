// Products in single precision, one element per cell. Included once per instruction set, whose `Lanes` it uses.

struct SingleCells {
    using Cell = float;
    using Vector = Lanes::Floats;
    static constexpr std::size_t kPerCell = 1;
    static constexpr bool kHasQuads = false;

    static BATON_INLINE Vector load(const Cell* from) { return Lanes::load(from); }
    static BATON_INLINE Vector broadcast(const Cell* from) { return Lanes::broadcast(*from); }

    static BATON_INLINE Lanes::Floats multiply_add(Vector left, Vector right, Lanes::Floats sum) {
        return Lanes::multiply_add(left, right, sum);
    }

    // The first `count` <= 4 elements of keys, one key a lane, from cells of four int8.
    static BATON_INLINE void spread_keys(const std::uint32_t* cells, std::size_t count, Cell* to, std::size_t stride) {
        Lanes::store(to, Lanes::int8_at<0>(cells));
        if (count > 1) Lanes::store(to + stride, Lanes::int8_at<1>(cells));
        if (count > 2) Lanes::store(to + 2 * stride, Lanes::int8_at<2>(cells));
        if (count > 3) Lanes::store(to + 3 * stride, Lanes::int8_at<3>(cells));
    }

    // As many of a value's elements as there are lanes, from int8.
    static BATON_INLINE void spread_values(const char* const* rows, Cell* to) { Lanes::store(to, Lanes::load_int8(*rows)); }
};
