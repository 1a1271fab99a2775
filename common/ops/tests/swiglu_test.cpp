#include <cmath>

#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class SwigluTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, SwigluTest, testing::ValuesIn(backends()), backend_name);

struct Reference {
  Matrix y, d_gate_up;

  Reference(const Matrix& gate_up, const Matrix& dy) : y(dy.rows, dy.columns), d_gate_up(dy.rows, 2 * dy.columns) {
    for (Index t = 0; t < dy.rows; t++)
      for (Index i = 0; i < dy.columns; i++) {
        const double gate = gate_up(t, i), up = gate_up(t, dy.columns + i), s = 1 / (1 + std::exp(-gate));
        y(t, i) = gate * s * up;
        d_gate_up(t, i) = dy(t, i) * up * (s + gate * s * (1 - s));
        d_gate_up(t, dy.columns + i) = dy(t, i) * gate * s;
      }
  }
};

TEST_P(SwigluTest, agrees_with_plain_loops) {
  for (const auto& [rows, columns] : std::vector<std::pair<Index, Index>>{{1, 1}, {3, 80}, {24, 61}, {301, 48}}) {
    SCOPED_TRACE(fmt::format("T {} F {}", rows, columns));
    Matrix gate_up = random_matrix(rows, 2 * columns, 1), dy = random_matrix(rows, columns, 2);
    for (double& value : gate_up.values) value *= 3;
    const Tensor gate_up_ = put(gate_up), dy_ = put(dy), y = output(rows, columns), again = output(rows, columns);
    const Tensor gradient = output(rows, 2 * columns);
    const Reference expected(gate_up, dy);
    ops.swiglu_forward(gate_up_, y);
    EXPECT_LE(error(y, expected.y), tolerance());
    ops.swiglu_backward(gate_up_, dy_, gradient, Tensor());
    EXPECT_LE(error(gradient, expected.d_gate_up), tolerance());
    ops.swiglu_backward(gate_up_, dy_, gate_up_, again);  // in place, and y once more
    EXPECT_TRUE(same_bits(gate_up_, gradient));
    EXPECT_TRUE(same_bits(again, y));

    gate_up(0, 0) += 0.3;
    dy(0, 0) = 5;
    EXPECT_GT(error(gradient, Reference(gate_up, dy).d_gate_up), tolerance()) << "a wrong input should be noticed";
  }
}

TEST_P(SwigluTest, large_values_stay_finite) {
  Matrix gate_up(1, 4), dy(1, 2, 1);
  gate_up.values = {-1000, 1000, 2, 3};
  const Tensor gate_up_ = put(gate_up), y = output(1, 2), gradient = output(1, 4);
  ops.swiglu_forward(gate_up_, y);
  ops.swiglu_backward(gate_up_, put(dy), gradient, Tensor());
  EXPECT_LE(error(y, Reference(gate_up, dy).y), tolerance());
  EXPECT_LE(error(gradient, Reference(gate_up, dy).d_gate_up), tolerance());
}

class SwigluGradientTest : public Float64Test {};

TEST_F(SwigluGradientTest, backward_is_the_derivative_of_forward) {
  Matrix gate_up = random_matrix(5, 2 * 13, 1), dy = random_matrix(5, 13, 2);
  const Tensor y = output(5, 13), gradient = output(5, 26);
  ops.swiglu_backward(put(gate_up), put(dy), gradient, Tensor());
  expect_gradient(
      [&](Matrix at) {
        ops.swiglu_forward(put(at), y);
        return dot(get(y), dy);
      },
      gate_up, get(gradient));
}

}  // namespace
}  // namespace escalera
