// Blocks of a decoder, one after the other, for a few positions, each of which goes on from keys and values of its own: norm,
// queries, keys and values, attention, output, norm, feed-forward layer. What stands between the products is so little that to
// start each operation by itself would take longer than to compute it.
//
// A position is computed in the same way in any company. M positions, D numbers each; H heads of E numbers, K of them with keys
// and values; F numbers within the feed-forward layer.

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <atomic>

#include "../../layers/attention/vectors.hpp"
#include "products.hpp"

namespace {

struct Norm {
  const float* weight;  // absent where there is no norm
  const float* bias;
  float eps, more;  // what is added to the weight
  int32_t centered;  // whether the mean is taken away, as a layer norm does
};

struct Linear {
  Matrix matrix;
  const float* bias;
};

enum Activation : int32_t { SILU, GELU, TANH_GELU, RELU };

struct Block {
  Norm attention_norm, attention_after, query_norm, key_norm, mlp_norm, mlp_after;
  Linear projections[3];  // of queries, keys and values, or one of all
  Linear out;
  Linear wide[2];  // of the gate, and of what it is multiplied by, or one of both; without a gate one
  Linear down;
  int64_t size, hidden, heads, shared, head, window;
  float scale;
  int32_t table;  // by which of the tables heads turn
  int32_t projected, widened, gated, neighbours;  // neighbours: whether elements turn with their neighbours
  Activation activation;
};

struct Table {  // what heads turn by
  const float* cosines;  // (M, turned), or one row for all
  const float* sines;
  int64_t turned, apart;  // how many elements of a head turn; from one row to the next
};

struct Positions {  // those of each block after those of the block before
  float* const* keys;  // (K, capacity, E) each
  float* const* values;
  const int64_t* capacity;
  const int64_t* place;  // of each position, where its keys are written
};

// Room for what stands between the products; `rounded` for rows of inputs.
struct Room {
  float *states, *projected, *gathered, *wide, *scores;
  uint8_t* rounded;
  int64_t longest;  // keys
};

constexpr int64_t EXPECTED = 1 << 16;  // bytes of a weight that are fetched before they are read

inline float tanh_of(float x) {
  const float power = exponential(-2 * std::fabs(x));
  return std::copysign((1 - power) / (1 + power), x);
}

template <typename Function>
inline void each(float* out, const float* x, const float* other, int64_t count, Function function) {
  if (other == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = function(x[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = function(x[i]) * other[i];
  }
}

// out = activation(x) * other
void activate(float* out, const float* x, const float* other, int64_t count, Activation activation) {
  if (activation == SILU) each(out, x, other, count, [](float a) { return a / (1 + exponential(-a)); });
  else if (activation == RELU) each(out, x, other, count, [](float a) { return a > 0 ? a : a * 0; });
  else if (activation == GELU)
    each(out, x, other, count, [](float a) { return 0.5f * a * (1 + std::erf(a * 0.70710678f)); });
  else
    each(out, x, other, count,
         [](float a) { return 0.5f * a * (1 + tanh_of(0.79788456f * (a + 0.044715f * a * a * a))); });
}

// Sums of many numbers are written out, since what a compiler makes of a loop depends on where numbers lie and on what is near it;
// so is that a product and a sum are rounded once.
inline float summed(const Vector& x) {
  float sums[WIDE];
  std::memcpy(sums, &x, sizeof(x));
  for (int64_t some = WIDE / 2; some > 0; some /= 2)
    for (int64_t i = 0; i < some; ++i) sums[i] += sums[some + i];
  return sums[0];
}

template <typename Function>
inline float summed(int64_t count, Function function) {
  Vector sums = {};
  const int64_t whole = count / WIDE * WIDE;
  for (int64_t i = 0; i < whole; i += WIDE) sums = function(i, sums);
  return summed(sums);
}

inline Vector at(const float* x) { return *reinterpret_cast<const Vector*>(x); }
inline Vector fused(Vector a, Vector b, Vector sum) {
#if defined(__AVX512F__)
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX__) && defined(__FMA__)
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
  return sum + a * b;
#endif
}

float total(const float* x, int64_t count) {
  float sum = summed(count, [&](int64_t i, Vector sums) { return sums + at(x + i); });
  for (int64_t i = count / WIDE * WIDE; i < count; ++i) sum += x[i];
  return sum;
}

// Products of one row with some others, of which none waits for another's sum.
template <int64_t COUNT>
inline void dots(const float* a, const float* b, int64_t size, float scale, float* out) {
  Vector sums[COUNT] = {};
  const int64_t whole = size / WIDE * WIDE;
  for (int64_t i = 0; i < whole; i += WIDE)
    for (int64_t n = 0; n < COUNT; ++n) sums[n] = fused(at(a + i), at(b + n * size + i), sums[n]);
  for (int64_t n = 0; n < COUNT; ++n) {
    float sum = summed(sums[n]);
    for (int64_t i = whole; i < size; ++i) sum = std::fma(a[i], b[n * size + i], sum);
    out[n] = sum * scale;
  }
}

// out (size) += shares (COUNT) times rows (COUNT, size), one after the other.
template <int64_t COUNT>
inline void add_rows(float* out, const float* shares, const float* rows, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    float sum = out[i];
    for (int64_t n = 0; n < COUNT; ++n) sum = std::fma(shares[n], rows[n * size + i], sum);
    out[i] = sum;
  }
}

constexpr int64_t BESIDE = 4;  // keys that are read at a time

float squares(const float* x, float mean, int64_t count) {
  float sum = summed(count, [&](int64_t i, Vector sums) { return fused(at(x + i) - mean, at(x + i) - mean, sums); });
  for (int64_t i = count / WIDE * WIDE; i < count; ++i) sum = std::fma(x[i] - mean, x[i] - mean, sum);
  return sum;
}

void normed(const float* x, float* out, int64_t count, const Norm& norm) {
  const float mean = norm.centered ? total(x, count) / static_cast<float>(count) : 0;
  const float factor = 1 / std::sqrt(squares(x, mean, count) / static_cast<float>(count) + norm.eps);
  if (norm.bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = (x[i] - mean) * factor * (norm.weight[i] + norm.more);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = (x[i] - mean) * factor * norm.weight[i] + norm.bias[i];
  }
}

constexpr int64_t CHAINS = 2;  // sums of which none waits for another
constexpr int64_t SOON = 2048;  // bytes of plain weights that are fetched before they are read

// One output of each of some rows of a plain weight, for some rows of inputs. Each is summed up in one order, whatever is computed
// beside it.
template <int64_t COUNT, int64_t SOME>
inline void multiply_plain(const float* const* weights, const float* x, float* const* out, int64_t stride, int64_t inputs) {
  Vector sums[SOME][COUNT][CHAINS] = {};
  const int64_t whole = inputs / (CHAINS * WIDE) * (CHAINS * WIDE);
  for (int64_t k = 0; k < whole; k += CHAINS * WIDE) {
    for (int64_t n = 0; n < SOME; ++n)
      for (int64_t i = 0; i < CHAINS * WIDE; i += 16) __builtin_prefetch(weights[n] + k + i + SOON / 4);
    for (int64_t c = 0; c < CHAINS; ++c)
      for (int64_t n = 0; n < SOME; ++n) {
        const Vector own = at(weights[n] + k + c * WIDE);
        for (int64_t m = 0; m < COUNT; ++m) sums[n][m][c] = fused(own, at(x + m * inputs + k + c * WIDE), sums[n][m][c]);
      }
  }
  for (int64_t n = 0; n < SOME; ++n)
    for (int64_t m = 0; m < COUNT; ++m) {
      Vector all = sums[n][m][0];
      for (int64_t c = 1; c < CHAINS; ++c) all += sums[n][m][c];
      float sum = summed(all);
      for (int64_t k = whole; k < inputs; ++k) sum = std::fma(weights[n][k], x[m * inputs + k], sum);
      out[n][m * stride] = sum;
    }
}

// The same for all rows of inputs.
template <int64_t SOME>
void multiply_rows(const float* const* weights, const float* x, float* const* out, int64_t stride, int64_t rows, int64_t inputs) {
  float* own[SOME];
  for (int64_t m = 0; m < rows;) {
    for (int64_t n = 0; n < SOME; ++n) own[n] = out[n] + m * stride;
    const float* from = x + m * inputs;
    if (SOME == 1 && m + 8 <= rows) multiply_plain<8, SOME>(weights, from, own, stride, inputs), m += 8;
    else if (m + 2 <= rows) multiply_plain<2, SOME>(weights, from, own, stride, inputs), m += 2;
    else multiply_plain<1, SOME>(weights, from, own, stride, inputs), m += 1;
  }
}

// Outputs `begin` to `end`. Memory is read fastest in two streams, which the first and the second half of the rows are; rows of
// inputs are many enough to be computed meanwhile otherwise.
void multiply_plain(const Matrix& matrix, const float* x, float* out, int64_t stride, int64_t rows, int64_t begin, int64_t end) {
  const float* codes = reinterpret_cast<const float*>(matrix.codes);
  const int64_t half = rows < 8 ? (end - begin) / 2 : 0;
  for (int64_t n = begin; n < begin + half; ++n) {
    const float* weights[2] = {codes + n * matrix.inputs, codes + (n + half) * matrix.inputs};
    float* outs[2] = {out + n, out + n + half};
    multiply_rows<2>(weights, x, outs, stride, rows, matrix.inputs);
  }
  for (int64_t n = begin + 2 * half; n < end; ++n) {
    const float* weight = codes + n * matrix.inputs;
    float* own = out + n;
    multiply_rows<1>(&weight, x, &own, stride, rows, matrix.inputs);
  }
}

// Where threads wait for each other. OpenMP's own barrier puts threads to sleep at once where a process has more of them than
// there are processors, as a server has, and to wake them takes longer than what they wait for.
class Barrier {
 public:
  void wait(int64_t threads) {
    const int64_t own = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(own + 1, std::memory_order_release);
      return;
    }
    for (int64_t tries = 0; round.load(std::memory_order_acquire) == own; ++tries)
      if (tries > SPINS) sched_yield();
  }

