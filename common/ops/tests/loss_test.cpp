// Cross-entropy over the whole vocabulary and over two slices of it.
#include <cmath>
#include <limits>

#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class LossTest : public OpsTest {
 protected:
  /// All three parts on one slice that holds everything: overwrites the logits, returns the loss.
  double run(const Tensor& logits, Index valid, std::span<const std::int32_t> targets, double scale) {
    const Tensor row_max = output(1, logits.rows(), wide), sums = output(2, logits.rows(), wide);
    const Tensor loss = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
    ops.cross_entropy_row_max(logits, valid, row_max);
    ops.cross_entropy_row_sums(logits, valid, targets, 0, row_max, sums);
    ops.cross_entropy_backward(logits, valid, targets, 0, row_max, sums, scale, 1, loss);
    return get(loss)(0, 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LossTest, testing::ValuesIn(backends()), backend_name);

struct Reference {
  double loss = 0;
  Matrix gradient;

  Reference(const Matrix& logits, Index valid, std::span<const std::int32_t> targets, double scale)
      : gradient(logits.rows, logits.columns) {
    for (Index t = 0; t < logits.rows; t++) {
      const Index target = targets[static_cast<std::size_t>(t)];
      if (target < 0) continue;
      double largest = -std::numeric_limits<double>::infinity(), sum = 0;
      for (Index i = 0; i < valid; i++) largest = std::max(largest, logits(t, i));
      for (Index i = 0; i < valid; i++) sum += std::exp(logits(t, i) - largest);
      loss += scale * (std::log(sum) + largest - logits(t, target));
      for (Index i = 0; i < valid; i++) {
        gradient(t, i) = scale * (std::exp(logits(t, i) - largest) / sum - (i == target ? 1 : 0));
      }
    }
  }
};

std::vector<std::int32_t> some_targets(Index rows, Index valid) {
  std::vector<std::int32_t> targets;
  for (Index t = 0; t < rows; t++) {
    targets.push_back(t % 5 == 3 ? -1 : static_cast<std::int32_t>((7 * t + valid - 1) % valid));
  }
  return targets;
}

TEST_P(LossTest, agrees_with_plain_loops) {
  for (const auto& [rows, valid, padding] : std::vector<std::array<Index, 3>>{{1, 1, 0}, {24, 61, 3}, {301, 48, 0}, {9, 300, 5}}) {
    SCOPED_TRACE(fmt::format("T {} V {} + {}", rows, valid, padding));
    Matrix logits = random_matrix(rows, valid + padding, 1);
    for (Index t = 0; t < rows; t++)
      for (Index i = valid; i < valid + padding; i++) logits(t, i) = 50;  // must not count
    const Tensor logits_ = put(logits);
    const auto targets = some_targets(rows, valid);
    const Reference expected(logits, valid, targets, 0.125);
    EXPECT_NEAR(run(logits_, valid, targets, 0.125), expected.loss, tolerance(wide) * std::max(1.0, expected.loss));
    EXPECT_LE(error(logits_, expected.gradient), tolerance());

    // Masked rows and padding columns are exact zeros.
    const Matrix got = get(logits_);
    for (Index t = 0; t < rows; t++)
      for (Index i = targets[static_cast<std::size_t>(t)] < 0 ? 0 : valid; i < valid + padding; i++) {
        EXPECT_EQ(got(t, i), 0);
      }
  }
}

TEST_P(LossTest, two_slices_of_the_vocabulary_make_the_whole) {
  const Index rows = 24, left = 37, right = 24, padding = 2;
  Matrix logits = random_matrix(rows, left + right, 1), first(rows, left), second(rows, right + padding, 99);
  const auto targets = some_targets(rows, left + right);
  put(logits);
  for (Index t = 0; t < rows; t++) {
    for (Index i = 0; i < left; i++) first(t, i) = logits(t, i);
    for (Index i = 0; i < right; i++) second(t, i) = logits(t, left + i);
  }
  const Reference expected(logits, left + right, targets, 0.5);

  const Tensor parts[] = {put(first), put(second)};
  const Index valid[] = {left, right}, begins[] = {0, left};
  Tensor row_max[2], sums[2];
  for (int i = 0; i < 2; i++) {
    row_max[i] = output(1, rows, wide);
    ops.cross_entropy_row_max(parts[i], valid[i], row_max[i]);
  }
  // What two ranks would exchange: the maximum of the maxima, then the sums of the sums.
  Matrix largest = get(row_max[0]);
  const Matrix other = get(row_max[1]);
  for (std::size_t t = 0; t < largest.values.size(); t++) largest.values[t] = std::max(largest.values[t], other.values[t]);
  const Tensor together = put(largest, wide);
  for (int i = 0; i < 2; i++) {
    sums[i] = output(2, rows, wide);
    ops.cross_entropy_row_sums(parts[i], valid[i], targets, begins[i], together, sums[i]);
  }
  ops.add(sums[0], sums[1], sums[0]);
  const Tensor loss = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
  for (int i = 0; i < 2; i++) {
    ops.cross_entropy_backward(parts[i], valid[i], targets, begins[i], together, sums[0], 0.5, 0.5, loss);
  }
  EXPECT_NEAR(get(loss)(0, 0), expected.loss, tolerance(wide) * expected.loss);
  Matrix expected_first(rows, left), expected_second(rows, right + padding);
  for (Index t = 0; t < rows; t++) {
    for (Index i = 0; i < left; i++) expected_first(t, i) = expected.gradient(t, i);
    for (Index i = 0; i < right; i++) expected_second(t, i) = expected.gradient(t, left + i);
  }
  EXPECT_LE(error(parts[0], expected_first), tolerance());
  EXPECT_LE(error(parts[1], expected_second), tolerance());
}

TEST_P(LossTest, logits_of_a_thousand_stay_finite) {
  Matrix logits(2, 61);
  for (Index i = 0; i < 61; i++) logits(0, i) = i % 2 ? 1000 : -1000;
  for (Index i = 0; i < 61; i++) logits(1, i) = i == 7 ? 1000 : -1000;
  const std::vector<std::int32_t> targets = {0, 7};
  const Tensor logits_ = put(logits);
  const Reference expected(logits, 61, targets, 1);
  EXPECT_NEAR(run(logits_, 61, targets, 1), expected.loss, tolerance(wide) * expected.loss);
  EXPECT_LE(error(logits_, expected.gradient), tolerance());
}

TEST_P(LossTest, a_slice_without_valid_columns_has_no_maximum) {
  Matrix logits(3, 4, 99);
  const Tensor logits_ = put(logits), row_max = output(1, 3, wide), sums = output(2, 3, wide);
  const std::vector<std::int32_t> targets = {0, 1, 2};
  ops.cross_entropy_row_max(logits_, 0, row_max);
  EXPECT_EQ(get(row_max)(0, 1), -std::numeric_limits<double>::infinity());
  Matrix elsewhere(1, 3, 5);
  ops.cross_entropy_row_sums(logits_, 0, targets, 61, put(elsewhere, wide), sums);
  EXPECT_EQ(error(sums, Matrix(2, 3)), 0);
}

TEST_P(LossTest, a_wrong_target_is_noticed) {
  Matrix logits = random_matrix(3, 61, 1);
  const std::vector<std::int32_t> targets = {5, 6, 7}, wrong = {5, 6, 8};
  const Tensor logits_ = put(logits);
  const Reference expected(logits, 61, wrong, 1);
  EXPECT_GT(std::abs(run(logits_, 61, targets, 1) - expected.loss), tolerance(wide) * expected.loss);
  EXPECT_GT(error(logits_, expected.gradient), tolerance());
}

class LossGradientTest : public Float64Test {};

TEST_F(LossGradientTest, backward_is_the_derivative_of_the_loss) {
  Matrix logits = random_matrix(6, 61, 1);
  const auto targets = some_targets(6, 61);
  const auto loss_of = [&](Matrix at, Matrix* gradient) {
    const Tensor logits_ = put(at), row_max = output(1, 6), sums = output(2, 6);
    const Tensor loss = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
    ops.cross_entropy_row_max(logits_, 61, row_max);
    ops.cross_entropy_row_sums(logits_, 61, targets, 0, row_max, sums);
    ops.cross_entropy_backward(logits_, 61, targets, 0, row_max, sums, 0.3, 1, loss);
    if (gradient) *gradient = get(logits_);
    return get(loss)(0, 0);
  };
  Matrix gradient;
  loss_of(logits, &gradient);
  expect_gradient([&](const Matrix& at) { return loss_of(at, nullptr); }, logits, gradient);
}

}  // namespace
}  // namespace escalera
