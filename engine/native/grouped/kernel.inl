// Decoding of a weight's rows, and their products with rows of floats. Included once per instruction set, whose vectors
// have kWidth lanes. Sums always run in the same order, in kLanes lanes, whatever the number of rows and the instruction
// set.

using Vector = float __attribute__((vector_size(4 * kWidth)));
using Codes = std::uint32_t __attribute__((vector_size(4 * kWidth)));
using Numbers32 = std::int32_t __attribute__((vector_size(4 * kWidth)));
using FewBytes = std::uint8_t __attribute__((vector_size(kWidth)));

constexpr std::size_t kParts = kLanes / kWidth;  // vectors that hold kLanes numbers

template <typename To, typename From>
static BATON_INLINE To loaded(const From* from) {
    To to;
    std::memcpy(&to, from, sizeof to);
    return to;
}

static BATON_INLINE Vector as_floats(Codes codes) { return __builtin_convertvector(loaded<Numbers32>(&codes), Vector); }

static BATON_INLINE Codes bytes_at(const std::uint8_t* from) {
    return __builtin_convertvector(loaded<FewBytes>(from), Codes);
}

static BATON_INLINE Vector all(float number) { return number - Vector{}; }
static BATON_INLINE Codes all(std::uint32_t number) { return number | Codes{}; }

// One number for the first 8 of kLanes lanes, and another for the last 8: the vector `part` of them.
template <typename T>
static BATON_INLINE auto halves_of(T first, T second, std::size_t part) {
#if BATON_GROUPED_WIDTH == 16
    constexpr Codes kPlaces = {0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31};
    (void)part;
    return __builtin_shuffle(all(first), all(second), kPlaces);
#else
    return all(part * kWidth < kLanes / 2 ? first : second);
#endif
}

static BATON_INLINE Codes if_above(Codes codes, std::uint32_t least) {
    return codes >= least ? codes - least : Codes{};
}

// Twice the numbers of codes in E2M1.
static BATON_INLINE Vector e2m1(Codes codes) {
    const Codes sizes = codes & 7, doubles = sizes + if_above(sizes, 4) + 2 * if_above(sizes, 6);
    const Codes is_negative = -(codes >> 3 & 1);
    return as_floats((doubles ^ is_negative) - is_negative);
}

constexpr std::uint32_t kShifts5[kLanes] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
constexpr std::uint32_t kShifts6[kLanes] = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};

// Codes of 32 columns, vector `part` of two times kLanes: packed ones are the even columns and the odd ones, bytes in
// order.
template <int kBits>
static BATON_INLINE void codes_of(const std::uint8_t* low, const std::uint8_t* high, std::size_t part, Codes& first,
                                  Codes& second) {
    if (kBits == 8) {
        first = bytes_at(low + part * kWidth);
        second = bytes_at(low + kLanes + part * kWidth);
        return;
    }
    const Codes pairs = bytes_at(low + part * kWidth);
    first = pairs & 15;
    second = pairs >> 4;
    if (kBits == 5) {
        const auto bits = loaded<std::uint32_t>(high);
        const Codes word = all(bits), shifts = loaded<Codes>(kShifts5 + part * kWidth);
        first |= (word >> shifts & 1) << 4;
        second |= (word >> (shifts + 1) & 1) << 4;
    } else if (kBits == 6) {
        const Codes words = halves_of(loaded<std::uint32_t>(high), loaded<std::uint32_t>(high + 4), part);
        const Codes shifts = loaded<Codes>(kShifts6 + part * kWidth);
        first |= (words >> shifts & 3) << 4;
        second |= (words >> (shifts + 2) & 3) << 4;
    }
}