 private:
  static constexpr int64_t SPINS = 4000;
  std::atomic<int64_t> arrived{0}, round{0};
};

struct Span {
  int64_t begin, end;
};

inline Span part_of(int64_t count, int64_t thread, int64_t threads) {
  return {count * thread / threads, count * (thread + 1) / threads};
}

// What one thread does of a block; all threads call the same methods in the same order.
class Worker {
 public:
  Worker(const Block& block, const Positions& positions, const Table& table, const Room& room, Barrier& barrier, float* x,
         int64_t rows, int64_t thread, int64_t threads)
      : block(block), positions(positions), table(table), room(room), barrier(barrier), x(x), rows(rows), thread(thread),
        threads(threads) {}

  void attend() {
    expect(block.projections[0]);
    norm_all(block.attention_norm);
    const int64_t width = (block.heads + 2 * block.shared) * block.head;
    multiply(block.projections, block.projected, room.states, room.projected, width);
    expect(block.out);
    wait();
    const Span tasks = part_of(rows * block.shared, thread, threads);
    for (int64_t task = tasks.begin; task < tasks.end; ++task) write(task / block.shared, task % block.shared, width);
    wait();
    for (int64_t task = tasks.begin; task < tasks.end; ++task) gather(task / block.shared, task % block.shared, width);
    wait();
    multiply(&block.out, 1, room.gathered, room.states, block.size);
    expect(block.wide[0]);
    add(block.attention_after);
  }

