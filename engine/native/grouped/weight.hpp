// A weight of small integers in groups of columns, and conversion of its scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../ops/numbers.hpp"

namespace baton {

constexpr std::size_t kBlock = 32;  // columns decoded at once
constexpr std::size_t kSpan = 16;   // columns with one scale, zero point and minimum; a group has one or more spans

enum class Kind { kFloat, kBfloat16, kHalf, kUint8, kInt8, kInt16, kE4m3 };

inline float float_of_bits(std::uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

// A number of sign, exponent and mantissa, in the lower bits, without infinities and NaN.
inline float small_float(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
    const std::uint32_t sign = bits >> (exponent_bits + mantissa_bits) << 31;
    const std::uint32_t rest = bits & ((1u << (exponent_bits + mantissa_bits)) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const float scale = float_of_bits(static_cast<std::uint32_t>(127 + 127 - bias) << 23);  // exact, also if subnormal
    return float_of_bits(sign | rest << (23 - mantissa_bits)) * scale;
}

inline float half(std::uint16_t bits) {
    if ((bits & 0x7C00) == 0x7C00) {  // infinite, or not a number
        return float_of_bits((bits & 0x8000u) << 16 | 0x7F800000u | (bits & 0x3FFu) << 13);
    }
    return small_float(bits, 5, 10);
}

inline float e4m3(std::uint8_t bits) {
    return (bits & 0x7F) == 0x7F ? float_of_bits(0x7FC00000u) : small_float(bits, 4, 3);
}

// Numbers of a kind, `per_row` for each row of the weight; none if there is no address.
struct Numbers {
    const void* address = nullptr;
    Kind kind = Kind::kFloat;
    std::size_t per_row = 0;

    float at(std::size_t index) const {
        switch (kind) {
            case Kind::kFloat: return static_cast<const float*>(address)[index];
            case Kind::kBfloat16:
                return float_of_bits(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(address)[index]) << 16);
            case Kind::kHalf: return half(static_cast<const std::uint16_t*>(address)[index]);
            case Kind::kUint8: return static_cast<const std::uint8_t*>(address)[index];
            case Kind::kInt8: return static_cast<const std::int8_t*>(address)[index];
            case Kind::kInt16: return static_cast<const std::int16_t*>(address)[index];
            case Kind::kE4m3: return e4m3(static_cast<const std::uint8_t*>(address)[index]);
        }
        return 0;
    }

    // Writes the row's numbers times those of `outer`, if there are any, for each span of columns.
    void spread(std::size_t row, const Numbers& outer, std::size_t num_spans, float* result) const {
        const std::size_t spans = num_spans / per_row;
        for (std::size_t i = 0; i < per_row; ++i) {
            float number = at(row * per_row + i);
            if (outer.address) number *= outer.at(row * outer.per_row + i * outer.per_row / per_row);
            for (std::size_t k = 0; k < spans; ++k) result[i * spans + k] = number;
        }
    }
};

struct GroupedWeight {
    const std::uint8_t* low;   // 8 bits: [outputs, inputs]; otherwise [outputs, inputs / 2], an even column lower
    const std::uint8_t* high;  // bits above the lower 4, [outputs, inputs * (bits - 4) / 8]
    int bits;                  // 4, 5, 6 or 8
    bool is_e2m1;              // codes of 4 bits are floats
    std::size_t num_outputs, num_inputs;
    Numbers scales, outer_scales, zeros, minima, outer_minima;

    std::size_t low_bytes() const { return bits == 8 ? num_inputs : num_inputs / 2; }
    std::size_t high_bytes() const { return num_inputs * static_cast<std::size_t>(bits > 4 ? bits - 4 : 0) / 8; }
    std::size_t num_spans() const { return num_inputs / kSpan; }
};

}  // namespace baton
