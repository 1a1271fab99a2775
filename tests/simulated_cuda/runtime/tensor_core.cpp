#include <simulated_cuda/tensor_core.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "tests/simulated_cuda/runtime/counters.h"
#include "tests/simulated_cuda/runtime/sanitizers.h"

namespace simulated_cuda {
namespace {

/// One of the two bfloat16 numbers in a register.
float half(std::uint32_t pair, unsigned upper) {
  return std::bit_cast<float>(upper ? pair & 0xffff0000u : pair << 16);
}

struct Product {
  float* d;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

// Where the elements are: lane 4 g + t holds, of the accumulator, columns 2t and 2t+1 of rows g and g+8; of a, the same columns
// and those 8 further right; of b, rows 2t, 2t+1 and 8 further down of column g.
void run_product(void** values, unsigned) {
  count(counters().tensor_core_products);
  float a[16][16], b[16][8], d[16][8] = {};
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const Product*>(values[lane]);
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned i = 0; i < 2; ++i) {
      a[group][pair + i] = half(own.a[0], i);
      a[group + 8][pair + i] = half(own.a[1], i);
      a[group][pair + 8 + i] = half(own.a[2], i);
      a[group + 8][pair + 8 + i] = half(own.a[3], i);
      b[pair + i][group] = half(own.b[0], i);
      b[pair + 8 + i][group] = half(own.b[1], i);
    }
  }
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const Product*>(values[lane]);
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned i = 0; i < 2; ++i) {
      own.d[i] += d[group][pair + i];
      own.d[2 + i] += d[group + 8][pair + i];
    }
  }
}

struct MatrixLoad {
  std::uint32_t* r;
  const void* row;
};

template <bool transposed>
void run_matrix_load(void** values, unsigned) {
  count(counters().matrix_loads);
  std::uint16_t matrix[4][8][8];
  unsigned long wavefronts = 0;
  for (unsigned m = 0; m < 4; ++m) {
    std::array<int, 8> rows_in_banks{};  // 8 groups of 4 banks: a row of 16 bytes takes one of them
    for (unsigned i = 0; i < 8; ++i) {
      const void* row = static_cast<const MatrixLoad*>(values[8 * m + i])->row;
      const auto address = reinterpret_cast<std::uintptr_t>(row);
      if (address & 15) fail("ldmatrix: the row of lane %u starts at %p, which is no multiple of 16", 8 * m + i, row);
      tsan_read(row, 16);
      std::memcpy(matrix[m][i], row, 16);
      ++rows_in_banks[address / 16 & 7];
    }
    wavefronts += static_cast<unsigned long>(*std::ranges::max_element(rows_in_banks));
  }
  count(counters().matrix_load_wavefronts, wavefronts);
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned group = lane / 4, pair = lane % 4 * 2;
    for (unsigned m = 0; m < 4; ++m) {
      const std::uint32_t low = transposed ? matrix[m][pair][group] : matrix[m][group][pair];
      const std::uint32_t high = transposed ? matrix[m][pair + 1][group] : matrix[m][group][pair + 1];
      static_cast<const MatrixLoad*>(values[lane])->r[m] = low | high << 16;
    }
  }
}

}  // namespace

void tensor_core_product(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                         std::source_location where) {
  static constexpr WarpOperation operation{"mma", run_product, true, true};
  Product own{d, a, {b0, b1}};
  warp_collective(all_lanes, &own, operation, where);
}

void load_matrix_fragments(std::uint32_t (&r)[4], const void* row, bool transposed, std::source_location where) {
  static constexpr WarpOperation plain{"ldmatrix", run_matrix_load<false>, true, true};
  static constexpr WarpOperation turned{"ldmatrix.trans", run_matrix_load<true>, true, true};
  MatrixLoad own{r, row};
  warp_collective(all_lanes, &own, transposed ? turned : plain, where);
}

}  // namespace simulated_cuda
