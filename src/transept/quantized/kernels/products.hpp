// Products by weights of few bits: out (M, N) = x (M, K) times the transpose of a weight (N, K), on a CPU.
//
// A weight is code * scale - low. Codes have four bits (0 to 15, or what a table of 16 says they stand for) or eight (-128 to
// 127). Each row has a scale for every group of columns: a number of 16 or 32 bits for `span` groups, or a power of two, times
// an integer of eight bits for each group where there are such. What it is lessened by is made in the same way; integers alone
// are multiples of the scale (zero points), and with neither, codes of four bits are lessened by 8, those of eight and of
// tables by nothing. Inputs are rounded to eight bits for each row and group, so that products are those of integers.
//
// Codes that are floats of eight bits (E4M3) are multiplied as such, by inputs as they are, and scales alone belong to them.
//
// A table of floats is rounded to 16 bits, by 2 ** -16 of its largest number at most, where inputs are rounded by 2 ** -8: each
// of its integers is a high byte and a low one, which are multiplied by themselves.
//
// Sixteen rows of the weight lie together. Of each four columns of eight bits they take 64 bytes, four a row; of each eight
// columns of four bits as many, of which the lower halves are the first four columns and the higher halves the others. So one
// instruction multiplies four columns of sixteen rows by four inputs that all rows share.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t ROWS = 16;
constexpr int64_t AHEAD = 4096;  // bytes
constexpr int32_t LEAST = 0x00200000;  // the bits of 2 ** -128, which is no normal number; nor is twice as much

// Floats of eight bits (E4M3) are halves with the same bits behind the sign, but for one more in front of the exponent.
constexpr uint16_t KEPT = 0xbf80;
constexpr float RAISED = 256;
// Which bytes of a word of four columns stand in the higher halves of two numbers of 16 bits, for the first of four rows.
template <int PLACE>
constexpr int32_t TWO = static_cast<int32_t>((PLACE + 1u) << 24 | 0x800080 | PLACE << 8);

struct Weight {  // sixteen rows
  const uint8_t* codes;
  const uint16_t* scale;
  const float* wide_scale;  // in the place of the scale
  const uint8_t* powers;    // in its place too: 128 more than the exponents of two
  const int8_t* fine_scale;
  const uint16_t* low;
  const int8_t* fine_low;
  const int8_t* table;  // of high bytes, and then of low ones, where the numbers are of 16 bits
  float unit;           // of these numbers
  int64_t groups, group, span;
};

struct Inputs {  // one row: eight bits each, and for each group
  int8_t* values;
  float* steps;
  float* sums;      // of inputs, times the step
  int32_t* starts;  // what a sum of products starts with, since codes lie `middle` above what they stand for
};

#if defined(__AVX512VNNI__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

constexpr int64_t MOST = 8;  // rows of the input that are multiplied at a time

using Codes = __m512i;
using Sums = __m512i;

struct Numbers {
  __m512 all;
};

inline Numbers halves(const uint16_t* x) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)))}; }
inline Numbers bytes(const int8_t* x) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))))};
}
inline Numbers floats(const float* x) { return {_mm512_loadu_ps(x)}; }
inline Numbers powers(const uint8_t* x) {
  const __m512i all = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))), one = _mm512_set1_epi32(1);
  const __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(all, one), 23);
  const __m512i least = _mm512_sllv_epi32(_mm512_set1_epi32(LEAST), all);
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(all, one), least, usual))};
}
inline Numbers integers(Sums x) { return {_mm512_cvtepi32_ps(x)}; }

struct Pairs {  // sums of two columns each, of the first eight rows and of the others
  __m512 first, second;
};

