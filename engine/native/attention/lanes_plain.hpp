// Vectors of four floats that every processor has, or that the compiler takes apart.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../exponential.hpp"
#include "kernel.hpp"

namespace baton::plain {

#include "exponential.inl"

struct Lanes {
    static constexpr std::size_t kWidth = 4;
    static constexpr std::size_t kRows = 2;     // of a product that stay in registers
    static constexpr std::size_t kVectors = 4;  // of each of them
    typedef float Floats __attribute__((vector_size(16)));
    typedef std::int32_t Ints __attribute__((vector_size(16)));

    static BATON_INLINE Floats broadcast(float value) { return Floats{value, value, value, value}; }

    static BATON_INLINE Floats load(const float* from) {
        Floats lanes;
        std::memcpy(&lanes, from, sizeof lanes);
        return lanes;
    }

    static BATON_INLINE void store(float* to, Floats lanes) { std::memcpy(to, &lanes, sizeof lanes); }

    static BATON_INLINE Floats load_bfloat16(const char* from) {
        std::uint16_t halves[kWidth];
        std::memcpy(halves, from, sizeof halves);
        std::uint32_t bits[kWidth];
        for (std::size_t i = 0; i < kWidth; ++i) bits[i] = std::uint32_t{halves[i]} << 16;
        return load_bits(bits);
    }

    static BATON_INLINE Floats load_int8(const char* from) {
        std::int8_t values[kWidth];
        std::memcpy(values, from, sizeof values);
        return Floats{static_cast<float>(values[0]), static_cast<float>(values[1]), static_cast<float>(values[2]),
                      static_cast<float>(values[3])};
    }

    // Of cells of four int8, those in one place.
    template <int kPlace>
    static BATON_INLINE Floats int8_at(const std::uint32_t* cells) {
        std::int8_t values[kWidth];
        for (std::size_t i = 0; i < kWidth; ++i) values[i] = static_cast<std::int8_t>(cells[i] >> 8 * kPlace);
        return load_int8(reinterpret_cast<const char*>(values));
    }

    // Of pairs of bfloat16, the first ones and the second ones.
    static BATON_INLINE Floats low_halves(const std::uint32_t* pairs) {
        std::uint32_t bits[kWidth];
        for (std::size_t i = 0; i < kWidth; ++i) bits[i] = pairs[i] << 16;
        return load_bits(bits);
    }

    static BATON_INLINE Floats high_halves(const std::uint32_t* pairs) {
        std::uint32_t bits[kWidth];
        for (std::size_t i = 0; i < kWidth; ++i) bits[i] = pairs[i] & 0xffff0000u;
        return load_bits(bits);
    }

    static BATON_INLINE Floats add(Floats left, Floats right) { return left + right; }
    static BATON_INLINE Floats subtract(Floats left, Floats right) { return left - right; }
    static BATON_INLINE Floats multiply(Floats left, Floats right) { return left * right; }
    static BATON_INLINE Floats divide(Floats left, Floats right) { return left / right; }
    static BATON_INLINE Floats multiply_add(Floats left, Floats right, Floats sum) { return left * right + sum; }

    static BATON_INLINE Floats max(Floats left, Floats right) { return choose(left > right, left, right); }

    // The first `count` lanes, and `other` in the rest.
    static BATON_INLINE Floats first(Floats lanes, std::size_t count, Floats other) {
        const Ints places{0, 1, 2, 3};
        const auto limit = static_cast<std::int32_t>(count);
        return choose(places < Ints{limit, limit, limit, limit}, lanes, other);
    }

    static BATON_INLINE float max_across(Floats lanes) {
        const float low = lanes[0] > lanes[1] ? lanes[0] : lanes[1], high = lanes[2] > lanes[3] ? lanes[2] : lanes[3];
        return low > high ? low : high;
    }

    static BATON_INLINE float sum_across(Floats lanes) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

    // 2^x for x <= 0; what is below 2^-126 becomes that.
    static BATON_INLINE Floats exp2(Floats x) {
        const Floats bounded = max(x, broadcast(kMinExponent));
        const Floats whole = (bounded + broadcast(kRounding)) - broadcast(kRounding);
        const Ints exponent = __builtin_convertvector(whole, Ints);
        const Floats power = reinterpret_cast<Floats>((exponent + 127) << 23);
        return exp2_fraction<Lanes>(bounded - whole) * power;
    }

    // Columns of 4 rows of 4 cells, from `offset` bytes on.
    static BATON_INLINE void transpose(const char* const* rows, std::size_t offset, std::uint32_t* out, std::size_t stride) {
        for (std::size_t row = 0; row < kWidth; ++row) {
            std::uint32_t cells[kWidth];
            std::memcpy(cells, rows[row] + offset, sizeof cells);
            for (std::size_t column = 0; column < kWidth; ++column) out[column * stride + row] = cells[column];
        }
    }

private:
    static BATON_INLINE Floats load_bits(const std::uint32_t* bits) {
        Floats lanes;
        std::memcpy(&lanes, bits, sizeof lanes);
        return lanes;
    }

    static BATON_INLINE Floats choose(Ints mask, Floats yes, Floats no) {
        const Ints chosen = (mask & reinterpret_cast<Ints>(yes)) | (~mask & reinterpret_cast<Ints>(no));
        return reinterpret_cast<Floats>(chosen);
    }
};

#include "single_cells.inl"

#include "kernel.inl"

}  // namespace baton::plain
