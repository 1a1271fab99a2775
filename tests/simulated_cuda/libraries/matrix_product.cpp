#include "tests/simulated_cuda/libraries/matrix_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/simulated_cuda/libraries/bfloat16.h"

namespace simulated_cuda {
namespace {

using Floats = float __attribute__((vector_size(32)));  // 8 numbers that the compiler adds and multiplies together

constexpr std::size_t tile_rows = 16, tile_columns = 4;  // 8 accumulators of 8 numbers
constexpr std::size_t depth = 256;                       // terms that are summed before they join the others

float load(const Matrix& matrix, std::size_t i, std::size_t j) {
  const auto at = static_cast<std::ptrdiff_t>(i) * matrix.row_stride + static_cast<std::ptrdiff_t>(j) * matrix.column_stride;
  if (matrix.bfloat16) return from_bfloat16(static_cast<const std::uint16_t*>(matrix.data)[at]);
  return static_cast<const float*>(matrix.data)[at];
}

void store(const Matrix& matrix, std::size_t i, std::size_t j, float value) {
  const auto at = static_cast<std::ptrdiff_t>(i) * matrix.row_stride + static_cast<std::ptrdiff_t>(j) * matrix.column_stride;
  if (matrix.bfloat16) {
    static_cast<std::uint16_t*>(matrix.data)[at] = to_bfloat16(value);
  } else {
    static_cast<float*>(matrix.data)[at] = value;
  }
}

/// Rows [first, first + width) of `matrix`, all columns: to[column][row], with zeros below the last row.
void pack(const Matrix& matrix, std::size_t rows, std::size_t columns, std::size_t first, std::size_t width, float* to) {
  const std::size_t present = std::min(width, rows - first);
  const auto copy = [&](auto convert, const auto* data) {
    const auto* begin = data + static_cast<std::ptrdiff_t>(first) * matrix.row_stride;
    if (matrix.row_stride == 1) {
      for (std::size_t j = 0; j < columns; ++j) {
        const auto* from = begin + static_cast<std::ptrdiff_t>(j) * matrix.column_stride;
        for (std::size_t i = 0; i < present; ++i) to[j * width + i] = convert(from[i]);
      }
    } else {
      for (std::size_t i = 0; i < present; ++i) {
        const auto* from = begin + static_cast<std::ptrdiff_t>(i) * matrix.row_stride;
        for (std::size_t j = 0; j < columns; ++j) {
          to[j * width + i] = convert(from[static_cast<std::ptrdiff_t>(j) * matrix.column_stride]);
        }
      }
    }
  };
  if (matrix.bfloat16) {
    copy(from_bfloat16, static_cast<const std::uint16_t*>(matrix.data));
  } else {
    copy([](float value) { return value; }, static_cast<const float*>(matrix.data));
  }
  for (std::size_t j = 0; j < columns; ++j) std::fill(to + j * width + present, to + (j + 1) * width, 0.0f);
}

/// total[column][row] += the product of `terms` packed columns.
void add_tile(const float* a, const float* b, std::size_t terms, float (&total)[tile_columns][tile_rows]) {
  Floats sum[tile_columns][2] = {};
  for (std::size_t p = 0; p < terms; ++p, a += tile_rows, b += tile_columns) {
    Floats upper, lower;
    std::memcpy(&upper, a, sizeof upper);
    std::memcpy(&lower, a + 8, sizeof lower);
    for (std::size_t j = 0; j < tile_columns; ++j) {
      sum[j][0] += upper * b[j];
      sum[j][1] += lower * b[j];
    }
  }
  for (std::size_t j = 0; j < tile_columns; ++j) {
    for (std::size_t i = 0; i < tile_rows; ++i) total[j][i] += sum[j][i / 8][i % 8];
  }
}

}  // namespace

void matrix_product(std::size_t m, std::size_t n, std::size_t k, float alpha, const Matrix& a, const Matrix& b, float beta,
                    const Matrix& c, const Matrix& d) {
  const std::size_t column_tiles = (n + tile_columns - 1) / tile_columns;
  std::vector<float> packed_b(column_tiles * tile_columns * k), packed_a(tile_rows * k);
  for (std::size_t tile = 0; tile < column_tiles; ++tile) {
    pack(b.transposed(), n, k, tile * tile_columns, tile_columns, packed_b.data() + tile * tile_columns * k);
  }
  for (std::size_t row = 0; row < m; row += tile_rows) {
    pack(a, m, k, row, tile_rows, packed_a.data());
    for (std::size_t tile = 0; tile < column_tiles; ++tile) {
      float total[tile_columns][tile_rows] = {};
      const float* tile_b = packed_b.data() + tile * tile_columns * k;
      for (std::size_t p = 0; p < k; p += depth) {
        add_tile(packed_a.data() + p * tile_rows, tile_b + p * tile_columns, std::min(depth, k - p), total);
      }
      const std::size_t column = tile * tile_columns;
      for (std::size_t j = column; j < std::min(n, column + tile_columns); ++j) {
        for (std::size_t i = row; i < std::min(m, row + tile_rows); ++i) {
          const float product = alpha * total[j - column][i - row];
          store(d, i, j, beta == 0.0f ? product : product + beta * load(c, i, j));
        }
      }
    }
  }
}

}  // namespace simulated_cuda
