// The CUDA kernels have several ways to do one thing: 16 bytes per thread or one element, rows in registers or rows that are too long
// for them, one block per row or several, sums in one stage or two. Here each way is taken, and compared with the CPU in float64.
#include <cmath>
#include <limits>

#include "common/cuda/cuda_backend.h"
#include "common/ops/rope_table.h"
#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

std::vector<Backend> cuda_backends() {
  std::vector<Backend> all = backends();
  std::erase_if(all, [](const Backend& backend) { return backend.name.find("cuda") == std::string::npos; });
  return all;
}

/// One of the two that are compared: its operations, and tensors on its device.
struct Side {
  Ops& ops;
  DType dtype, wide;
  Index offset;  // elements that stand before each tensor in its memory: 1 leaves nothing aligned

  Tensor empty(Index rows, Index columns, DType type) const {
    if (rows == 0) return ops.device().empty(rows, columns, type, MemoryCategory::workspace);
    return ops.device().empty(1, rows * columns + offset, type, MemoryCategory::workspace).slice_flat(offset, rows * columns, rows);
  }
  Tensor output(Index rows, Index columns) const { return empty(rows, columns, dtype); }
  Tensor wide_output(Index rows, Index columns) const { return empty(rows, columns, wide); }
  Tensor put(const Matrix& matrix, DType type) const {
    const Tensor tensor = empty(matrix.rows, matrix.columns, type);
    from_host(ops.device(), matrix.values, tensor);
    return tensor;
  }
  Tensor put(const Matrix& matrix) const { return put(matrix, dtype); }
  Tensor put_wide(const Matrix& matrix) const { return put(matrix, wide); }
};

class KernelPaths : public OpsTest {
 protected:
  /// Random numbers that the tested type holds exactly.
  Matrix random(Index rows, Index columns, std::uint64_t seed) {
    Matrix matrix = random_matrix(rows, columns, seed);
    put(matrix);
    return matrix;
  }

  /// Runs `call` on both sides, with aligned tensors and with others, and compares all tensors that it returns: each within
  /// `factor` times what one rounding in its type may cost.
  void compare(double factor, const std::function<std::vector<Tensor>(const Side&)>& call) {
    const std::vector<Tensor> expected = call({*reference, DType::float64, DType::float64, 0});
    for (const Index offset : {0, 1}) {
      const std::vector<Tensor> got = call({ops, dtype, wide, offset});
      for (std::size_t i = 0; i < got.size(); i++) {
        Matrix values(expected[i].rows(), expected[i].columns());
        values.values = to_host(reference->device(), expected[i]);
        EXPECT_LE(error(got[i], values), factor * tolerance(got[i].dtype())) << "result " << i << ", offset " << offset;
      }
    }
  }

  std::unique_ptr<Ops> reference = cpu_backend(DType::float64, 1, cpu::kernels_base(), false).make();
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelPaths);
INSTANTIATE_TEST_SUITE_P(Backends, KernelPaths, testing::ValuesIn(cuda_backends()), backend_name);

TEST_P(KernelPaths, norms_of_rows_of_every_length) {
  // 8, 2048: in registers. 5001: too long for registers when taken one by one. 20000, 33000: too long even in packs. 2200 rows: several
  // rows per block in backward, and the last block has fewer.
  for (const auto& [rows, columns] : std::vector<std::pair<Index, Index>>{{3, 8}, {5, 2048}, {2, 5001}, {2, 20000}, {3, 33000}, {2200, 8}}) {
    SCOPED_TRACE(fmt::format("T {} H {}", rows, columns));
    const Matrix x = random(rows, columns, 1), delta = random(rows, columns, 2), w = random(1, columns, 3), dy = random(rows, columns, 4);
    const Matrix residual = random(rows, columns, 5), dw = random_matrix(1, columns, 6);
    compare(2, [&, rows = rows, columns = columns](const Side& side) {
      const Tensor sum = side.put(x), y = side.output(rows, columns), rstd = side.wide_output(1, rows), again = side.output(rows, columns);
      side.ops.add_rms_norm_forward(sum, side.put(delta), side.put(w), 1e-3, sum, y, rstd);
      const Tensor plain = side.output(rows, columns), plain_rstd = side.wide_output(1, rows);
      side.ops.rms_norm_forward(side.put(x), side.put(w), 1e-3, plain, plain_rstd);
      side.ops.rms_norm_apply(side.put(x), plain_rstd, side.put(w), again);
      if (&side.ops == &ops) {
        EXPECT_TRUE(same_bits(plain, again));
        side.ops.rms_norm_forward(sum, side.put(w), 1e-3, again, plain_rstd);
        EXPECT_TRUE(same_bits(y, again) && same_bits(rstd, plain_rstd));
      }
      return std::vector<Tensor>{sum, y, plain};
    });
    compare(2, [&, rows = rows, columns = columns](const Side& side) {
      const Tensor y = side.output(rows, columns), rstd = side.wide_output(1, rows), gradient = side.put_wide(dw);
      const Tensor dx = side.put(residual), plain = side.output(rows, columns);
      side.ops.rms_norm_forward(side.put(x), side.put(w), 1e-3, y, rstd);
      side.ops.rms_norm_backward(side.put(dy), side.put(x), rstd, side.put(w), dx, dx, gradient);
      side.ops.rms_norm_backward(side.put(dy), side.put(x), rstd, side.put(w), Tensor(), plain, gradient);
      return std::vector<Tensor>{dx, plain, gradient};
    });
  }
}

