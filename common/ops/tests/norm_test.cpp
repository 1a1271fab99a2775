// RMSNorm forward, repeated, and backward.
#include <cmath>

#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class NormTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, NormTest, testing::ValuesIn(backends()), backend_name);

constexpr double epsilon = 1e-2;  // large enough to be seen in bfloat16

struct Reference {
  Matrix y, rstd, dx, dw;

  Reference(const Matrix& x, const Matrix& w, const Matrix& dy, double eps)
      : y(x.rows, x.columns), rstd(1, x.rows), dx(x.rows, x.columns), dw(1, x.columns) {
    for (Index t = 0; t < x.rows; t++) {
      double squares = 0, product = 0;
      for (Index i = 0; i < x.columns; i++) squares += x(t, i) * x(t, i);
      const double r = rstd(0, t) = 1 / std::sqrt(squares / static_cast<double>(x.columns) + eps);
      for (Index i = 0; i < x.columns; i++) {
        y(t, i) = x(t, i) * r * w(0, i);
        dw(0, i) += dy(t, i) * x(t, i) * r;
        product += dy(t, i) * w(0, i) * x(t, i);
      }
      for (Index i = 0; i < x.columns; i++) {
        dx(t, i) = r * dy(t, i) * w(0, i) - x(t, i) * r * r * r * product / static_cast<double>(x.columns);
      }
    }
  }
};

const std::vector<std::pair<Index, Index>> shapes = {{1, 1}, {3, 48}, {24, 61}, {301, 80}, {1100, 9}};

TEST_P(NormTest, agrees_with_plain_loops) {
  for (const auto& [rows, columns] : shapes) {
    SCOPED_TRACE(fmt::format("T {} H {}", rows, columns));
    Matrix x = random_matrix(rows, columns, 1), w = random_matrix(1, columns, 2), dy = random_matrix(rows, columns, 3);
    Matrix residual = random_matrix(rows, columns, 4), dw = random_matrix(1, columns, 5);
    const Tensor x_ = put(x), w_ = put(w), dy_ = put(dy), residual_ = put(residual), dw_ = put(dw, wide);
    const Tensor y_ = output(rows, columns), rstd_ = output(1, rows, wide), dx_ = output(rows, columns);
    Reference expected(x, w, dy, epsilon);

    ops.rms_norm_forward(x_, w_, epsilon, y_, rstd_);
    EXPECT_LE(error(y_, expected.y), tolerance());
    EXPECT_LE(error(rstd_, expected.rstd), tolerance(wide));

    const Tensor again = output(rows, columns);
    ops.rms_norm_apply(x_, rstd_, w_, again);
    EXPECT_TRUE(same_bits(again, y_));

    ops.rms_norm_backward(dy_, x_, rstd_, w_, Tensor(), dx_, dw_);
    for (Index i = 0; i < columns; i++) expected.dw(0, i) += dw(0, i);
    EXPECT_LE(error(dx_, expected.dx), 2 * tolerance());  // a difference of two terms: relative to the larger one
    EXPECT_LE(error(dw_, expected.dw), tolerance(wide));

    // With the gradient that flows past the norm, written over it.
    ops.rms_norm_backward(dy_, x_, rstd_, w_, residual_, residual_, dw_);
    for (std::size_t i = 0; i < residual.values.size(); i++) expected.dx.values[i] += residual.values[i];
    EXPECT_LE(error(residual_, expected.dx), 2 * tolerance());
  }
}

TEST_P(NormTest, the_sum_is_normalised_as_it_was_stored) {
  const Index rows = 301, columns = 61;
  Matrix x = random_matrix(rows, columns, 1), delta = random_matrix(rows, columns, 2), w = random_matrix(1, columns, 3);
  const Tensor x_ = put(x), delta_ = put(delta), w_ = put(w), separate = output(rows, columns);
  const Tensor sum = output(rows, columns), y = output(rows, columns), rstd = output(1, rows, wide);
  const Tensor expected_y = output(rows, columns), expected_rstd = output(1, rows, wide);
  ops.add(x_, delta_, separate);
  ops.rms_norm_forward(separate, w_, epsilon, expected_y, expected_rstd);
  ops.add_rms_norm_forward(x_, delta_, w_, epsilon, sum, y, rstd);
  EXPECT_TRUE(same_bits(sum, separate));
  EXPECT_TRUE(same_bits(y, expected_y));
  EXPECT_TRUE(same_bits(rstd, expected_rstd));
  ops.add_rms_norm_forward(x_, delta_, w_, epsilon, x_, y, rstd);  // in place
  EXPECT_TRUE(same_bits(x_, separate));
  EXPECT_TRUE(same_bits(y, expected_y));
}

TEST_P(NormTest, a_wrong_epsilon_is_noticed) {
  Matrix x = random_matrix(24, 61, 1), w = random_matrix(1, 61, 2);
  const Tensor y = output(24, 61), rstd = output(1, 24, wide);
  ops.rms_norm_forward(put(x), put(w), 3 * epsilon, y, rstd);
  EXPECT_GT(error(y, Reference(x, w, Matrix(24, 61), epsilon).y), tolerance());
}

TEST(NormThreads, any_number_of_threads_gives_the_same_bits) {
  std::vector<double> expected;
  for (const int threads : {1, 2, 3, 5}) {
    cpu::CpuOps ops({.threads = threads, .allow_onednn = false});
    Device& device = ops.device();
    const auto upload = [&](const Matrix& m) {
      Tensor tensor = device.empty(m.rows, m.columns, DType::float32, MemoryCategory::workspace);
      from_host(device, m.values, tensor);
      return tensor;
    };
    const Tensor x = upload(random_matrix(301, 80, 1)), dy = upload(random_matrix(301, 80, 2));
    const Tensor w = upload(random_matrix(1, 80, 3)), rstd = upload(Matrix(1, 301, 0.7));
    const Tensor dw = device.zeros(1, 80, DType::float32, MemoryCategory::gradients);
    ops.rms_norm_backward(dy, x, rstd, w, Tensor(), x, dw);
    const auto got = to_host(device, dw);
    if (expected.empty()) expected = got;
    EXPECT_EQ(got, expected) << threads << " threads";
  }
}

class NormGradientTest : public Float64Test {};

TEST_F(NormGradientTest, backward_is_the_derivative_of_forward) {
  Matrix x = random_matrix(17, 48, 1), w = random_matrix(1, 48, 2), dy = random_matrix(17, 48, 3);
  const Tensor y = output(17, 48), rstd = output(1, 17), dx = output(17, 48);
  const Tensor dw = device.zeros(1, 48, wide, MemoryCategory::gradients), dy_ = put(dy);
  const auto loss = [&](Matrix x_here, Matrix w_here) {
    ops.rms_norm_forward(put(x_here), put(w_here), epsilon, y, rstd);
    return dot(get(y), dy);
  };
  loss(x, w);
  ops.rms_norm_backward(dy_, put(x), rstd, put(w), Tensor(), dx, dw);
  const Matrix x_gradient = get(dx), w_gradient = get(dw);
  expect_gradient([&](const Matrix& at) { return loss(at, w); }, x, x_gradient);
  expect_gradient([&](const Matrix& at) { return loss(x, at); }, w, w_gradient);
}

}  // namespace
}  // namespace escalera
