// What kernels of floats share: vectors as wide as the processor's, and the exponential function.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

// Wider vectors than the processor has are taken apart number by number.
#if defined(__AVX512F__)
constexpr int64_t WIDE = 16;
#elif defined(__AVX__)
constexpr int64_t WIDE = 8;
#else
constexpr int64_t WIDE = 4;
#endif
using Vector = float __attribute__((vector_size(4 * WIDE), aligned(4)));

inline float exponential(float x) {
  // 2 ** n * e ** r, where r is at most half of log 2: a polynomial that is right to the last bit or two.
  const float above = x < -87 ? -87 : x, bounded = above > 88 ? 88 : above;  // what is no number stays so
  const float n = std::nearbyintf(bounded * 1.44269504f);
  const float r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float whole = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, 4);
  return whole * power;
}

}  // namespace
