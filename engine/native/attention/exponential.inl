// Included once for each instruction set, before its `Lanes`.

// 2^f for |f| <= 1/2; exactly 1 for 0.
template <typename L>
static BATON_INLINE typename L::Floats exp2_fraction(typename L::Floats f) {
    typename L::Floats sum = L::broadcast(kExp2[0]);
    for (std::size_t i = 1; i < sizeof kExp2 / sizeof *kExp2; ++i) {
        sum = L::multiply_add(sum, f, L::broadcast(kExp2[i]));
    }
    return L::multiply_add(sum, f, L::broadcast(1.0f));
}
