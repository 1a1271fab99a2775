// Matrix products on the CPU: float32 or bfloat16 in, accumulated in float32, float32 or bfloat16 out.
// defines: Matrix, matrix_product()
#pragma once

#include <cstddef>

namespace simulated_cuda {

/// Element (i, j) is at data[i row_stride + j column_stride], in elements.
struct Matrix {
  void* data = nullptr;
  bool bfloat16 = false;
  std::ptrdiff_t row_stride = 0, column_stride = 0;

  Matrix transposed() const { return {data, bfloat16, column_stride, row_stride}; }
};

/// d = alpha a b + beta c, with a of m x k, b of k x n. Where beta is 0, c is not read.
void matrix_product(std::size_t m, std::size_t n, std::size_t k, float alpha, const Matrix& a, const Matrix& b, float beta,
                    const Matrix& c, const Matrix& d);

}  // namespace simulated_cuda
