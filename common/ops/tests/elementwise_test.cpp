// Sums, conversions, norms.
#include <bit>
#include <cmath>
#include <limits>

#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class ElementwiseTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, ElementwiseTest, testing::ValuesIn(backends()), backend_name);

constexpr Index sizes[] = {1, 7, 61, 4096, 20011};

TEST_P(ElementwiseTest, add_and_scale) {
  for (const Index size : sizes) {
    Matrix a = random_matrix(1, size, 1), b = random_matrix(1, size, 2), sum(1, size), scaled(1, size);
    const Tensor a_ = put(a), b_ = put(b), out = output(1, size);
    for (std::size_t i = 0; i < a.values.size(); i++) sum.values[i] = a.values[i] + b.values[i];
    ops.add(a_, b_, out);
    EXPECT_LE(error(out, sum), tolerance());
    ops.add(a_, b_, b_);
    EXPECT_TRUE(same_bits(b_, out));
    ops.scale(a_, -0.75);
    for (std::size_t i = 0; i < a.values.size(); i++) scaled.values[i] = -0.75 * a.values[i];
    EXPECT_LE(error(a_, scaled), tolerance());
  }
}

TEST_P(ElementwiseTest, convert_rounds_as_a_cast_does) {
  for (const Index size : sizes) {
    for (const DType to : {DType::float32, DType::float64, DType::bfloat16}) {
      Matrix values = random_matrix(1, size, 1);
      const Tensor source = put(values), got = output(1, size, to), expected = output(1, size, to);
      from_host(device, values.values, expected);
      ops.convert(source, got);
      EXPECT_TRUE(same_bits(got, expected)) << to_string(to);
    }
  }
}

TEST_P(ElementwiseTest, squared_norm_adds_to_the_sum) {
  for (const Index size : sizes) {
    Matrix x = random_matrix(1, size, 1);
    Matrix start(1, 1, 3);
    const Tensor x_ = put(x), sum = put(start, DType::float64);
    ops.squared_norm(x_, sum);
    EXPECT_LE(error(sum, Matrix(1, 1, 3 + dot(x, x))), 1e-13);  // in double for every type
    x.values.back() += 1;
    EXPECT_GT(error(sum, Matrix(1, 1, 3 + dot(x, x))), 1e-13) << "a wrong element should be noticed";
  }
}

/// Every float32 whose lower half decides how it is rounded: ties, their neighbours, the smallest numbers, infinity, NaN.
TEST(Bfloat16, vectors_round_as_the_constructor_does) {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 1) {
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (const cpu::Kernels* table : kernel_tables()) {
    const auto kernel = table->convert[static_cast<int>(DType::float32)][static_cast<int>(DType::bfloat16)];
    std::vector<std::uint16_t> got(values.size());
    kernel(values.data(), got.data(), static_cast<Index>(values.size()));
    for (std::size_t i = 0; i < values.size(); i++) {
      ASSERT_EQ(got[i], bfloat16(values[i]).bits) << table->name << ", " << std::bit_cast<std::uint32_t>(values[i]);
    }
  }
}

/// The exponential, by way of the sums of cross-entropy: a row with one logit and a maximum of our choice.
TEST(Exponential, is_accurate_over_its_whole_range) {
  const auto exponential = [](const cpu::Kernels& table, float x) {
    const float zero = 0;
    const std::int32_t masked = -1;
    float sum = 0, target = 0;
    table.float32.logit_row_sums(&x, {1, 1, 0}, &masked, &zero, &sum, &target, 1);
    return sum;
  };
  for (const cpu::Kernels* table : kernel_tables()) {
    for (double x = -87; x < 88; x += 0.0137) {
      const auto rounded = static_cast<float>(x);
      const double expected = std::exp(static_cast<double>(rounded));
      ASSERT_NEAR(exponential(*table, rounded) / expected, 1, 2e-7) << x;
    }
    EXPECT_EQ(exponential(*table, 0), 1);
    EXPECT_EQ(exponential(*table, -1000), 0);
    EXPECT_EQ(exponential(*table, -std::numeric_limits<float>::infinity()), 0);
    EXPECT_EQ(exponential(*table, 1000), std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isnan(exponential(*table, std::numeric_limits<float>::quiet_NaN())));
  }
}

TEST(CpuOps, says_what_it_uses_and_refuses_what_is_missing) {
  const auto ops = make_cpu_ops({.threads = 2, .allow_onednn = false});
  EXPECT_NE(ops->description().find("2 threads, matrix products by Eigen"), std::string::npos) << ops->description();
  EXPECT_THROW(make_cpu_ops({.threads = 0}), Error);
}

}  // namespace
}  // namespace escalera
