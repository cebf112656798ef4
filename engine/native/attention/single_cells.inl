// Products in single precision, one element a cell. Included once for each instruction set, whose `Lanes` it uses.

struct SingleCells {
    using Cell = float;
    using Vector = Lanes::Floats;
    static constexpr std::size_t kPerCell = 1;

    static BATON_INLINE Vector load(const Cell* from) { return Lanes::load(from); }
    static BATON_INLINE Vector broadcast(const Cell* from) { return Lanes::broadcast(*from); }

    static BATON_INLINE Lanes::Floats multiply_add(Vector left, Vector right, Lanes::Floats sum) {
        return Lanes::multiply_add(left, right, sum);
    }
};