inline Numbers joined(Pairs x) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_add_ps(_mm512_permutex2var_ps(x.first, even, x.second), _mm512_permutex2var_ps(x.first, odd, x.second))};
}
template <int PLACE>
inline Pairs columns(Codes x) {
  constexpr int32_t step = 0x04000400, own = TWO<PLACE>;
  const __m512i two = _mm512_shuffle_epi8(x, _mm512_set4_epi32(own + 3 * step, own + 2 * step, own + step, own));
  const __m512i half = _mm512_and_si512(_mm512_srai_epi16(two, 1), _mm512_set1_epi16(static_cast<int16_t>(KEPT)));
  return {_mm512_cvtph_ps(_mm512_castsi512_si256(half)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1))};
}
inline Pairs added(Pairs sum, Pairs x, const float* inputs) {
  double two;
  std::memcpy(&two, inputs, 8);
  const __m512 both = _mm512_castpd_ps(_mm512_set1_pd(two));
  return {_mm512_fmadd_ps(x.first, both, sum.first), _mm512_fmadd_ps(x.second, both, sum.second)};
}
inline Numbers one(float x) { return {_mm512_set1_ps(x)}; }
inline Numbers operator*(Numbers a, Numbers b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline Numbers less(Numbers a, Numbers b, Numbers c) { return {_mm512_fnmadd_ps(b.all, c.all, a.all)}; }   // a - b * c
inline Numbers added(Numbers a, Numbers b, Numbers c) { return {_mm512_fmadd_ps(b.all, c.all, a.all)}; }  // a + b * c
inline void store(float* out, Numbers x) { _mm512_storeu_ps(out, x.all); }

inline Sums all(int32_t x) { return _mm512_set1_epi32(x); }
inline Sums plus(Sums a, Sums b) { return _mm512_add_epi32(a, b); }
inline Codes load(const uint8_t* x) {
  _mm_prefetch(reinterpret_cast<const char*>(x + AHEAD), _MM_HINT_T0);
  return _mm512_loadu_si512(x);
}
inline Codes lower(Codes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Codes higher(Codes x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
inline Codes looked_up(Codes x, const int8_t* table) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
}
// The instruction takes codes without a sign: those with one are taken 128 higher, which `OVER` says and sums make up for.
constexpr int32_t OVER = 128;
inline Codes without_sign(Codes x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }
template <bool SIGNED>
inline Sums dot(Sums sum, Codes x, const int8_t* inputs) {
  return _mm512_dpbusd_epi32(sum, x, _mm512_broadcastd_epi32(_mm_loadu_si32(inputs)));
}

#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)

constexpr int64_t MOST = 2;

struct Codes {
  __m256i first, second;
};
using Sums = Codes;

struct Numbers {
  __m256 first, second;
};

inline __m256 wide(const uint16_t* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }
inline __m256 wide(const int8_t* x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}
inline Numbers halves(const uint16_t* x) { return {wide(x), wide(x + 8)}; }
inline Numbers bytes(const int8_t* x) { return {wide(x), wide(x + 8)}; }
inline Numbers floats(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
inline __m256 wide_power(const uint8_t* x) {
  const __m256i all = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))), one = _mm256_set1_epi32(1);
  const __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(all, one), 23);
  const __m256i least = _mm256_sllv_epi32(_mm256_set1_epi32(LEAST), all);
  return _mm256_castsi256_ps(_mm256_blendv_epi8(least, usual, _mm256_cmpgt_epi32(all, one)));
}
inline Numbers powers(const uint8_t* x) { return {wide_power(x), wide_power(x + 8)}; }
inline Numbers integers(Sums x) { return {_mm256_cvtepi32_ps(x.first), _mm256_cvtepi32_ps(x.second)}; }

struct Pairs {  // sums of two columns each, of four rows after four others
  __m256 rows[4];
};