  void feed_forward() {
    norm_all(block.mlp_norm);
    const int64_t width = block.gated ? 2 * block.hidden : block.hidden;
    multiply(block.wide, block.widened, room.states, room.wide, width);
    expect(block.down);
    wait();
    const Span some = part_of(block.hidden, thread, threads);
    for (int64_t m = 0; m < rows; ++m) {
      const float* own = room.wide + m * width + some.begin;
      float* out = room.gathered + m * block.hidden + some.begin;
      activate(out, own, block.gated ? own + block.hidden : nullptr, some.end - some.begin, block.activation);
    }
    wait();
    multiply(&block.down, 1, room.gathered, room.states, block.size);
    add(block.mlp_after);
  }

 private:
  // All threads have come so far.
  void wait() {
    if (threads > 1) barrier.wait(threads);
  }

  // Have the beginning of what this thread will read of a weight at hand, while it waits or computes something else.
  void expect(const Linear& layer) const {
    const Matrix& matrix = layer.matrix;
    const int64_t block_bytes = ROWS * matrix.inputs * matrix.bits / 8;
    const Span own = part_of((matrix.outputs + ROWS - 1) / ROWS, thread, threads);
    const char* from = reinterpret_cast<const char*>(matrix.codes) + own.begin * block_bytes;
    const int64_t bytes = std::min((own.end - own.begin) * block_bytes, EXPECTED);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
  }