TEST_P(KernelPaths, rotations_of_heads_of_every_size) {
  for (const auto& [heads, kv_heads, size] : std::vector<std::array<Index, 3>>{{4, 2, 128}, {40, 8, 64}, {3, 1, 16}, {2, 1, 1200}, {5, 5, 6}}) {
    SCOPED_TRACE(fmt::format("heads {}/{} D {}", heads, kv_heads, size));
    const Index rows = 11, query = heads * size, key = kv_heads * size;
    const Matrix qkv = random(rows, query + 2 * key, 1), dq = random(rows, query, 2), dk = random(rows, key, 3), dv = random(rows, key, 4);
    compare(1, [&, size = size](const Side& side) {
      // Another list of positions for each call: none may reach the device late.
      const std::vector<std::int32_t> first = {3, 0, 7}, second = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
      const Tensor table = make_rope_table(side.ops.device(), 12, size, 10000, side.wide);
      std::vector<Tensor> results;
      for (const auto& positions : {first, second, second, first}) {
        const Tensor q = side.output(rows, query), k = side.output(rows, key), v = side.output(rows, key);
        const Tensor d_qkv = side.output(rows, query + 2 * key);
        side.ops.rope_split_forward(side.put(qkv), table, positions, size, q, k, v);
        side.ops.rope_merge_backward(side.put(dq), side.put(dk), side.put(dv), table, positions, size, d_qkv);
        results.insert(results.end(), {q, k, v, d_qkv});
      }
      return results;
    });
  }
}

TEST_P(KernelPaths, swiglu_of_every_width) {
  for (const auto& [rows, columns] : std::vector<std::pair<Index, Index>>{{3, 8}, {5, 2056}, {70, 61}}) {
    SCOPED_TRACE(fmt::format("T {} F {}", rows, columns));
    const Matrix gate_up = random(rows, 2 * columns, 1), dy = random(rows, columns, 2);
    compare(1, [&, rows = rows, columns = columns](const Side& side) {
      const Tensor y = side.output(rows, columns), again = side.output(rows, columns), in_place = side.put(gate_up);
      const Tensor gradient = side.output(rows, 2 * columns);
      side.ops.swiglu_forward(in_place, y);
      side.ops.swiglu_backward(in_place, side.put(dy), gradient, Tensor());
      side.ops.swiglu_backward(in_place, side.put(dy), in_place, again);
      return std::vector<Tensor>{y, again, in_place, gradient};
    });
  }
}