inline __m256 joined(__m256 first, __m256 second) {
  const __m256d sums = _mm256_castps_pd(_mm256_hadd_ps(first, second));
  return _mm256_castpd_ps(_mm256_permute4x64_pd(sums, 0xd8));
}
inline Numbers joined(const Pairs& x) { return {joined(x.rows[0], x.rows[1]), joined(x.rows[2], x.rows[3])}; }
template <int PLACE>
inline Pairs columns(Codes x) {
  constexpr int32_t step = 0x04000400, own = TWO<PLACE>;
  const __m128i places = _mm_set_epi32(own + 3 * step, own + 2 * step, own + step, own);
  Pairs out;
  for (int i = 0; i < 2; ++i) {
    const __m256i two = _mm256_shuffle_epi8(i == 0 ? x.first : x.second, _mm256_broadcastsi128_si256(places));
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(two, 1), _mm256_set1_epi16(static_cast<int16_t>(KEPT)));
    out.rows[2 * i] = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
    out.rows[2 * i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
  }
  return out;
}
inline Pairs added(Pairs sum, const Pairs& x, const float* inputs) {
  double two;
  std::memcpy(&two, inputs, 8);
  const __m256 both = _mm256_castpd_ps(_mm256_set1_pd(two));
  for (int i = 0; i < 4; ++i) sum.rows[i] = _mm256_fmadd_ps(x.rows[i], both, sum.rows[i]);
  return sum;
}
inline Numbers one(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Numbers operator*(Numbers a, Numbers b) { return {_mm256_mul_ps(a.first, b.first), _mm256_mul_ps(a.second, b.second)}; }
inline Numbers less(Numbers a, Numbers b, Numbers c) {
  return {_mm256_fnmadd_ps(b.first, c.first, a.first), _mm256_fnmadd_ps(b.second, c.second, a.second)};
}
inline Numbers added(Numbers a, Numbers b, Numbers c) {
  return {_mm256_fmadd_ps(b.first, c.first, a.first), _mm256_fmadd_ps(b.second, c.second, a.second)};
}
inline void store(float* out, Numbers x) {
  _mm256_storeu_ps(out, x.first);
  _mm256_storeu_ps(out + 8, x.second);
}

inline Sums all(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Sums plus(Sums a, Sums b) { return {_mm256_add_epi32(a.first, b.first), _mm256_add_epi32(a.second, b.second)}; }
inline __m256i load_half(const uint8_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
inline Codes load(const uint8_t* x) {
  _mm_prefetch(reinterpret_cast<const char*>(x + AHEAD), _MM_HINT_T0);
  return {load_half(x), load_half(x + 32)};
}
inline __m256i low_bits(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Codes lower(Codes x) { return {low_bits(x.first), low_bits(x.second)}; }
inline Codes higher(Codes x) { return {low_bits(_mm256_srli_epi16(x.first, 4)), low_bits(_mm256_srli_epi16(x.second, 4))}; }
inline Codes looked_up(Codes x, const int8_t* table) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(both, x.first), _mm256_shuffle_epi8(both, x.second)};
}
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
constexpr int32_t OVER = 128;
inline __m256i flipped(__m256i x) { return _mm256_xor_si256(x, _mm256_set1_epi8(-128)); }
inline Codes without_sign(Codes x) { return {flipped(x.first), flipped(x.second)}; }
template <bool SIGNED>
inline __m256i dot_half(__m256i sum, __m256i weight, __m256i x) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, weight, x);
#else
  return _mm256_dpbusd_epi32(sum, weight, x);
#endif
}
#else
constexpr int32_t OVER = 0;
inline Codes without_sign(Codes x) { return x; }
template <bool SIGNED>
inline __m256i dot_half(__m256i sum, __m256i weight, __m256i x) {
  // Two products are added in 16 bits: those of codes with a sign fit if the sign is the input's, and inputs end at 127.
  const __m256i pairs = SIGNED ? _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(x, weight))
                               : _mm256_maddubs_epi16(weight, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
template <bool SIGNED>
inline Sums dot(Sums sum, Codes x, const int8_t* inputs) {
  int32_t four;
  std::memcpy(&four, inputs, 4);
  const __m256i both = _mm256_set1_epi32(four);
  return {dot_half<SIGNED>(sum.first, x.first, both), dot_half<SIGNED>(sum.second, x.second, both)};
}

#else

constexpr int64_t MOST = 2;

struct Codes {
  int8_t each[4 * ROWS];
};
struct Sums {
  int32_t each[ROWS];
};
struct Numbers {
  float each[ROWS];
};

inline float wide(uint16_t number) {
  const uint32_t sign = static_cast<uint32_t>(number & 0x8000) << 16, rest = number & 0x7fff;
  if (rest < 0x400) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(rest), -24);
  const uint32_t bits = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest & 0x3ff) << 13 : (rest << 13) + 0x38000000);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
