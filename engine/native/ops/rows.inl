// Operations on one row. Included once per instruction set. Sums always run in the same order, so that all
// instruction sets give the same bits.

template <typename To, typename From>
static BATON_INLINE To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

static BATON_INLINE Floats chosen(Words is_first, Floats first, Floats second) {
    return bits_of<Floats>((is_first & bits_of<Words>(first)) | (~is_first & bits_of<Words>(second)));
}

static BATON_INLINE Floats load_all(const float* from) {
    Floats to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

static BATON_INLINE Floats load_all(const Bfloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return bits_of<Floats>(__builtin_convertvector(halves, Words) << 16);
}

static BATON_INLINE void store_all(Floats from, float* to) { std::memcpy(to, &from, sizeof from); }

// To the nearest, ties to even.
static BATON_INLINE void store_all(Floats from, Bfloat16* to) {
    const Words bits = bits_of<Words>(from), is_none = bits_of<Words>(from != from);
    const Words rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const Halves halves = __builtin_convertvector((is_none & 0x7FC0) | (~is_none & rounded), Halves);
    std::memcpy(to, &halves, sizeof halves);
}

// The first `count` numbers, if they are fewer than there are lanes, and zeros.
template <typename T>
static BATON_INLINE Floats load(const T* from, std::size_t count) {
    if (count >= kLanes) return load_all(from);
    T some[kLanes] = {};
    std::memcpy(some, from, count * sizeof(T));
    return load_all(some);
}

template <typename T>
static BATON_INLINE void store(Floats from, std::size_t count, T* to) {
    if (count >= kLanes) return store_all(from, to);
    T some[kLanes];
    store_all(from, some);
    std::memcpy(to, some, count * sizeof(T));
}

template <typename Add>
static BATON_INLINE float folded(Floats lanes, const Add& add) {
    for (std::size_t half = kLanes / 2; half; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) lanes[i] = add(lanes[i], lanes[i + half]);
    }
    return lanes[0];
}

static BATON_INLINE float sum(Floats lanes) {
    return folded(lanes, [](float a, float b) { return a + b; });
}

static BATON_INLINE float inverse_rms(Floats squares, std::size_t width, float eps) {
    return 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps);
}

template <typename T>
static BATON_INLINE Floats sum_of_squares(const T* x, std::size_t width) {
    Floats squares = {};
    for (std::size_t i = 0; i < width; i += kLanes) {
        const Floats values = load(x + i, width - i);
        squares += values * values;
    }
    return squares;
}

template <typename T>
static BATON_INLINE void multiply(const T* x, NormWeight<T> weight, std::size_t width, float factor, T* result) {
    for (std::size_t i = 0; i < width; i += kLanes) {
        const Floats weights = load(weight.data + i, width - i) + weight.offset;
        store(load(x + i, width - i) * factor * weights, width - i, result + i);
    }
}

// result = x / rms(x) * weight
template <typename T>
static void norm_row(const T* x, NormWeight<T> weight, std::size_t width, float eps, T* result) {
    multiply(x, weight, width, inverse_rms(sum_of_squares(x, width), width, eps), result);
}

// x += addend; result = x / rms(x) * weight
template <typename T>
static void add_norm_row(T* x, const T* addend, NormWeight<T> weight, std::size_t width, float eps, T* result) {
    for (std::size_t i = 0; i < width; i += kLanes) {
        store(load(x + i, width - i) + load(addend + i, width - i), width - i, x + i);
    }
    norm_row(x, weight, width, eps, result);
}

// e^x of each lane; a small one becomes the least normal number.
static BATON_INLINE Floats exponential(Floats x) {
    const Floats zeros = {};
    x = chosen(bits_of<Words>(x < zeros + kMinExp), zeros + kMinExp, x);
    x = chosen(bits_of<Words>(x > zeros + kMaxExp), zeros + kMaxExp, x);
    const Floats shifted = x * kLog2E + kRounding;
    const Floats whole = shifted - kRounding;
    const Floats f = (x - whole * kLn2High - whole * kLn2Low) * kLog2E;
    Floats result = zeros + kExp2[0];
    for (std::size_t k = 1; k < sizeof kExp2 / sizeof *kExp2; ++k) result = result * f + kExp2[k];
    // The last digits of `shifted` are those of `whole`.
    return (result * f + 1.0f) * bits_of<Floats>((bits_of<Words>(shifted) + 127) << 23);
}

static BATON_INLINE Floats bounded_above(Floats x, float most) { return chosen(bits_of<Words>(x > most), Floats{} + most, x); }
static BATON_INLINE Floats bounded_below(Floats x, float least) { return chosen(bits_of<Words>(x < least), Floats{} + least, x); }

// x * sigmoid(scaled)
static BATON_INLINE Floats gated(Floats x, Floats scaled) { return x / (1.0f + exponential(-scaled)); }

