// Soft cap of scores (Gemma 2, arXiv 2408.00118, section 2).

// Eigen's rational approximation of tanh, within 4 units in the last place; highest powers first.
static constexpr float kMostTanh = 7.90531110763549805f;  // of an argument; beyond it the result is 1 in single precision
static constexpr float kTanhAbove[] = {-2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                                       5.12229709037114e-08f,  1.48572235717979e-05f, 6.37261928875436e-04f,
                                       4.89352455891786e-03f};
static constexpr float kTanhBelow[] = {1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f,
                                       4.89352518554385e-03f};

template <std::size_t kCount>
static BATON_INLINE Lanes::Floats polynomial(const float (&coefficients)[kCount], Lanes::Floats x) {
    Lanes::Floats sum = Lanes::broadcast(coefficients[0]);
    for (std::size_t i = 1; i < kCount; ++i) sum = Lanes::multiply_add(sum, x, Lanes::broadcast(coefficients[i]));
    return sum;
}

// NaN stays NaN: where one argument of `max` is NaN, the result is the second.
static BATON_INLINE Lanes::Floats hyperbolic_tangent(Lanes::Floats x) {
    const Lanes::Floats zeros = Lanes::broadcast(0.0f), least = Lanes::broadcast(-kMostTanh);
    x = Lanes::max(least, Lanes::subtract(zeros, Lanes::max(least, Lanes::subtract(zeros, x))));
    const Lanes::Floats square = Lanes::multiply(x, x);
    return Lanes::divide(Lanes::multiply(x, polynomial(kTanhAbove, square)), polynomial(kTanhBelow, square));
}

// Replaces the scores of the seen keys by cap * tanh(score / cap).
static inline void cap_scores(float* scores, Seen seen, float most) {
    const Lanes::Floats cap = Lanes::broadcast(most), share = Lanes::broadcast(1.0f / most);
    for (std::size_t key = seen.first / Lanes::kWidth * Lanes::kWidth; key < seen.end; key += Lanes::kWidth) {
        const Lanes::Floats shares = Lanes::multiply(Lanes::load(scores + key), share);
        Lanes::store(scores + key, Lanes::multiply(cap, hyperbolic_tangent(shares)));
    }
}