template <typename Out, typename Function>
inline Out each(Function function) {
  Out out;
  for (int64_t r = 0; r < static_cast<int64_t>(sizeof(out.each) / sizeof(out.each[0])); ++r) out.each[r] = function(r);
  return out;
}
inline Numbers halves(const uint16_t* x) { return each<Numbers>([&](int64_t r) { return wide(x[r]); }); }
inline Numbers bytes(const int8_t* x) { return each<Numbers>([&](int64_t r) { return static_cast<float>(x[r]); }); }
inline Numbers floats(const float* x) { return each<Numbers>([&](int64_t r) { return x[r]; }); }
inline Numbers powers(const uint8_t* x) {
  return each<Numbers>([&](int64_t r) {
    const int32_t bits = x[r] > 1 ? (x[r] - 1) << 23 : LEAST << x[r];
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  });
}
inline Numbers integers(const Sums& x) { return each<Numbers>([&](int64_t r) { return static_cast<float>(x.each[r]); }); }
inline Numbers one(float x) { return each<Numbers>([&](int64_t) { return x; }); }
inline Numbers operator*(const Numbers& a, const Numbers& b) {
  return each<Numbers>([&](int64_t r) { return a.each[r] * b.each[r]; });
}
inline Numbers less(const Numbers& a, const Numbers& b, const Numbers& c) {
  return each<Numbers>([&](int64_t r) { return a.each[r] - b.each[r] * c.each[r]; });
}
inline Numbers added(const Numbers& a, const Numbers& b, const Numbers& c) {
  return each<Numbers>([&](int64_t r) { return a.each[r] + b.each[r] * c.each[r]; });
}
inline void store(float* out, const Numbers& x) { std::memcpy(out, x.each, sizeof(x.each)); }

struct Pairs {
  Numbers first, second;
};

inline Numbers joined(const Pairs& x) { return added(x.first, x.second, one(1)); }
inline Numbers columns_at(const Codes& x, int64_t place) {
  return each<Numbers>([&](int64_t r) {
    const int32_t code = static_cast<int8_t>(x.each[4 * r + place]);
    return wide(static_cast<uint16_t>(code * 128 & KEPT));
  });
}
template <int PLACE>
inline Pairs columns(const Codes& x) {
  return {columns_at(x, PLACE), columns_at(x, PLACE + 1)};
}
inline Pairs added(const Pairs& sum, const Pairs& x, const float* inputs) {
  return {added(sum.first, x.first, one(inputs[0])), added(sum.second, x.second, one(inputs[1]))};
}

inline Sums all(int32_t x) { return each<Sums>([&](int64_t) { return x; }); }
inline Sums plus(const Sums& a, const Sums& b) { return each<Sums>([&](int64_t r) { return a.each[r] + b.each[r]; }); }
inline Codes load(const uint8_t* x) {
  Codes out;
  std::memcpy(out.each, x, sizeof(out.each));
  return out;
}
inline Codes lower(const Codes& x) { return each<Codes>([&](int64_t r) { return static_cast<int8_t>(x.each[r] & 15); }); }
inline Codes higher(const Codes& x) { return each<Codes>([&](int64_t r) { return static_cast<int8_t>(x.each[r] >> 4 & 15); }); }
inline Codes looked_up(const Codes& x, const int8_t* table) { return each<Codes>([&](int64_t r) { return table[x.each[r]]; }); }
constexpr int32_t OVER = 0;
inline Codes without_sign(const Codes& x) { return x; }
template <bool SIGNED>
inline Sums dot(const Sums& sum, const Codes& x, const int8_t* inputs) {
  return each<Sums>([&](int64_t r) {
    int32_t found = sum.each[r];
    for (int64_t j = 0; j < 4; ++j) found += x.each[4 * r + j] * inputs[j];
    return found;
  });
}

#endif

// How codes are stored: four bits, four bits that a table of 8 or of 16 bits tells the meaning of, or eight bits.
enum Kind { FOUR, TABLE, FINE, EIGHT };

inline Numbers scale_at(const Weight& weight, int64_t group) {
  const int64_t place = group / weight.span * ROWS;
  if (weight.scale != nullptr) return halves(weight.scale + place);
  return weight.powers == nullptr ? floats(weight.wide_scale + place) : powers(weight.powers + place);
}