  // The states that a sublayer reads: the normed inputs.
  void norm_all(const Norm& norm) {
    const Span own = part_of(rows, thread, threads);
    for (int64_t m = own.begin; m < own.end; ++m) {
      const float* from = x + m * block.size;
      float* to = room.states + m * block.size;
      if (norm.weight == nullptr) std::memcpy(to, from, static_cast<size_t>(block.size) * 4);
      else normed(from, to, block.size, norm);
    }
    wait();
  }

  // Products of the same inputs, whose outputs stand beside each other.
  void multiply(const Linear* layers, int64_t count, const float* inputs, float* out, int64_t stride) {
    for (int64_t i = 0; i < count; out += layers[i].matrix.outputs, ++i) {
      const Matrix& matrix = layers[i].matrix;
      const int64_t blocks = (matrix.outputs + ROWS - 1) / ROWS;
      const Span own = part_of(blocks, thread, threads);
      if (matrix.bits == 32) {
        multiply_plain(matrix, inputs, out, stride, rows, own.begin * ROWS, std::min(own.end * ROWS, matrix.outputs));
      } else {
        const Product product(matrix);
        uint8_t* rounded = matrix.widths & 8 ? nullptr : round(product, inputs, i);
        for (int64_t n = own.begin; n < own.end; ++n) product.multiply(inputs, rounded, out, stride, 0, rows, n);
      }
      if (layers[i].bias != nullptr)
        for (int64_t m = 0; m < rows; ++m)
          for (int64_t n = own.begin * ROWS; n < std::min(own.end * ROWS, matrix.outputs); ++n)
            out[m * stride + n] += layers[i].bias[n];
    }
  }

  // Rounded inputs. One row is rounded by each thread for itself; of several, each thread rounds some.
  uint8_t* round(const Product& product, const float* inputs, int64_t number) {
    const int64_t size = product.room();
    if (rows == 1) {
      uint8_t* own = room.rounded + thread * size;
      product.round(inputs, own);
      return own;
    }
    if (number > 0) wait();  // nobody reads what the product before has read
    const Span some = part_of(rows, thread, threads);
    for (int64_t m = some.begin; m < some.end; ++m) product.round(inputs + m * product.matrix.inputs, room.rounded + m * size);
    wait();
    return room.rounded;
  }

  // Add what a sublayer gives, normed where the block does so, to its input.
  void add(const Norm& norm) {
    wait();
    if (norm.weight == nullptr) {
      const Span some = part_of(rows * block.size, thread, threads);
#pragma omp simd
      for (int64_t i = some.begin; i < some.end; ++i) x[i] += room.states[i];
    } else {
      const Span own = part_of(rows, thread, threads);
      for (int64_t m = own.begin; m < own.end; ++m) {
        float* states = room.states + m * block.size;
        normed(states, states, block.size, norm);
        for (int64_t i = 0; i < block.size; ++i) x[m * block.size + i] += states[i];
      }
    }
    wait();
  }

  // A head, normed and turned.
  void turn(float* head, int64_t m, const Norm& norm) const {
    if (norm.weight != nullptr) normed(head, head, block.head, norm);
    const float *cosines = table.cosines + m * table.apart, *sines = table.sines + m * table.apart;
    const int64_t half = table.turned / 2;
    for (int64_t i = 0; i < half; ++i) {
      float &first = head[block.neighbours ? 2 * i : i], &second = head[block.neighbours ? 2 * i + 1 : half + i];
      const float a = first, b = second;
      first = a * cosines[i] + b * sines[i];  // sines have the sign with which the other one is added
      second = b * cosines[half + i] + a * sines[half + i];
    }
  }