// result = activation(gate) * up
template <Activation kActivation, typename T>
static void gate_row(const T* gate, const T* up, std::size_t width, T* result) {
    for (std::size_t i = 0; i < width; i += kLanes) {
        Floats gates = load(gate + i, width - i), ups = load(up + i, width - i);
        if constexpr (kActivation == Activation::kSilu) {
            gates = gated(gates, gates);
        } else if constexpr (kActivation == Activation::kGeluTanh) {  // (1 + tanh(x)) / 2 = sigmoid(2 x)
            gates = gated(gates, kGeluScale * (gates + kGeluCubic * gates * gates * gates));
        } else {
            gates = bounded_above(gates, kSwigluLimit);
            gates = gated(gates, kSwigluAlpha * gates);
            ups = bounded_below(bounded_above(ups, kSwigluLimit), -kSwigluLimit) + 1.0f;
        }
        store(gates * ups, width - i, result + i);
    }
}

// result = softmax(x), or sigmoid(x) of each
static void score_row(const float* x, std::size_t width, bool is_sigmoid, float* result) {
    float greatest = x[0];
    for (std::size_t i = 1; i < width; ++i) greatest = x[i] > greatest ? x[i] : greatest;
    Floats total = {};
    for (std::size_t i = 0; i < width; i += kLanes) {
        const Floats values = load(x + i, width - i);
        store(is_sigmoid ? 1.0f / (1.0f + exponential(-values)) : exponential(values - greatest), width - i, result + i);
        total += load(result + i, width - i);
    }
    if (is_sigmoid) return;
    const float factor = 1.0f / sum(total);
    for (std::size_t i = 0; i < width; ++i) result[i] *= factor;
}

// result = x / scale + 128, to the nearest, ties to even; returns the scale, max(|x|) / 127. If an element is not finite
// the scale is not either.
template <typename T>
static float quantise_row(const T* x, std::size_t width, std::uint8_t* result) {
    Floats greatest = {}, nothing = {};
    for (std::size_t i = 0; i < width; i += kLanes) {
        const Floats sizes = bits_of<Floats>(bits_of<Words>(load(x + i, width - i)) & 0x7FFFFFFF);
        greatest = chosen(bits_of<Words>(sizes > greatest), sizes, greatest);
        nothing += sizes * 0.0f;
    }
    const float most = folded(greatest, [](float a, float b) { return a > b ? a : b; });
    const float factor = most >= kLeastScaled ? 127.0f / most : 0.0f;
    for (std::size_t i = 0; i < width; i += kLanes) {
        const Floats shifted = load(x + i, width - i) * factor + (kRounding + 128.0f);
        const Bytes bytes = __builtin_convertvector(bits_of<Words>(shifted) & 0xFF, Bytes);
        std::memcpy(result + i, &bytes, width - i < kLanes ? width - i : kLanes);
    }
    return (factor != 0.0f ? most / 127.0f : 0.0f) + sum(nothing);
}

// x = x * scale + bias; `bias` may be null
template <typename T>
static void scale_row(T* x, float factor, const T* bias, std::size_t width) {
    for (std::size_t i = 0; i < width; i += kLanes) {
        const Floats addends = bias ? load(bias + i, width - i) : Floats{};
        store(load(x + i, width - i) * factor + addends, width - i, x + i);
    }
}

// result = the sum of rows times their weights, added in their order. `places`: which rows, or null for the first ones.
template <typename T>
static void weighted_sum_row(const T* rows, std::size_t width, const std::int64_t* places, const float* weights,
                             std::size_t count, T* result) {
    for (std::size_t i = 0; i < width; i += kLanes) {
        Floats total = {};
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t row = places ? static_cast<std::size_t>(places[k]) : k;
            total += load(rows + row * width + i, width - i) * weights[k];
        }
        store(total, width - i, result + i);
    }
}

// Rotates pairs of a head's elements, after its norm if it has one. Pairs are (i, i + half), or, interleaved,
// (2 i, 2 i + 1), which are returned as (i, i + half).
template <typename T>
static void rotate_row(T* x, NormWeight<T> weight, float eps, const float* cos, const float* sin, std::size_t half,
                       bool is_interleaved) {
    float values[2 * kMaxHalf + kLanes], first[kMaxHalf + kLanes], second[kMaxHalf + kLanes];
    const std::size_t width = 2 * half;
    const float factor = weight.data ? inverse_rms(sum_of_squares(x, width), width, eps) : 1.0f;
    for (std::size_t i = 0; i < width; i += kLanes) {
        const Floats numbers = load(x + i, width - i);
        store_all(weight.data ? numbers * factor * (load(weight.data + i, width - i) + weight.offset) : numbers, values + i);
    }
    const std::size_t step = is_interleaved ? 2 : 1, offset = is_interleaved ? 1 : half;
    for (std::size_t i = 0; i < half; ++i) {
        first[i] = values[step * i];
        second[i] = values[step * i + offset];
    }
    for (std::size_t i = 0; i < half; i += kLanes) {
        const Floats a = load_all(first + i), b = load_all(second + i);
        const Floats c = load(cos + i, half - i), s = load(sin + i, half - i);
        store(a * c - b * s, half - i, x + i);
        store(b * c + a * s, half - i, x + half + i);
    }
}