template <int64_t COUNT, Kind KIND, bool LOW>
void multiply(const Weight& weight, const Inputs* x, float* const* out) {
  constexpr int64_t STEP = KIND == EIGHT ? 4 : 8;
  constexpr bool SIGNED = KIND != FOUR;
  // Two sums: of two products one waits for the other's sum, and low bytes have their own.
  constexpr bool PAIRED = KIND == FINE || (KIND != EIGHT && COUNT <= 2);
  const uint8_t* codes = weight.codes;
  Numbers total[COUNT], scale = one(0), low = one(0);
  for (int64_t m = 0; m < COUNT; ++m) total[m] = one(0);
  for (int64_t g = 0; g < weight.groups; ++g) {
    Sums sum[COUNT], other[PAIRED ? COUNT : 1];
    for (int64_t m = 0; m < COUNT; ++m) {
      sum[m] = all(x[m].starts[g]);
      if constexpr (PAIRED) other[m] = KIND == FINE ? sum[m] : all(0);
    }
    for (int64_t k = g * weight.group; k < (g + 1) * weight.group; k += STEP, codes += 64) {
      const Codes both = load(codes);
      if constexpr (KIND == EIGHT) {
        const Codes first = without_sign(both);
        for (int64_t m = 0; m < COUNT; ++m) sum[m] = dot<SIGNED>(sum[m], first, x[m].values + k);
      } else {
        Codes first = lower(both), second = higher(both);
        if constexpr (KIND == FINE) {
          const int8_t* behind = weight.table + 16;
          const Codes low_bytes[2] = {without_sign(looked_up(first, behind)), without_sign(looked_up(second, behind))};
          for (int64_t m = 0; m < COUNT; ++m)
            for (int64_t i = 0; i < 2; ++i) other[m] = dot<SIGNED>(other[m], low_bytes[i], x[m].values + k + 4 * i);
        }
        if constexpr (KIND != FOUR) {
          first = without_sign(looked_up(first, weight.table));
          second = without_sign(looked_up(second, weight.table));
        }
        for (int64_t m = 0; m < COUNT; ++m) {
          sum[m] = dot<SIGNED>(sum[m], first, x[m].values + k);
          if constexpr (PAIRED && KIND != FINE) other[m] = dot<SIGNED>(other[m], second, x[m].values + k + 4);
          else sum[m] = dot<SIGNED>(sum[m], second, x[m].values + k + 4);
        }
      }
    }
    if (g % weight.span == 0) {
      scale = scale_at(weight, g);
      if (LOW && weight.low != nullptr) low = halves(weight.low + g / weight.span * ROWS);
    }
    const Numbers own = weight.fine_scale == nullptr ? scale : scale * bytes(weight.fine_scale + g * ROWS);
    Numbers below = weight.low == nullptr ? own : low;
    if (LOW && weight.fine_low != nullptr) below = below * bytes(weight.fine_low + g * ROWS);
    for (int64_t m = 0; m < COUNT; ++m) {
      Numbers whole;
      if constexpr (KIND == FINE) whole = added(integers(other[m]), integers(sum[m]), one(256));
      else if constexpr (PAIRED) whole = integers(plus(sum[m], other[m]));
      else whole = integers(sum[m]);
      total[m] = added(total[m], own * whole, one(x[m].steps[g]));
      if (LOW) total[m] = less(total[m], below, one(x[m].sums[g]));
    }
  }
  for (int64_t m = 0; m < COUNT; ++m) store(out[m], KIND == FINE ? total[m] * one(weight.unit) : total[m]);
}

template <Kind KIND, bool LOW>
void multiply_some(int64_t count, const Weight& weight, const Inputs* x, float* const* out) {
  for (int64_t m = 0; m < count;) {
    if (MOST >= 8 && count - m >= 8) multiply<MOST, KIND, LOW>(weight, x + m, out + m), m += MOST;
    else if (MOST >= 4 && count - m >= 4) multiply<MOST / 2, KIND, LOW>(weight, x + m, out + m), m += MOST / 2;
    else if (count - m >= 2) multiply<2, KIND, LOW>(weight, x + m, out + m), m += 2;
    else multiply<1, KIND, LOW>(weight, x + m, out + m), m += 1;
  }
}

// The numbers of a table as high and low bytes of integers; gives their unit.
float split(const float* table, int8_t* bytes_of) {
  float most = 0;
  for (int64_t i = 0; i < 16; ++i) most = std::fmax(most, std::fabs(table[i]));
  const float unit = most > 0 ? most / (127 * 256) : 1;
  for (int64_t i = 0; i < 16; ++i) {
    const int32_t number = static_cast<int32_t>(std::nearbyintf(table[i] / unit)), high = (number + 128) >> 8;
    bytes_of[i] = static_cast<int8_t>(high);
    bytes_of[16 + i] = static_cast<int8_t>(number - 256 * high);
  }
  return unit;
}

inline Inputs inputs_at(uint8_t* room, int64_t inputs, int64_t groups) {
  return {reinterpret_cast<int8_t*>(room), reinterpret_cast<float*>(room + inputs),
          reinterpret_cast<float*>(room + inputs + 4 * groups), reinterpret_cast<int32_t*>(room + inputs + 8 * groups)};
}