TEST_P(KernelPaths, an_embedding_whose_tokens_are_mostly_the_same) {
  // Row 3 occurs about 700 times, in six segments; row 5 exactly as often as one segment holds; others once or twice, or are elsewhere.
  std::vector<std::int32_t> tokens;
  for (int t = 0; t < 1000; t++) tokens.push_back(t % 10 < 7 ? 13 : t % 10 == 7 && t < 900 ? t % 90 : 15 + t % 5 * 3);
  for (const Index columns : {1, 8, 61, 2052}) {
    SCOPED_TRACE(columns);
    const Index rows = 23;
    const Matrix table = random(rows, columns, 1), dy = random(static_cast<Index>(tokens.size()), columns, 2);
    const Matrix gradient = random_matrix(rows, columns, 3);
    compare(1, [&](const Side& side) {
      const Tensor y = side.output(dy.rows, columns), d_table = side.put_wide(gradient);
      side.ops.embedding_forward(tokens, side.put(table), 10, y);
      side.ops.embedding_backward(tokens, side.put(dy), 10, d_table);
      // A second list at once: the first must have been read by then.
      const std::span<const std::int32_t> half(tokens.data(), tokens.size() / 2);
      side.ops.embedding_backward(half, side.put(dy).slice_rows(0, dy.rows / 2), 12, d_table);
      return std::vector<Tensor>{y, d_table};
    });
  }
}

TEST_P(KernelPaths, cross_entropy_over_vocabularies_of_every_size) {
  // 300 rows: the loss is summed in two stages. 17001, 40000: a row is longer than what the threads of a block load at a time.
  for (const auto& [rows, valid, padding] :
       std::vector<std::array<Index, 3>>{{300, 40, 0}, {300, 37, 3}, {4, 17001, 0}, {4, 17001, 7}, {3, 40000, 0}, {2, 8, 24}}) {
    SCOPED_TRACE(fmt::format("T {} V {} + {}", rows, valid, padding));
    Matrix logits = random(rows, valid + padding, 1);
    logits(0, 0) = logits(1, valid - 1) = -std::numeric_limits<double>::infinity();
    for (Index t = 0; t < rows; t++) {
      for (Index i = valid; i < valid + padding; i++) logits(t, i) = 100;  // must not count
    }
    std::vector<std::int32_t> targets;
    for (Index t = 0; t < rows; t++) targets.push_back(t % 3 == 1 ? -100 : static_cast<std::int32_t>(100 + (valid - 1 - t % valid)));
    compare(1, [&, rows = rows, valid = valid](const Side& side) {
      const Tensor gradient = side.put(logits), row_max = side.wide_output(1, rows), sums = side.wide_output(2, rows);
      const Tensor loss = side.ops.device().zeros(1, 1, DType::float64, MemoryCategory::workspace);
      side.ops.cross_entropy_row_max(gradient, valid, row_max);
      side.ops.cross_entropy_row_sums(gradient, valid, targets, 100, row_max, sums);
      side.ops.cross_entropy_backward(gradient, valid, targets, 100, row_max, sums, 0.5, 0.25, loss);
      const Tensor rounded_loss = side.wide_output(1, 1);
      side.ops.convert(loss, rounded_loss);
      return std::vector<Tensor>{gradient, row_max, sums, rounded_loss};
    });
  }
}

TEST_P(KernelPaths, a_masked_row_without_any_finite_logit_counts_for_nothing) {
  const double infinity = std::numeric_limits<double>::infinity();
  Matrix logits(2, 16, -infinity);
  logits(1, 3) = 1;
  const std::vector<std::int32_t> targets = {-1, 3};
  const Tensor logits_ = put(logits), row_max = output(1, 2, wide), sums = output(2, 2, wide);
  const Tensor loss = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
  ops.cross_entropy_row_max(logits_, 16, row_max);
  ops.cross_entropy_row_sums(logits_, 16, targets, 0, row_max, sums);
  ops.cross_entropy_backward(logits_, 16, targets, 0, row_max, sums, 1, 1, loss);
  EXPECT_EQ(get(row_max).values, (std::vector<double>{-infinity, 1}));
  EXPECT_EQ(get(sums).values, (std::vector<double>{0, 1, 0, 0}));
  EXPECT_EQ(error(logits_, Matrix(2, 16)), 0);
  EXPECT_EQ(get(loss)(0, 0), 0);
}