  void write(int64_t m, int64_t k, int64_t width) const {
    float* key = room.projected + m * width + (block.heads + k) * block.head;
    const float* value = key + block.shared * block.head;
    turn(key, m, block.key_norm);
    const int64_t place = (k * positions.capacity[m] + positions.place[m]) * block.head;
    std::memcpy(positions.keys[m] + place, key, static_cast<size_t>(block.head) * 4);
    std::memcpy(positions.values[m] + place, value, static_cast<size_t>(block.head) * 4);
  }

  // What the queries of one key-value head gather.
  void gather(int64_t m, int64_t k, int64_t width) const {
    const int64_t group = block.heads / block.shared, size = block.head, end = positions.place[m] + 1;
    const int64_t begin = block.window > 0 ? std::max<int64_t>(end - block.window, 0) : 0, count = end - begin;
    const float* keys = positions.keys[m] + (k * positions.capacity[m] + begin) * size;
    const float* values = positions.values[m] + (k * positions.capacity[m] + begin) * size;
    float* scores = room.scores + thread * group * room.longest;
    float* queries = room.projected + m * width + k * group * size;
    for (int64_t g = 0; g < group; ++g) turn(queries + g * size, m, block.query_norm);
    for (int64_t s = 0; s < count;) {
      for (int64_t i = 0; i < BESIDE * size; i += 16) {  // values are read when all scores are there
        __builtin_prefetch(keys + s * size + i + AHEAD / 4);
        __builtin_prefetch(values + s * size + i, 0, 2);
      }
      const bool several = s + BESIDE <= count;
      for (int64_t g = 0; g < group; ++g) {
        float* own = scores + g * room.longest + s;
        if (several) dots<BESIDE>(queries + g * size, keys + s * size, size, block.scale, own);
        else dots<1>(queries + g * size, keys + s * size, size, block.scale, own);
      }
      s += several ? BESIDE : 1;
    }
    for (int64_t g = 0; g < group; ++g) {
      float* own = scores + g * room.longest;
      float* out = room.gathered + m * block.heads * size + (k * group + g) * size;
      float most = own[0];
#pragma omp simd reduction(max : most)
      for (int64_t s = 0; s < count; ++s) most = own[s] > most ? own[s] : most;
#pragma omp simd
      for (int64_t s = 0; s < count; ++s) own[s] = exponential(own[s] - most);
      const float sum = total(own, count);
      std::memset(out, 0, static_cast<size_t>(size) * 4);
      int64_t s = 0;
      for (; s + BESIDE <= count; s += BESIDE) add_rows<BESIDE>(out, own + s, values + s * size, size);
      for (; s < count; ++s) add_rows<1>(out, own + s, values + s * size, size);
      for (int64_t i = 0; i < size; ++i) out[i] /= sum;
    }
  }

  const Block& block;
  const Positions positions;
  const Table& table;
  const Room& room;
  Barrier& barrier;
  float* const x;
  const int64_t rows, thread, threads;
};

}  // namespace

// `x` (M, D) is what goes into the first block and what comes out of the last one.
extern "C" void transept_blocks(const Block* const* blocks, int64_t count, const Positions* positions, const Table* tables,
                                const Room* room, float* x, int64_t rows, int32_t threads) {
  Barrier barrier;
#pragma omp parallel num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = i * rows;
    const Positions own = {positions->keys + first, positions->values + first, positions->capacity + first,
                           positions->place + first};
    Worker worker(*blocks[i], own, tables[blocks[i]->table], *room, barrier, x, rows, omp_get_thread_num(),
                  omp_get_num_threads());
    worker.attend();
    worker.feed_forward();
  }
}

// The same product alone: (rows, inputs) -> (rows, outputs).
extern "C" void transept_plain(const Matrix* matrix, const float* x, float* out, int64_t rows, int32_t threads) {
#pragma omp parallel num_threads(threads)
  {
    const Span own = part_of(matrix->outputs, omp_get_thread_num(), omp_get_num_threads());
    multiply_plain(*matrix, x, out, matrix->outputs, rows, own.begin, own.end);
  }
}