inline __attribute__((always_inline)) void round_groups(const float* x, const Inputs& out, int64_t groups, int64_t group,
                                                        int32_t middle) {
  int8_t* values = out.values;
  for (int64_t g = 0; g < groups; ++g, x += group, values += group) {
    float most = 0, wrong = 0;
#pragma omp simd reduction(max : most) reduction(+ : wrong)
    for (int64_t k = 0; k < group; ++k) {
      const float size = std::fabs(x[k]);
      most = size > most ? size : most;
      wrong += size * 0;  // not a number where one of them is none, or has no end
    }
    const float step = most / 127 + wrong, back = step > 0 ? 1 / step : 0;
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < group; ++k) {
      const int32_t value = static_cast<int32_t>(std::nearbyintf(x[k] * back));
      values[k] = static_cast<int8_t>(value);
      sum += value;
    }
    out.steps[g] = step;
    out.sums[g] = step * static_cast<float>(sum);
    out.starts[g] = -middle * sum;
  }
}

void round_row(const float* x, uint8_t* room, int64_t inputs, int64_t groups, int64_t group, int32_t middle) {
  const Inputs out = inputs_at(room, inputs, groups);
  // Where the compiler knows how long its loops are, they take a quarter of the time.
  if (group == 32) round_groups(x, out, groups, 32, middle);
  else round_groups(x, out, groups, group, middle);
}

template <int64_t COUNT>
void multiply_floats(const Weight& weight, const float* const* x, float* const* out) {
  const uint8_t* codes = weight.codes;
  Numbers total[COUNT], scale = one(0);
  for (int64_t m = 0; m < COUNT; ++m) total[m] = one(0);
  for (int64_t g = 0; g < weight.groups; ++g) {
    Pairs sum[COUNT] = {}, other[COUNT] = {};  // of which one does not wait for the other
    for (int64_t k = g * weight.group; k < (g + 1) * weight.group; k += 4, codes += 64) {
      const Codes four = load(codes);
      const Pairs first = columns<0>(four), second = columns<2>(four);
      for (int64_t m = 0; m < COUNT; ++m) {
        sum[m] = added(sum[m], first, x[m] + k);
        other[m] = added(other[m], second, x[m] + k + 2);
      }
    }
    if (g % weight.span == 0) scale = scale_at(weight, g) * one(RAISED);
    for (int64_t m = 0; m < COUNT; ++m) total[m] = added(added(total[m], scale, joined(sum[m])), scale, joined(other[m]));
  }
  for (int64_t m = 0; m < COUNT; ++m) store(out[m], total[m]);
}

constexpr int64_t AT_ONCE = 64;

// The same as below, for floats, and inputs that are not rounded.
void multiply_rows_of_floats(const Weight& weight, const float* x, float* out, int64_t begin, int64_t end, int64_t outputs,
                             int64_t count) {
  constexpr int64_t MANY = 4;
  const int64_t inputs = weight.groups * weight.group;
  for (int64_t m = begin; m < end;) {
    const int64_t some = end - m >= MANY ? MANY : end - m >= 2 ? 2 : 1;
    const float* taken[MANY];
    float edge[MANY][ROWS];
    float* places[MANY];
    for (int64_t i = 0; i < some; ++i) {
      taken[i] = x + (m + i) * inputs;
      places[i] = edge[i];
    }
    if (some == MANY) multiply_floats<MANY>(weight, taken, places);
    else if (some == 2) multiply_floats<2>(weight, taken, places);
    else multiply_floats<1>(weight, taken, places);
    for (int64_t i = 0; i < some; ++i) std::memcpy(out + (m + i) * outputs, edge[i], static_cast<size_t>(count) * 4);
    m += some;
  }
}

// Rows `begin` to `end` of the output, whose inputs lie in `rounded`, in the columns of one block of the weight.
template <Kind KIND, bool LOW>
void multiply_rows(const Weight& weight, uint8_t* rounded, float* out, int64_t begin, int64_t end, int64_t outputs,
                   int64_t count) {
  const int64_t inputs = weight.groups * weight.group, size = inputs + 12 * weight.groups;
  for (int64_t m = begin; m < end; m += AT_ONCE) {
    const int64_t some = end - m < AT_ONCE ? end - m : AT_ONCE;
    Inputs taken[AT_ONCE];
    float edge[AT_ONCE][ROWS];
    float* places[AT_ONCE];
    for (int64_t i = 0; i < some; ++i) {
      taken[i] = inputs_at(rounded + (m + i) * size, inputs, weight.groups);
      places[i] = count == ROWS ? out + (m + i) * outputs : edge[i];
    }
    multiply_some<KIND, LOW>(some, weight, taken, places);
    if (count < ROWS)
      for (int64_t i = 0; i < some; ++i) std::memcpy(out + (m + i) * outputs, edge[i], static_cast<size_t>(count) * 4);
  }
}