TEST_P(KernelPaths, flat_spans_of_every_length) {
  for (const Index count : {1, 7, 8, 1000, 4099}) {
    SCOPED_TRACE(count);
    const Matrix a = random(1, count, 1), b = random(1, count, 2), m = random_matrix(1, count, 3);
    Matrix v = random_matrix(1, count, 4), p = m, g = m;
    for (double& value : v.values) value *= value;
    compare(1, [&](const Side& side) {
      const Tensor sum = side.put(a), scaled = side.put(b), converted = side.wide_output(1, count);
      side.ops.add(sum, side.put(b), sum);
      side.ops.scale(scaled, 0.3);
      side.ops.convert(side.put(a), converted);
      const Tensor back = side.output(1, count);
      side.ops.convert(converted, back);
      return std::vector<Tensor>{sum, scaled, converted, back};
    });
    compare(1, [&](const Side& side) {
      // The moments and masters are rounded to float32 here, but not in the reference: what they hold is the same to 6e-8.
      const Tensor first = side.put_wide(m), second = side.put_wide(v), master = side.put_wide(p), weights = side.output(1, count);
      side.ops.adamw(master, side.put_wide(g), first, second, weights, {.learning_rate = 0.1, .weight_decay = 0.1, .step = 3});
      const Tensor other = side.put_wide(p), other_weights = side.output(1, count);
      side.ops.sgd(other, side.put_wide(g), other_weights, 0.1, 0.1, 0.5);
      return std::vector<Tensor>{first, second, master, weights, other, other_weights};
    });
  }
}

TEST_P(KernelPaths, the_norm_of_millions_is_right_in_double_and_repeats_itself) {
  const Index count = 4'400'003;
  const Tensor x_ = output(1, count), sum = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
  Matrix values(1, count);
  for (Index i = 0; i < count; i++) values(0, i) = std::sin(static_cast<double>(i));
  from_host(device, values.values, x_);
  values.values = to_host(device, x_);
  ops.squared_norm(x_, sum);
  const double once = get(sum)(0, 0);
  EXPECT_NEAR(once / dot(values, values), 1, 1e-12);  // the plain loop rounds millions of times itself
  ops.squared_norm(x_.slice_flat(1, count - 1), sum);
  EXPECT_NEAR(get(sum)(0, 0) / (2 * dot(values, values)), 1, 1e-12);
  const Tensor again = device.zeros(1, 1, DType::float64, MemoryCategory::workspace);
  ops.squared_norm(x_, again);
  EXPECT_EQ(get(again)(0, 0), once);
}

TEST_P(KernelPaths, products_of_slices_and_odd_widths) {
  for (const auto& [rows, in, out] : std::vector<std::array<Index, 3>>{{1, 1, 1}, {5, 1, 7}, {7, 9, 1}, {33, 17, 40}, {16, 64, 32}, {0, 8, 8}}) {
    SCOPED_TRACE(fmt::format("T {} K {} N {}", rows, in, out));
    const Matrix x = random(rows, in, 1), w = random(out, in, 2), dy = random(rows, out, 3), base = random(rows, out, 4), dw = random_matrix(out, in, 5);
    compare(2, [&, rows = rows, in = in, out = out](const Side& side) {
      const Tensor y = side.output(rows, out), sum = side.put(base), dx = side.output(rows, in), gradient = side.put_wide(dw);
      side.ops.linear_forward(side.put(x), side.put(w), y);
      side.ops.linear_forward(side.put(x), side.put(w), sum, true);
      side.ops.linear_backward_input(side.put(dy), side.put(w), dx);
      side.ops.linear_backward_weight(side.put(dy), side.put(x), gradient);
      return std::vector<Tensor>{y, sum, dx, gradient};
    });
  }
}

TEST_P(KernelPaths, float64_is_refused_by_name) {
  Matrix x(2, 4, 1), w(1, 4, 1);
  const Tensor x_ = put(x, DType::float64), y = output(2, 4, DType::float64), rstd = output(1, 2, DType::float64);
  try {
    ops.rms_norm_forward(x_, put(w, DType::float64), 0, y, rstd);
    FAIL() << "float64 was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("computes in float32 and bfloat16"), std::string::npos) << error.what();
  }
  EXPECT_THROW(ops.add(x_, x_, y), Error);
  EXPECT_THROW(ops.linear_forward(x_, x_, output(2, 2, DType::float64)), Error);
}

TEST_P(KernelPaths, the_description_names_device_and_libraries) {
  EXPECT_NE(ops.description().find("cuBLASLt "), std::string::npos) << ops.description();
  EXPECT_NE(ops.description().find("CUDA runtime "), std::string::npos) << ops.description();
}

}  // namespace
}  // namespace escalera
