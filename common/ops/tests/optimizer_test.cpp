// AdamW and SGD over flat spans.
#include <cmath>

#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class OptimizerTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, OptimizerTest, testing::ValuesIn(backends()), backend_name);

constexpr Index sizes[] = {1, 61, 20011};

/// The textbook's order of operations.
void adamw_loop(Matrix& p, const Matrix& g, Matrix& m, Matrix& v, const AdamWSettings& s) {
  for (std::size_t i = 0; i < p.values.size(); i++) {
    const double gradient = g.values[i] * s.gradient_scale, step = static_cast<double>(s.step);
    m.values[i] = s.beta1 * m.values[i] + (1 - s.beta1) * gradient;
    v.values[i] = s.beta2 * v.values[i] + (1 - s.beta2) * gradient * gradient;
    const double first = m.values[i] / (1 - std::pow(s.beta1, step));
    const double second = v.values[i] / (1 - std::pow(s.beta2, step));
    p.values[i] -= s.learning_rate * s.weight_decay * p.values[i];
    p.values[i] -= s.learning_rate * first / (std::sqrt(second) + s.epsilon);
  }
}

TEST_P(OptimizerTest, adamw_agrees_with_the_textbook) {
  for (const Index size : sizes) {
    AdamWSettings settings{.learning_rate = 0.01, .weight_decay = 0.1, .gradient_scale = 0.3};
    Matrix p = random_matrix(1, size, 1), m(1, size), v(1, size);
    const Tensor p_ = put(p, wide), m_ = put(m, wide), v_ = put(v, wide);
    const Tensor weights = dtype == wide ? Tensor() : output(1, size);
    for (settings.step = 1; settings.step <= 3; settings.step++) {
      Matrix g = random_matrix(1, size, 10 + static_cast<std::uint64_t>(settings.step));
      ops.adamw(p_, put(g, wide), m_, v_, weights, settings);
      adamw_loop(p, g, m, v, settings);
    }
    EXPECT_LE(error(p_, p), tolerance(wide));
    EXPECT_LE(error(m_, m), tolerance(wide));
    EXPECT_LE(error(v_, v), tolerance(wide));
    if (!weights.empty()) {
      const Tensor rounded = output(1, size);
      ops.convert(p_, rounded);
      EXPECT_TRUE(same_bits(weights, rounded));
    }
  }
}

TEST_P(OptimizerTest, a_zero_gradient_only_decays_the_weights) {
  Matrix p = random_matrix(1, 61, 1), zero(1, 61);
  const Tensor m = put(zero, wide), v = put(zero, wide), p_ = put(p, wide);
  ops.adamw(p_, put(zero, wide), m, v, Tensor(), {.learning_rate = 0.1, .weight_decay = 0.1});
  // p * (1 - learning_rate * weight_decay), one rounding, and nothing else: exact.
  Matrix expected = p;
  for (double& value : expected.values) {
    value = wide == DType::float64 ? value * (1 - 0.1 * 0.1)
                                   : static_cast<double>(static_cast<float>(value) * static_cast<float>(1 - 0.1 * 0.1));
  }
  EXPECT_EQ(error(p_, expected), 0);
  // Without decay (norm weights) nothing moves.
  const Tensor norm = put(p, wide);
  ops.adamw(norm, put(zero, wide), m, v, Tensor(), {.learning_rate = 0.1, .weight_decay = 0});
  EXPECT_EQ(error(norm, p), 0);
}

TEST_P(OptimizerTest, sgd_agrees_with_its_formula) {
  for (const Index size : sizes) {
    Matrix p = random_matrix(1, size, 1), g = random_matrix(1, size, 2);
    const Tensor p_ = put(p, wide), weights = output(1, size), g_ = put(g, wide), rounded = output(1, size);
    ops.sgd(p_, g_, weights, 0.05, 0.2, 0.4);
    Matrix expected = p;
    for (std::size_t i = 0; i < p.values.size(); i++) {
      expected.values[i] = p.values[i] * (1 - 0.05 * 0.2) - 0.05 * 0.4 * g.values[i];
    }
    EXPECT_LE(error(p_, expected), tolerance(wide));
    ops.convert(p_, rounded);
    EXPECT_TRUE(same_bits(weights, rounded));
  }
}

TEST_P(OptimizerTest, a_missing_bias_correction_is_noticed) {
  Matrix p = random_matrix(1, 61, 1), g = random_matrix(1, 61, 2), m(1, 61), v(1, 61);
  const Tensor p_ = put(p, wide);
  AdamWSettings settings{.learning_rate = 0.01};
  ops.adamw(p_, put(g, wide), put(m, wide), put(v, wide), Tensor(), settings);
  settings.step = 1000;
  adamw_loop(p, g, m, v, settings);
  EXPECT_GT(error(p_, p), tolerance(wide));
}

}  // namespace
}  // namespace escalera