// The arguments of a product, as Python gives them: the tensors of a weight in blocks, and their sizes. `widths` says whether
// scales (1) and the table (2) are floats, scales powers of two (4), and codes floats (8), by which inputs are multiplied as they
// are. Where `bits` is 32, the codes are a plain matrix (outputs, inputs) of floats.
struct Matrix {
  const uint8_t* codes;
  const void* scale;
  const int8_t* fine_scale;
  const uint16_t* low;
  const int8_t* fine_low;
  const void* table;
  int64_t outputs, inputs, group, span, bits, widths;
};

// A product by a weight in blocks, of which threads compute each some.
class Product {
 public:
  explicit Product(const Matrix& matrix)
      : matrix(matrix), groups(matrix.inputs / matrix.group), blocks((matrix.outputs + ROWS - 1) / ROWS) {
    const bool fine = matrix.widths & 2, lows = matrix.low != nullptr || matrix.fine_low != nullptr;
    if (fine) unit = split(static_cast<const float*>(matrix.table), parts);
    const auto choose = [&](auto without, auto with) { return lows ? with : without; };
    chosen = matrix.bits == 8          ? choose(multiply_rows<EIGHT, false>, multiply_rows<EIGHT, true>)
             : fine                    ? multiply_rows<FINE, false>
             : matrix.table != nullptr ? choose(multiply_rows<TABLE, false>, multiply_rows<TABLE, true>)
                                       : choose(multiply_rows<FOUR, false>, multiply_rows<FOUR, true>);
    middle = matrix.bits == 8 || matrix.table != nullptr ? OVER : lows ? 0 : 8;
  }

  // Bytes that a rounded row takes.
  int64_t room() const { return matrix.inputs + 12 * groups; }

  void round(const float* x, uint8_t* rounded) const { round_row(x, rounded, matrix.inputs, groups, matrix.group, middle); }

  // The columns of a block, for rows `begin` to `end` of the output, which lie `stride` apart. Inputs are rounded, or as they
  // come (without `rounded`) where codes are floats. `weight` is the number of the weight, where there are several.
  void multiply(const float* x, uint8_t* rounded, float* out, int64_t stride, int64_t begin, int64_t end, int64_t block,
                int64_t weight = 0) const {
    const int64_t spans = (groups + matrix.span - 1) / matrix.span, place = weight * blocks + block;
    const int64_t fine = place * ROWS * groups, coarse = place * ROWS * spans;
    const Weight found = {matrix.codes + place * ROWS * matrix.inputs * matrix.bits / 8,
                          matrix.widths & 5 ? nullptr : static_cast<const uint16_t*>(matrix.scale) + coarse,
                          matrix.widths & 1 ? static_cast<const float*>(matrix.scale) + coarse : nullptr,
                          matrix.widths & 4 ? static_cast<const uint8_t*>(matrix.scale) + coarse : nullptr,
                          matrix.fine_scale == nullptr ? nullptr : matrix.fine_scale + fine,
                          matrix.low == nullptr ? nullptr : matrix.low + coarse,
                          matrix.fine_low == nullptr ? nullptr : matrix.fine_low + fine,
                          matrix.widths & 2 ? parts : static_cast<const int8_t*>(matrix.table),
                          unit,
                          groups,
                          matrix.group,
                          matrix.span};
    const int64_t left = matrix.outputs - block * ROWS, count = left < ROWS ? left : ROWS;
    if (rounded == nullptr) multiply_rows_of_floats(found, x, out + block * ROWS, begin, end, stride, count);
    else chosen(found, rounded, out + block * ROWS, begin, end, stride, count);
  }

  const Matrix matrix;
  const int64_t groups, blocks;

 private:
  void (*chosen)(const Weight&, uint8_t*, float*, int64_t, int64_t, int64_t, int64_t);
  int8_t parts[32];
  float unit = 1;
  int32_t middle;
};

}  // namespace
