// Linear layers against plain loops, for shapes that no block size divides and from one row to more than each thread wants.
#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class LinearTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, LinearTest, testing::ValuesIn(backends()), backend_name);

struct Shape {
  Index rows, in, out;  // T, K, N
};
constexpr Shape shapes[] = {{1, 48, 61}, {7, 5, 3}, {33, 48, 61}, {70, 61, 150}, {301, 80, 48}, {2, 600, 700}};

/// base + x w^T, and the two gradients, as plain loops.
struct Reference {
  Matrix y, dx, dw;

  Reference(const Matrix& x, const Matrix& w, const Matrix& dy, double base)
      : y(x.rows, w.rows, base), dx(x.rows, x.columns, base), dw(w.rows, w.columns, base) {
    for (Index t = 0; t < x.rows; t++)
      for (Index n = 0; n < w.rows; n++)
        for (Index k = 0; k < w.columns; k++) {
          y(t, n) += x(t, k) * w(n, k);
          dx(t, k) += dy(t, n) * w(n, k);
          dw(n, k) += dy(t, n) * x(t, k);
        }
  }
};

TEST_P(LinearTest, agrees_with_plain_loops) {
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(fmt::format("T {} K {} N {}", shape.rows, shape.in, shape.out));
    Matrix x = random_matrix(shape.rows, shape.in, 1), w = random_matrix(shape.out, shape.in, 2);
    Matrix dy = random_matrix(shape.rows, shape.out, 3);
    const Tensor x_ = put(x), w_ = put(w), dy_ = put(dy);

    const Reference fresh(x, w, dy, 0);
    const Tensor y = output(shape.rows, shape.out), dx = output(shape.rows, shape.in);
    ops.linear_forward(x_, w_, y, false);
    ops.linear_backward_input(dy_, w_, dx, false);
    EXPECT_LE(error(y, fresh.y), tolerance());
    EXPECT_LE(error(dx, fresh.dx), tolerance());

    const Reference added(x, w, dy, 2);
    Matrix base_y(shape.rows, shape.out, 2), base_dx(shape.rows, shape.in, 2), base_dw(shape.out, shape.in, 2);
    const Tensor sum_y = put(base_y), sum_dx = put(base_dx), dw = put(base_dw, wide);
    ops.linear_forward(x_, w_, sum_y, true);
    ops.linear_backward_input(dy_, w_, sum_dx, true);
    ops.linear_backward_weight(dy_, x_, dw);
    EXPECT_LE(error(sum_y, added.y), tolerance());
    EXPECT_LE(error(sum_dx, added.dx), tolerance());
    EXPECT_LE(error(dw, added.dw), tolerance(wide));  // sums are kept wide, so bfloat16 loses nothing here
  }
}

TEST_P(LinearTest, repeats_itself_bit_by_bit) {
  Matrix x = random_matrix(130, 80, 1), w = random_matrix(61, 80, 2);
  const Tensor x_ = put(x), w_ = put(w), first = output(130, 61), second = output(130, 61);
  ops.linear_forward(x_, w_, first, false);
  ops.linear_forward(x_, w_, second, false);
  EXPECT_TRUE(same_bits(first, second));
}

TEST_P(LinearTest, an_empty_sum_is_zero_and_no_rows_are_no_work) {
  Matrix none(5, 0), no_weights(3, 0), no_rows(0, 4), w = random_matrix(3, 4, 1);
  const Tensor y = output(5, 3);
  ops.linear_forward(put(none), put(no_weights), y, false);
  EXPECT_EQ(error(y, Matrix(5, 3)), 0);
  const Tensor nothing = output(0, 3);
  ops.linear_forward(put(no_rows), put(w), nothing, false);
}

TEST_P(LinearTest, a_wrong_term_is_noticed) {
  Matrix x = random_matrix(33, 48, 1), w = random_matrix(61, 48, 2);
  const Tensor y = output(33, 61);
  ops.linear_forward(put(x), put(w), y, false);
  w(60, 47) += 0.1;
  EXPECT_GT(error(y, Reference(x, w, Matrix(33, 61), 0).y), tolerance());
}

TEST_P(LinearTest, wrong_shapes_are_refused) {
  Matrix x(4, 6), w(5, 7);
  EXPECT_THROW(ops.linear_forward(put(x), put(w), output(4, 5), false), Error);
}

class EigenBfloat16Test : public OpsTest {
 protected:
  EigenBfloat16Test() : OpsTest(cpu_backend(DType::bfloat16, 2, cpu::best_kernels(), false)) {}
};

TEST_F(EigenBfloat16Test, panels_add_up_over_more_terms_and_columns_than_one_holds) {
  Matrix x = random_matrix(270, 530, 1), w = random_matrix(300, 530, 2), dy = random_matrix(270, 300, 3);
  const Reference expected = [&] {
    put(x), put(w), put(dy);  // rounds
    return Reference(x, w, dy, 0);
  }();
  const Tensor y = output(270, 300), dx = output(270, 530);
  const Tensor dw = device.zeros(300, 530, wide, MemoryCategory::gradients);
  ops.linear_forward(put(x), put(w), y, false);
  ops.linear_backward_input(put(dy), put(w), dx, false);
  ops.linear_backward_weight(put(dy), put(x), dw);
  EXPECT_LE(error(y, expected.y), tolerance());
  EXPECT_LE(error(dx, expected.dx), tolerance());
  EXPECT_LE(error(dw, expected.dw), tolerance(wide));
}

}  // namespace
}  // namespace escalera
