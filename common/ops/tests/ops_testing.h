// What the tests of single operations share: plain matrices of doubles to compare with, and a backend for each combination of
// element type, thread count, instruction set and matrix library, and for CUDA.
// defines: Matrix, random_matrix(), Backend, cpu_backend(), kernel_tables(), backends(), OpsTest, Float64Test, slope(), dot(), expect_gradient()
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "common/ops/cpu/cpu_ops.h"

namespace escalera {

/// A matrix on the host, in double: references are computed with these, in plain loops.
struct Matrix {
  Index rows = 0, columns = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(Index rows_, Index columns_, double value = 0)
      : rows(rows_), columns(columns_), values(static_cast<std::size_t>(rows_ * columns_), value) {}
  double& operator()(Index row, Index column) { return values[static_cast<std::size_t>(row * columns + column)]; }
  double operator()(Index row, Index column) const { return values[static_cast<std::size_t>(row * columns + column)]; }
};

/// Normally distributed numbers.
Matrix random_matrix(Index rows, Index columns, std::uint64_t seed);

/// One way to compute: what the tests of operations run on.
struct Backend {
  DType dtype = DType::float64;
  std::string name;  ///< "float32_two_threads_v4", "bfloat16_cuda"
  std::function<std::unique_ptr<Ops>()> make;
};

/// The CPU with kernels of a given instruction set.
Backend cpu_backend(DType dtype, int threads, const cpu::Kernels& kernels, bool onednn);
/// All that this processor can run.
std::vector<const cpu::Kernels*> kernel_tables();
/// The CPU in each type, with one and two threads and with each table of kernels; and the first CUDA device, where there is
/// one: a GPU, or a simulated one.
std::vector<Backend> backends();
std::string backend_name(const testing::TestParamInfo<Backend>& info);
std::ostream& operator<<(std::ostream& out, const Backend& backend);

class OpsTest : public testing::TestWithParam<Backend> {
 protected:
  explicit OpsTest(const Backend& backend)
      : dtype(backend.dtype),
        wide(accumulation_dtype(backend.dtype)),
        own_ops(backend.make()),
        ops(*own_ops),
        device(ops.device()) {
    device.set_poison(true);  // an output that is not written entirely stays NaN somewhere
  }
  OpsTest() : OpsTest(GetParam()) {}

  /// Copies to the device, and rounds the host's numbers to what is stored there.
  Tensor put(Matrix& matrix, DType type);
  Tensor put(Matrix& matrix) { return put(matrix, dtype); }
  Tensor output(Index rows, Index columns) { return output(rows, columns, dtype); }
  Tensor output(Index rows, Index columns, DType type) {
    return device.empty(rows, columns, type, MemoryCategory::workspace);
  }
  Matrix get(const Tensor& tensor);

  /// The largest difference, relative to the largest expected value; infinity if anything is not finite.
  double error(const Tensor& got, const Matrix& expected);
  bool same_bits(const Tensor& a, const Tensor& b);

  /// What one rounding of a result in `type` may cost, with room for sums that are a few hundred terms long.
  static double tolerance(DType type) {
    return type == DType::float64 ? 1e-13 : type == DType::float32 ? 1e-5 : 1.0 / 256;
  }
  double tolerance() const { return tolerance(dtype); }

  DType dtype, wide;
  std::unique_ptr<Ops> own_ops;
  Ops& ops;
  Device& device;
};

/// For tests in float64 alone, on two threads.
class Float64Test : public OpsTest {
 protected:
  Float64Test() : OpsTest(cpu_backend(DType::float64, 2, cpu::best_kernels(), true)) {}
};

/// The derivative of loss(x) along `direction`, by central differences. In double, with steps of 1e-5 and values near 1, it is
/// right to about 1e-9.
double slope(const std::function<double(const Matrix&)>& loss, const Matrix& x, const Matrix& direction);
double dot(const Matrix& a, const Matrix& b);

/// Expects that `gradient` is the derivative of `loss` at x, in three random directions.
void expect_gradient(const std::function<double(const Matrix&)>& loss, const Matrix& x, const Matrix& gradient);

}  // namespace escalera
