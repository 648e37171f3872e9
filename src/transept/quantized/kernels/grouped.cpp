// The product by one weight of few bits, or by one for each of several spans of rows, by all threads.

#include <omp.h>

#include "products.hpp"

// `room` holds for each row of x its K values, then K / group steps, sums and starts, of four bytes each. A row alone is
// rounded by every thread for itself, in a room for each of them, so that none waits for another. The rows before `ends[0]` are
// multiplied by the first weight, those from there to `ends[1]` by the second, and so on. Where codes are floats there is no
// room.
extern "C" void transept_grouped(const Matrix* matrix, const float* x, float* out, uint8_t* room, const int64_t* ends,
                                 int64_t weights, int64_t rows, int32_t threads) {
  const Product product(*matrix);
  const int64_t inputs = matrix->inputs, size = product.room();
#pragma omp parallel num_threads(threads)
  {
    uint8_t* rounded = room;
    if (room == nullptr) {
    } else if (rows == 1) {
      rounded += omp_get_thread_num() * size;
      product.round(x, rounded);
    } else {
#pragma omp for schedule(static)
      for (int64_t m = 0; m < rows; ++m) product.round(x + m * inputs, rounded + m * size);
    }
    for (int64_t n = 0; n < weights; ++n) {
      const int64_t begin = n == 0 ? 0 : ends[n - 1], end = ends[n];
      if (begin == end) continue;
#pragma omp for schedule(static) nowait
      for (int64_t block = 0; block < product.blocks; ++block)
        product.multiply(x, rounded, out, matrix->outputs, begin, end, block, n);
    }
  }
}
