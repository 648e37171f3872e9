// Attention of many queries in float32 on a CPU: softmax(queries keys^T * scale) values, head by head.
//
// A few queries at a time, so that their scores stay in a core's caches; products are made of tiles that stay in registers.
// A query is computed in the same way whatever is computed beside it.

#include <omp.h>

#include <algorithm>

#include "vectors.hpp"

namespace {

#if defined(__AVX512F__)
constexpr int64_t TILES = 4;
#else
constexpr int64_t TILES = 2;
#endif
constexpr int64_t DOWN = 6, COLUMNS = WIDE * TILES;  // of a tile: rows, and numbers of each

// out (ROWS, SOME * WIDE) = a (ROWS, depth) times b (depth, SOME * WIDE).
template <int64_t ROWS, int64_t SOME>
inline void tile(const float* a, int64_t a_apart, const float* b, int64_t b_apart, float* out, int64_t out_apart,
                 int64_t depth) {
  Vector sums[ROWS][SOME] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vector own[SOME];
    for (int64_t j = 0; j < SOME; ++j) own[j] = *reinterpret_cast<const Vector*>(b + k * b_apart + j * WIDE);
    for (int64_t i = 0; i < ROWS; ++i)
      for (int64_t j = 0; j < SOME; ++j) sums[i][j] += a[i * a_apart + k] * own[j];
  }
  for (int64_t i = 0; i < ROWS; ++i)
    for (int64_t j = 0; j < SOME; ++j) *reinterpret_cast<Vector*>(out + i * out_apart + j * WIDE) = sums[i][j];
}

template <int64_t SOME>
inline void tiles_beside(const float* a, int64_t a_apart, const float* b, int64_t b_apart, float* out, int64_t out_apart,
                         int64_t rows, int64_t depth) {
  int64_t m = 0;
  for (; m + DOWN <= rows; m += DOWN) tile<DOWN, SOME>(a + m * a_apart, a_apart, b, b_apart, out + m * out_apart, out_apart, depth);
  for (; m < rows; ++m) tile<1, SOME>(a + m * a_apart, a_apart, b, b_apart, out + m * out_apart, out_apart, depth);
}

// The same for any number of rows, and of columns that are a multiple of WIDE.
inline void multiply(const float* a, int64_t a_apart, const float* b, int64_t b_apart, float* out, int64_t out_apart,
                     int64_t rows, int64_t columns, int64_t depth) {
  int64_t n = 0;
  for (; n + COLUMNS <= columns; n += COLUMNS) tiles_beside<TILES>(a, a_apart, b + n, b_apart, out + n, out_apart, rows, depth);
  for (; n < columns; n += WIDE) tiles_beside<1>(a, a_apart, b + n, b_apart, out + n, out_apart, rows, depth);
}

constexpr int64_t QUERIES = 2 * DOWN;  // at a time

inline int64_t filled(int64_t count) { return (count + WIDE - 1) / WIDE * WIDE; }

// Scores become weights, whose sum is one; zeros where nothing may be seen.
void weigh(float* row, const uint8_t* mask, int64_t end, float scale) {
  if (mask != nullptr) {
#pragma omp simd
    for (int64_t s = 0; s < end; ++s) row[s] = mask[s] ? row[s] : -INFINITY;
  }
  float most = -INFINITY, sum = 0;
#pragma omp simd reduction(max : most)
  for (int64_t s = 0; s < end; ++s) most = row[s] > most ? row[s] : most;
#pragma omp simd
  for (int64_t s = 0; s < end; ++s) row[s] = exponential((row[s] - most) * scale);
  // Written out, since the order in which a compiler sums up depends on where numbers lie.
  Vector sums = {};
  for (int64_t s = 0; s < end / WIDE * WIDE; s += WIDE) sums += *reinterpret_cast<const Vector*>(row + s);
  for (int64_t i = 0; i < WIDE; ++i) sum += sums[i];
  for (int64_t s = end / WIDE * WIDE; s < end; ++s) sum += row[s];
  const float factor = 1 / sum;
#pragma omp simd
  for (int64_t s = 0; s < end; ++s) row[s] = mask != nullptr && !mask[s] ? 0 : row[s] * factor;
}

}  // namespace

// How a call is described: the places of the first numbers, how far apart rows, heads and positions of each tensor lie, sizes.
struct Call {
  const float *queries, *keys, *values;
  float* out;
  const uint8_t* mask;  // of the keys of each row; absent where all may be seen
  float* room;          // for each thread a head's keys, turned, (E, S filled up), and the scores of some queries
  int64_t queries_row, queries_head, query_apart, keys_row, keys_head, key_apart, values_row, values_head, value_apart;
  int64_t out_row, out_head, out_apart, mask_row;
  int64_t rows, heads, group, count, positions, size, pieces;
  float scale;
  int32_t causal;  // whether the last query sees all keys, and each one before it one less
};

// Queries (B, H, T, E), keys and values (B, H / group, S, E), of which E is a multiple of 16. Queries are cut into so many
// pieces, where there are more threads than heads.
extern "C" void transept_attention(const Call* call, int32_t threads) {
  const Call& c = *call;
  const int64_t width = filled(c.positions), shared = c.heads / c.group;
  const int64_t piece = (c.count + c.pieces - 1) / c.pieces;
#pragma omp parallel num_threads(threads)
  {
    float* turned = c.room + omp_get_thread_num() * (c.size + QUERIES) * width;
    float* scores = turned + c.size * width;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < c.rows * shared * c.pieces; ++task) {
      const int64_t b = task / c.pieces / shared, k = task / c.pieces % shared, begin = task % c.pieces * piece;
      const int64_t stop = std::min(begin + piece, c.count);
      const float* keys = c.keys + b * c.keys_row + k * c.keys_head;
      const float* values = c.values + b * c.values_row + k * c.values_head;
      const uint8_t* mask = c.mask == nullptr ? nullptr : c.mask + b * c.mask_row;
      for (int64_t e = 0; e < c.size; ++e) {
        for (int64_t s = 0; s < c.positions; ++s) turned[e * width + s] = keys[s * c.key_apart + e];
        for (int64_t s = c.positions; s < width; ++s) turned[e * width + s] = 0;
      }
      for (int64_t g = 0; g < c.group; ++g) {
        const float* queries = c.queries + b * c.queries_row + (k * c.group + g) * c.queries_head;
        float* out = c.out + b * c.out_row + (k * c.group + g) * c.out_head;
        for (int64_t t = begin; t < stop; t += QUERIES) {
          const int64_t some = std::min(QUERIES, stop - t);
          const int64_t before = c.causal ? c.positions - c.count : 0;
          const int64_t seen = c.causal ? before + t + some : c.positions;  // by the last of them
          multiply(queries + t * c.query_apart, c.query_apart, turned, width, scores, width, some, filled(seen), c.size);
          for (int64_t i = 0; i < some; ++i) {
            const int64_t end = c.causal ? before + t + i + 1 : c.positions;
            weigh(scores + i * width, mask, end, c.scale);
            for (int64_t s = end; s < seen; ++s) scores[i * width + s] = 0;
          }
          multiply(scores, width, values, c.value_apart, out + t * c.out_apart, c.out_apart, some, c.size, seen);
        }
      }
    }
  }
}
