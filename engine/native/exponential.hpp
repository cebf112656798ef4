// Powers of two in single precision. The polynomial's relative error is 2e-9, the computed result's 1.2e-7.
#pragma once

#define BATON_INLINE __attribute__((always_inline)) inline

namespace baton {

constexpr float kMinExponent = -126.0f;
constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

// Minimax coefficients of p in 2^f = 1 + f * p(f) for |f| <= 1/2, the highest power first.
constexpr float kExp2[] = {1.5353362e-4f, 1.3398875e-3f, 9.6184369e-3f, 5.5503324e-2f, 2.4022648e-1f, 6.9314718e-1f};

}  // namespace baton
