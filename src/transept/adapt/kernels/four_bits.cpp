// Products by weights of four bits: out (M, N) = x (M, K) times the transpose of a weight (N, K), on a CPU.
//
// The weight is (q - 8) * scale, or q * scale - low, with q from 0 to 15 and a scale (and a low) of 16 bits for each row and
// group of columns. Inputs are rounded to eight bits for each row and group, so that products are those of integers.
//
// Sixteen rows of the weight lie together. Of each eight columns they take 64 bytes: four bytes a row, of which the lower
// halves are the first four columns and the higher halves the others. So one instruction multiplies four columns of sixteen
// rows with four inputs that all rows share.

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t ROWS = 16;
constexpr int64_t AHEAD = 1024;  // bytes
constexpr int64_t MOST = 4;  // rows of the input that are multiplied at a time

struct Inputs {  // of one row: eight bits each, and for each group the step and the sum
  const int8_t* values;
  const float* steps;
  const int32_t* sums;
};

#if defined(__AVX512VNNI__) && defined(__AVX512F__) && defined(__AVX512BW__)

inline __m512i four(const int8_t* x) { return _mm512_broadcastd_epi32(_mm_loadu_si32(x)); }

template <int64_t COUNT>
void multiply(const uint8_t* weight, const uint16_t* scale, const uint16_t* low, const Inputs* x, float* const* out, int64_t groups,
              int64_t group) {
  const __m512i half = _mm512_set1_epi8(15);
  __m512 total[COUNT];
  for (int64_t m = 0; m < COUNT; ++m) total[m] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    __m512i sum[COUNT], other[COUNT];  // two, since one product waits for the sum of the one before
    for (int64_t m = 0; m < COUNT; ++m) sum[m] = other[m] = _mm512_setzero_si512();
    for (int64_t k = g * group; k < (g + 1) * group; k += 8, weight += 64) {
      const __m512i both = _mm512_loadu_si512(weight);
      _mm_prefetch(reinterpret_cast<const char*>(weight + AHEAD), _MM_HINT_T0);
      const __m512i first = _mm512_and_si512(both, half);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(both, 4), half);
      for (int64_t m = 0; m < COUNT; ++m) {
        sum[m] = _mm512_dpbusd_epi32(sum[m], first, four(x[m].values + k));
        other[m] = _mm512_dpbusd_epi32(other[m], second, four(x[m].values + k + 4));
      }
    }
    for (int64_t m = 0; m < COUNT; ++m) sum[m] = _mm512_add_epi32(sum[m], other[m]);
    const __m512 step = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scale + g * ROWS)));
    if (low == nullptr) {
      for (int64_t m = 0; m < COUNT; ++m) {
        const __m512i whole = _mm512_sub_epi32(sum[m], _mm512_set1_epi32(8 * x[m].sums[g]));
        total[m] = _mm512_fmadd_ps(_mm512_mul_ps(step, _mm512_set1_ps(x[m].steps[g])), _mm512_cvtepi32_ps(whole), total[m]);
      }
    } else {
      const __m512 below = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + g * ROWS)));
      for (int64_t m = 0; m < COUNT; ++m) {
        const __m512 all = _mm512_set1_ps(static_cast<float>(x[m].sums[g]));
        const __m512 part = _mm512_fmsub_ps(step, _mm512_cvtepi32_ps(sum[m]), _mm512_mul_ps(below, all));
        total[m] = _mm512_fmadd_ps(part, _mm512_set1_ps(x[m].steps[g]), total[m]);
      }
    }
  }
  for (int64_t m = 0; m < COUNT; ++m) _mm512_storeu_ps(out[m], total[m]);
}

#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)

inline __m256i dot(__m256i sum, __m256i weight, __m256i x) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, weight, x);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(sum, weight, x);
#else
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weight, x), _mm256_set1_epi16(1)));
#endif
}

inline __m256 wide(const uint16_t* numbers) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
}

template <int64_t COUNT>
void multiply(const uint8_t* weight, const uint16_t* scale, const uint16_t* low, const Inputs* x, float* const* out, int64_t groups,
              int64_t group) {
  const __m256i half = _mm256_set1_epi8(15);
  __m256 total[COUNT][2];
  for (int64_t m = 0; m < COUNT; ++m) total[m][0] = total[m][1] = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    __m256i sum[COUNT][2];
    for (int64_t m = 0; m < COUNT; ++m) sum[m][0] = sum[m][1] = _mm256_setzero_si256();
    for (int64_t k = g * group; k < (g + 1) * group; k += 8, weight += 64) {
      for (int64_t part = 0; part < 2; ++part) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + 32 * part));
        const __m256i first = _mm256_and_si256(both, half);
        const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), half);
        for (int64_t m = 0; m < COUNT; ++m) {
          int32_t four[2];
          std::memcpy(four, x[m].values + k, 8);
          sum[m][part] = dot(sum[m][part], first, _mm256_set1_epi32(four[0]));
          sum[m][part] = dot(sum[m][part], second, _mm256_set1_epi32(four[1]));
        }
      }
    }
    for (int64_t part = 0; part < 2; ++part) {
      const __m256 step = wide(scale + g * ROWS + 8 * part);
      for (int64_t m = 0; m < COUNT; ++m) {
        const __m256 own = _mm256_set1_ps(x[m].steps[g]);
        if (low == nullptr) {
          const __m256i whole = _mm256_sub_epi32(sum[m][part], _mm256_set1_epi32(8 * x[m].sums[g]));
          total[m][part] = _mm256_fmadd_ps(_mm256_mul_ps(step, own), _mm256_cvtepi32_ps(whole), total[m][part]);
        } else {
          const __m256 all = _mm256_mul_ps(wide(low + g * ROWS + 8 * part), _mm256_set1_ps(static_cast<float>(x[m].sums[g])));
          const __m256 some = _mm256_fmsub_ps(step, _mm256_cvtepi32_ps(sum[m][part]), all);
          total[m][part] = _mm256_fmadd_ps(some, own, total[m][part]);
        }
      }
    }
  }
  for (int64_t m = 0; m < COUNT; ++m) {
    _mm256_storeu_ps(out[m], total[m][0]);
    _mm256_storeu_ps(out[m] + 8, total[m][1]);
  }
}

