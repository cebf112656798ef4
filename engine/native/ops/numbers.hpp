// Numbers as they are stored, and as they are computed with.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../attention/exponential.hpp"

namespace baton {

constexpr std::size_t kLanes = 16;  // elements that are computed side by side, whatever the processor's vectors hold

struct Bfloat16 {
    std::uint16_t bits;
};

// Sixteen numbers in single precision; loops over them become vector instructions.
struct Lanes {
    float at[kLanes];
};

static BATON_INLINE float widened(float number) { return number; }

static BATON_INLINE float widened(Bfloat16 number) {
    const std::uint32_t bits = static_cast<std::uint32_t>(number.bits) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

static BATON_INLINE void narrow(float number, float& to) { to = number; }

// To the nearest, ties to even.
static BATON_INLINE void narrow(float number, Bfloat16& to) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const std::uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    to.bits = static_cast<std::uint16_t>(number != number ? 0x7FC0 : rounded);
}

}  // namespace baton