// Writes a row of the weight as floats, in the order of `codes_of`. `numbers`: buffer of 3 floats per span.
template <int kBits, bool kIsE2m1, bool kHasMinima>
static void decode_row(const GroupedWeight& weight, std::size_t row, float* numbers, float* result) {
    const std::size_t num_spans = weight.num_spans();
    float *scales = numbers, *zeros = scales + num_spans, *minima = zeros + num_spans;
    weight.scales.spread(row, weight.outer_scales, num_spans, scales);
    if (kHasMinima) weight.minima.spread(row, weight.outer_minima, num_spans, minima);
    if (weight.zeros.address) {
        weight.zeros.spread(row, Numbers{}, num_spans, zeros);
    } else if (!kIsE2m1) {
        const float zero = kHasMinima ? 0.0f : static_cast<float>(1 << (kBits - 1));
        for (std::size_t i = 0; i < num_spans; ++i) zeros[i] = zero;
    }
    const std::uint8_t* low = weight.low + row * weight.low_bytes();
    const std::uint8_t* high = weight.high + row * weight.high_bytes();
    constexpr std::size_t kLow = kBits == 8 ? kBlock : kBlock / 2;
    constexpr std::size_t kHigh = kBits == 5 ? kBlock / 8 : kBits == 6 ? kBlock / 4 : 0;
    for (std::size_t span = 0; span < num_spans; span += 2, low += kLow, high += kHigh, result += kBlock) {
#pragma GCC unroll 4
        for (std::size_t part = 0; part < kParts; ++part) {
            Codes codes[2];
            codes_of<kBits>(low, high, part, codes[0], codes[1]);
#pragma GCC unroll 2
            for (std::size_t k = 0; k < 2; ++k) {
                const std::size_t one = kBits == 8 ? span + k : span, other = kBits == 8 ? span + k : span + 1;
                Vector values = kIsE2m1 ? e2m1(codes[k]) * 0.5f
                                        : as_floats(codes[k]) - halves_of(zeros[one], zeros[other], part);
                values *= halves_of(scales[one], scales[other], part);
                if (kHasMinima) values -= halves_of(minima[one], minima[other], part);
                std::memcpy(result + k * kLanes + part * kWidth, &values, sizeof values);
            }
        }
    }
}

template <int kBits>
static void decode_bits(const GroupedWeight& weight, std::size_t row, float* numbers, float* result) {
    if (kBits == 4 && weight.is_e2m1) return decode_row<4, true, false>(weight, row, numbers, result);
    if (weight.minima.address) return decode_row<kBits, false, true>(weight, row, numbers, result);
    return decode_row<kBits, false, false>(weight, row, numbers, result);
}

static void decode(const GroupedWeight& weight, std::size_t row, float* numbers, float* result) {
    switch (weight.bits) {
        case 4: return decode_bits<4>(weight, row, numbers, result);
        case 5: return decode_bits<5>(weight, row, numbers, result);
        case 6: return decode_bits<6>(weight, row, numbers, result);
        default: return decode_bits<8>(weight, row, numbers, result);
    }
}

static BATON_INLINE float folded_sum(const Vector* parts) {
    float lanes[kLanes];
    std::memcpy(lanes, parts, sizeof lanes);
    for (std::size_t half = kLanes / 2; half; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

// sums[o][t] = outputs[o] . tokens[t]
template <std::size_t kOutputs, std::size_t kTokens>
static BATON_INLINE void dot_all(const float* outputs, const float* tokens, std::size_t width, float* sums,
                                 std::size_t stride) {
    Vector lanes[kOutputs][kTokens][kParts] = {};
    for (std::size_t i = 0; i < width; i += kLanes) {
#pragma GCC unroll 4
        for (std::size_t part = 0; part < kParts; ++part) {
            Vector inputs[kTokens];
#pragma GCC unroll 4
            for (std::size_t t = 0; t < kTokens; ++t) {
                inputs[t] = loaded<Vector>(tokens + t * width + i + part * kWidth);
            }
#pragma GCC unroll 4
            for (std::size_t o = 0; o < kOutputs; ++o) {
                const auto weights = loaded<Vector>(outputs + o * width + i + part * kWidth);
#pragma GCC unroll 4
                for (std::size_t t = 0; t < kTokens; ++t) lanes[o][t][part] += weights * inputs[t];
            }
        }
    }
    for (std::size_t o = 0; o < kOutputs; ++o) {
        for (std::size_t t = 0; t < kTokens; ++t) sums[o * stride + t] = folded_sum(lanes[o][t]);
    }
}

template <std::size_t kTokens>
static void dot_outputs(const float* outputs, std::size_t num_outputs, const float* tokens, std::size_t width,
                        float* sums, std::size_t stride) {
    constexpr std::size_t kOutputs = kTokens == 1 ? kOutputsOfOne : kTileOutputs;
    std::size_t o = 0;
    for (; o + kOutputs <= num_outputs; o += kOutputs) {
        dot_all<kOutputs, kTokens>(outputs + o * width, tokens, width, sums + o * stride, stride);
    }
    for (; o < num_outputs; ++o) dot_all<1, kTokens>(outputs + o * width, tokens, width, sums + o * stride, stride);
}

// sums: [num_outputs, num_tokens]
static void dot(const float* outputs, std::size_t num_outputs, const float* tokens, std::size_t num_tokens,
                std::size_t width, float* sums) {
    std::size_t t = 0;
    for (; t + kTileTokens <= num_tokens; t += kTileTokens) {
        dot_outputs<kTileTokens>(outputs, num_outputs, tokens + t * width, width, sums + t, num_tokens);
    }
    for (; t < num_tokens; ++t) dot_outputs<1>(outputs, num_outputs, tokens + t * width, width, sums + t, num_tokens);
}