#else

inline float wide(uint16_t number) {
  const uint32_t sign = static_cast<uint32_t>(number & 0x8000) << 16, rest = number & 0x7fff;
  if (rest < 0x400) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(rest), -24);
  const uint32_t bits = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + 0x38000000);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <int64_t COUNT>
void multiply(const uint8_t* weight, const uint16_t* scale, const uint16_t* low, const Inputs* x, float* const* out, int64_t groups,
              int64_t group) {
  for (int64_t m = 0; m < COUNT; ++m)
    for (int64_t r = 0; r < ROWS; ++r) {
      float total = 0;
      for (int64_t g = 0; g < groups; ++g) {
        int32_t sum = 0;
        for (int64_t k = 0; k < group; k += 8)
          for (int64_t j = 0; j < 4; ++j) {
            const uint8_t both = weight[(g * group + k) * 8 + 4 * r + j];
            sum += (both & 15) * x[m].values[g * group + k + j] + (both >> 4) * x[m].values[g * group + k + 4 + j];
          }
        const float step = wide(scale[g * ROWS + r]), all = static_cast<float>(x[m].sums[g]);
        const float below = low == nullptr ? 8 * step : wide(low[g * ROWS + r]);
        total += x[m].steps[g] * (step * static_cast<float>(sum) - below * all);
      }
      out[m][r] = total;
    }
}

#endif

void round_row(const float* x, int8_t* values, float* steps, int32_t* sums, int64_t groups, int64_t group) {
  for (int64_t g = 0; g < groups; ++g, x += group, values += group) {
    float most = 0;
    for (int64_t k = 0; k < group; ++k) most = std::fmax(most, std::fabs(x[k]));
    const float step = most / 127, back = step > 0 ? 1 / step : 0;
    int32_t sum = 0;
    for (int64_t k = 0; k < group; ++k) {
      const int32_t value = static_cast<int32_t>(std::nearbyint(x[k] * back));
      values[k] = static_cast<int8_t>(value);
      sum += value;
    }
    steps[g] = step;
    sums[g] = sum;
  }
}

}  // namespace

// `room` holds for each row of x its K values, then K / group steps and as many sums, of four bytes each.
extern "C" void transept_four_bits(const float* x, const uint8_t* weight, const uint16_t* scale, const uint16_t* low, float* out,
                                   uint8_t* room, int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int32_t threads) {
  const int64_t groups = inputs / group, blocks = (outputs + ROWS - 1) / ROWS, size = inputs + 8 * groups;
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t m = 0; m < rows; ++m) {
      uint8_t* own = room + m * size;
      round_row(x + m * inputs, reinterpret_cast<int8_t*>(own), reinterpret_cast<float*>(own + inputs),
                reinterpret_cast<int32_t*>(own + inputs + 4 * groups), groups, group);
    }
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
      const uint8_t* own = weight + block * ROWS * inputs / 2;
      const uint16_t* steps = scale + block * ROWS * groups;
      const uint16_t* below = low == nullptr ? nullptr : low + block * ROWS * groups;
      const int64_t count = outputs - block * ROWS < ROWS ? outputs - block * ROWS : ROWS;
      for (int64_t m = 0; m < rows; m += MOST) {
        const int64_t some = rows - m < MOST ? rows - m : MOST;
        Inputs taken[MOST];
        float edge[MOST][ROWS];
        float* places[MOST];
        for (int64_t i = 0; i < some; ++i) {
          const uint8_t* row = room + (m + i) * size;
          taken[i] = {reinterpret_cast<const int8_t*>(row), reinterpret_cast<const float*>(row + inputs),
                      reinterpret_cast<const int32_t*>(row + inputs + 4 * groups)};
          places[i] = count == ROWS ? out + (m + i) * outputs + block * ROWS : edge[i];
        }
        switch (some) {
          case 1: multiply<1>(own, steps, below, taken, places, groups, group); break;
          case 2: multiply<2>(own, steps, below, taken, places, groups, group); break;
          case 3: multiply<3>(own, steps, below, taken, places, groups, group); break;
          default: multiply<4>(own, steps, below, taken, places, groups, group);
        }
        if (count < ROWS)
          for (int64_t i = 0; i < some; ++i)
            std::memcpy(out + (m + i) * outputs + block * ROWS, edge[i], static_cast<size_t>(count) * 4);
      }
    }
  }
}
