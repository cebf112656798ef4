// What is done to one row. Included once for each instruction set: the compiler makes its vectors of the loops over
// lanes. Sums are made in the same order everywhere, so that all instruction sets give the same bits.

template <typename T>
static BATON_INLINE void load(const T* from, std::size_t count, Lanes& to) {
    if (count >= kLanes) {
        for (std::size_t i = 0; i < kLanes; ++i) to.at[i] = widened(from[i]);
    } else {
        for (std::size_t i = 0; i < kLanes; ++i) to.at[i] = i < count ? widened(from[i]) : 0.0f;
    }
}

template <typename T>
static BATON_INLINE void store(const Lanes& from, std::size_t count, T* to) {
    if (count >= kLanes) {
        for (std::size_t i = 0; i < kLanes; ++i) narrow(from.at[i], to[i]);
    } else {
        for (std::size_t i = 0; i < count; ++i) narrow(from.at[i], to[i]);
    }
}

static BATON_INLINE float sum(Lanes lanes) {
    for (std::size_t half = kLanes / 2; half; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) lanes.at[i] += lanes.at[i + half];
    }
    return lanes.at[0];
}

static BATON_INLINE void add_squares(const Lanes& values, Lanes& sums) {
    for (std::size_t i = 0; i < kLanes; ++i) sums.at[i] += values.at[i] * values.at[i];
}

static BATON_INLINE float inverse_rms(const Lanes& squares, std::size_t width, float eps) {
    return 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps);
}

template <typename T>
static BATON_INLINE Lanes sum_of_squares(const T* x, std::size_t width) {
    Lanes squares = {}, values;
    for (std::size_t i = 0; i < width; i += kLanes) {
        load(x + i, width - i, values);
        add_squares(values, squares);
    }
    return squares;
}

template <typename T>
static BATON_INLINE void scale(const T* x, const T* weight, std::size_t width, float factor, T* result) {
    Lanes values, weights;
    for (std::size_t i = 0; i < width; i += kLanes) {
        load(x + i, width - i, values);
        load(weight + i, width - i, weights);
        for (std::size_t j = 0; j < kLanes; ++j) values.at[j] = values.at[j] * factor * weights.at[j];
        store(values, width - i, result + i);
    }
}

// result = x / rms(x) * weight
template <typename T>
static void norm_row(const T* x, const T* weight, std::size_t width, float eps, T* result) {
    scale(x, weight, width, inverse_rms(sum_of_squares(x, width), width, eps), result);
}

// x += addend; result = x / rms(x) * weight
template <typename T>
static void add_norm_row(T* x, const T* addend, const T* weight, std::size_t width, float eps, T* result) {
    Lanes squares = {}, values, addends;
    for (std::size_t i = 0; i < width; i += kLanes) {
        load(x + i, width - i, values);
        load(addend + i, width - i, addends);
        for (std::size_t j = 0; j < kLanes; ++j) values.at[j] += addends.at[j];
        store(values, width - i, x + i);
        load(x + i, width - i, values);  // as it was rounded
        add_squares(values, squares);
    }
    scale(x, weight, width, inverse_rms(squares, width, eps), result);
}

// e^x of each lane; a small one becomes the least normal number.
static BATON_INLINE void exponentiate(Lanes& lanes) {
    for (std::size_t i = 0; i < kLanes; ++i) {
        float x = lanes.at[i];
        x = x < kMinExp ? kMinExp : x > kMaxExp ? kMaxExp : x;
        const float shifted = x * kLog2E + kRounding;
        const float whole = shifted - kRounding;
        const float f = (x - whole * kLn2High - whole * kLn2Low) * kLog2E;
        float result = kExp2[0];
        for (std::size_t k = 1; k < sizeof kExp2 / sizeof *kExp2; ++k) result = result * f + kExp2[k];
        result = result * f + 1.0f;
        std::uint32_t exponent;
        std::memcpy(&exponent, &shifted, sizeof exponent);  // whose last digits are those of `whole`
        exponent = (exponent + 127) << 23;
        float factor;
        std::memcpy(&factor, &exponent, sizeof factor);
        lanes.at[i] = result * factor;
    }
}

// result = silu(gate) * up
template <typename T>
static void silu_row(const T* gate, const T* up, std::size_t width, T* result) {
    Lanes gates, ups, exponentials;
    for (std::size_t i = 0; i < width; i += kLanes) {
        load(gate + i, width - i, gates);
        load(up + i, width - i, ups);
        for (std::size_t j = 0; j < kLanes; ++j) exponentials.at[j] = -gates.at[j];
        exponentiate(exponentials);
        for (std::size_t j = 0; j < kLanes; ++j) {
            gates.at[j] = gates.at[j] / (1.0f + exponentials.at[j]) * ups.at[j];
        }
        store(gates, width - i, result + i);
    }
}

// Rotates pairs of a head's elements, after its norm if it has one. Pairs are (i, i + half), or, interleaved,
// (2 i, 2 i + 1), which come out as the others.
template <typename T>
static void rotate_row(T* x, const T* weight, float eps, const float* cos, const float* sin, std::size_t half,
                       bool is_interleaved) {
    float values[2 * kMaxHalf];
    const std::size_t width = 2 * half;
    const float factor = weight ? inverse_rms(sum_of_squares(x, width), width, eps) : 1.0f;
    for (std::size_t i = 0; i < width; ++i) values[i] = widened(x[i]);
    if (weight) {
        for (std::size_t i = 0; i < width; ++i) values[i] = values[i] * factor * widened(weight[i]);
    }
    const std::size_t step = is_interleaved ? 2 : 1, second = is_interleaved ? 1 : half;
    for (std::size_t i = 0; i < half; ++i) {
        const float a = values[step * i], b = values[step * i + second];
        narrow(a * cos[i] - b * sin[i], x[i]);
        narrow(b * cos[i] + a * sin[i], x[half + i]);
    }
}
