// The rotary embedding and its table.
#include <cmath>

#include "common/ops/rope_table.h"
#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class RopeTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, RopeTest, testing::ValuesIn(backends()), backend_name);

constexpr double theta = 10000;

struct Shape {
  Index rows, heads, kv_heads, head_size;
};
constexpr Shape shapes[] = {{1, 1, 1, 2}, {7, 6, 2, 8}, {24, 4, 2, 32}, {301, 3, 1, 64}, {24, 2, 2, 18}};

std::vector<std::int32_t> some_positions() { return {0, 1, 5, 30, 2, 2, 17}; }

/// Rotates row t of one matrix by its position, head by head.
void rotate(Matrix& x, Index head_size, std::span<const std::int32_t> positions, double sign) {
  const Index half = head_size / 2;
  for (Index t = 0; t < x.rows; t++)
    for (Index head = 0; head < x.columns / head_size; head++)
      for (Index i = 0; i < half; i++) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_size);
        const double angle = sign * positions[static_cast<std::size_t>(t) % positions.size()] * std::pow(theta, exponent);
        double& u = x(t, head * head_size + i);
        double& w = x(t, head * head_size + half + i);
        const double old_u = u, old_w = w;
        u = old_u * std::cos(angle) - old_w * std::sin(angle);
        w = old_w * std::cos(angle) + old_u * std::sin(angle);
      }
}

/// Columns [begin, begin + count) of a matrix.
Matrix columns(const Matrix& x, Index begin, Index count) {
  Matrix part(x.rows, count);
  for (Index t = 0; t < x.rows; t++)
    for (Index i = 0; i < count; i++) part(t, i) = x(t, begin + i);
  return part;
}

TEST_P(RopeTest, splits_and_rotates_and_backward_undoes_it) {
  const auto positions = some_positions();
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(fmt::format("T {} heads {}/{} D {}", shape.rows, shape.heads, shape.kv_heads, shape.head_size));
    const Index query = shape.heads * shape.head_size, key = shape.kv_heads * shape.head_size;
    const Tensor table = make_rope_table(device, 31, shape.head_size, theta, wide);
    Matrix qkv = random_matrix(shape.rows, query + 2 * key, 1);
    const Tensor qkv_ = put(qkv), q = output(shape.rows, query), k = output(shape.rows, key), v = output(shape.rows, key);
    ops.rope_split_forward(qkv_, table, positions, shape.head_size, q, k, v);

    Matrix expected_q = columns(qkv, 0, query), expected_k = columns(qkv, query, key);
    rotate(expected_q, shape.head_size, positions, 1);
    rotate(expected_k, shape.head_size, positions, 1);
    EXPECT_LE(error(q, expected_q), tolerance());
    EXPECT_LE(error(k, expected_k), tolerance());
    EXPECT_EQ(error(v, columns(qkv, query + key, key)), 0);

    // The inverse rotation brings the input back.
    const Tensor back = output(shape.rows, query + 2 * key);
    ops.rope_merge_backward(q, k, v, table, positions, shape.head_size, back);
    EXPECT_LE(error(back, qkv), 2 * tolerance());
  }
}

TEST_P(RopeTest, a_shifted_position_is_noticed) {
  Matrix qkv = random_matrix(7, 3 * 8, 1);
  const Tensor q = output(7, 8), k = output(7, 8), v = output(7, 8);
  std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 5, 6};
  ops.rope_split_forward(put(qkv), make_rope_table(device, 8, 8, theta, wide), positions, 8, q, k, v);
  Matrix expected = columns(qkv, 0, 8);
  for (auto& position : positions) position++;
  rotate(expected, 8, positions, 1);
  EXPECT_GT(error(q, expected), tolerance());
}

class RopeTableTest : public Float64Test {};

TEST_F(RopeTableTest, angles_are_exact_far_from_the_start) {
  const double angle = 1857 * std::pow(10000.0, -2.0 / 32);
  EXPECT_NEAR(angle, 1044.268, 5e-4);
  const Matrix table = get(make_rope_table(device, 1858, 32, 10000, DType::float64));
  EXPECT_NEAR(table(1857, 1), std::cos(angle), 1e-12);
  EXPECT_NEAR(table(1857, 16 + 1), std::sin(angle), 1e-12);
  const Matrix rounded = get(make_rope_table(device, 1858, 32, 10000, DType::float32));
  EXPECT_NEAR(rounded(1857, 1), std::cos(angle), 1e-7);  // a float32 angle would be off by up to 6e-5
  EXPECT_THROW(make_rope_table(device, 8, 7, 10000, DType::float32), UsageError);
}

TEST_F(RopeTableTest, backward_is_the_derivative_of_forward) {
  const auto positions = some_positions();
  const Tensor table = make_rope_table(device, 31, 8, theta, wide);
  Matrix qkv = random_matrix(11, 4 * 8, 1), dq = random_matrix(11, 16, 2), dk = random_matrix(11, 8, 3);
  Matrix dv = random_matrix(11, 8, 4);
  const Tensor q = output(11, 16), k = output(11, 8), v = output(11, 8), d_qkv = output(11, 32);
  ops.rope_merge_backward(put(dq), put(dk), put(dv), table, positions, 8, d_qkv);
  expect_gradient(
      [&](Matrix at) {
        ops.rope_split_forward(put(at), table, positions, 8, q, k, v);
        return dot(get(q), dq) + dot(get(k), dk) + dot(get(v), dv);
      },
      qkv, get(d_qkv));
}

}  // namespace
}  // namespace escalera
