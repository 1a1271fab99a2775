#include "common/ops/tests/ops_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "common/cuda/cuda_backend.h"

namespace escalera {

Matrix random_matrix(Index rows, Index columns, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Matrix matrix(rows, columns);
  for (double& value : matrix.values) value = normal(engine);
  return matrix;
}

std::vector<const cpu::Kernels*> kernel_tables() {
  std::vector<const cpu::Kernels*> tables = {&cpu::kernels_base()};
  if (cpu::cpu_has_v4() && cpu::kernels_v4()) tables.push_back(cpu::kernels_v4());
  return tables;
}

Backend cpu_backend(DType dtype, int threads, const cpu::Kernels& kernels, bool onednn) {
  return {dtype,
          fmt::format("{}_{}_{}", to_string(dtype), threads == 1 ? "one_thread" : "two_threads",
                      &kernels == &cpu::kernels_base() ? "base" : "v4"),
          [=, kernels = &kernels]() -> std::unique_ptr<Ops> {
            return std::make_unique<cpu::CpuOps>(CpuSettings{.threads = threads, .allow_onednn = onednn}, *kernels);
          }};
}

std::vector<Backend> backends() {
  std::vector<Backend> all;
  for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
    for (const int threads : {1, 2}) {
      // oneDNN (where it was built in) multiplies beside the widest kernels, Eigen beside the others.
      for (const cpu::Kernels* table : kernel_tables()) {
        all.push_back(cpu_backend(dtype, threads, *table, table == kernel_tables().back()));
      }
    }
  }
  if (find_cuda().backend) {
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      all.push_back({dtype, fmt::format("{}_cuda", to_string(dtype)), [] { return cuda_backend().make_ops(0); }});
    }
  }
  return all;
}

std::string backend_name(const testing::TestParamInfo<Backend>& info) { return info.param.name; }

std::ostream& operator<<(std::ostream& out, const Backend& backend) { return out << backend.name; }

Tensor OpsTest::put(Matrix& matrix, DType type) {
  Tensor tensor = output(matrix.rows, matrix.columns, type);
  from_host(device, matrix.values, tensor);
  matrix.values = to_host(device, tensor);
  return tensor;
}

Matrix OpsTest::get(const Tensor& tensor) {
  Matrix matrix(tensor.rows(), tensor.columns());
  matrix.values = to_host(device, tensor);
  return matrix;
}

double OpsTest::error(const Tensor& got, const Matrix& expected) {
  EXPECT_EQ(got.size(), expected.rows * expected.columns);
  const std::vector<double> values = to_host(device, got);
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < values.size(); i++) {
    if (!std::isfinite(values[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(expected.values[i]));
    difference = std::max(difference, std::abs(values[i] - expected.values[i]));
  }
  return largest > 0 ? difference / largest : difference;
}

bool OpsTest::same_bits(const Tensor& a, const Tensor& b) {
  std::vector<std::byte> first(static_cast<std::size_t>(a.bytes())), second(static_cast<std::size_t>(b.bytes()));
  device.copy_to_host(first.data(), a.data(), a.bytes());
  device.copy_to_host(second.data(), b.data(), b.bytes());
  return first == second;
}

double slope(const std::function<double(const Matrix&)>& loss, const Matrix& x, const Matrix& direction) {
  const double step = 1e-5;
  Matrix above = x, below = x;
  for (std::size_t i = 0; i < x.values.size(); i++) {
    above.values[i] += step * direction.values[i];
    below.values[i] -= step * direction.values[i];
  }
  return (loss(above) - loss(below)) / (2 * step);
}

double dot(const Matrix& a, const Matrix& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.values.size(); i++) sum += a.values[i] * b.values[i];
  return sum;
}

void expect_gradient(const std::function<double(const Matrix&)>& loss, const Matrix& x, const Matrix& gradient) {
  for (std::uint64_t seed = 100; seed < 103; seed++) {
    const Matrix direction = random_matrix(x.rows, x.columns, seed);
    const double expected = dot(gradient, direction);
    EXPECT_NEAR(slope(loss, x, direction), expected, 1e-7 * std::max(1.0, std::abs(expected)));
  }
}

}  // namespace escalera
