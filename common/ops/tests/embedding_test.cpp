// Token embedding and its gradient, with tokens that lie outside the rows held here.
#include "common/ops/tests/ops_testing.h"

namespace escalera {
namespace {

class EmbeddingTest : public OpsTest {};
INSTANTIATE_TEST_SUITE_P(Backends, EmbeddingTest, testing::ValuesIn(backends()), backend_name);

constexpr Index vocabulary = 61, first_row = 20, rows_here = 23;

std::vector<std::int32_t> tokens(Index count) {
  std::vector<std::int32_t> list;
  for (Index t = 0; t < count; t++) list.push_back(static_cast<std::int32_t>(t * t % vocabulary));
  return list;
}

TEST_P(EmbeddingTest, agrees_with_plain_loops) {
  for (const Index columns : {1, 48, 150}) {
    for (const Index count : {1, 24, 301}) {
      SCOPED_TRACE(fmt::format("T {} H {}", count, columns));
      const auto list = tokens(count);
      Matrix table = random_matrix(rows_here, columns, 1), dy = random_matrix(count, columns, 2);
      Matrix gradient = random_matrix(rows_here, columns, 3);
      const Tensor table_ = put(table), dy_ = put(dy), gradient_ = put(gradient, wide), y_ = output(count, columns);
      ops.embedding_forward(list, table_, first_row, y_);
      ops.embedding_backward(list, dy_, first_row, gradient_);

      Matrix y(count, columns);
      for (Index t = 0; t < count; t++) {
        const Index row = list[static_cast<std::size_t>(t)] - first_row;
        if (row < 0 || row >= rows_here) continue;
        for (Index i = 0; i < columns; i++) {
          y(t, i) = table(row, i);
          gradient(row, i) += dy(t, i);
        }
      }
      EXPECT_EQ(error(y_, y), 0);  // copies, exact
      EXPECT_LE(error(gradient_, gradient), tolerance(wide));

      gradient(rows_here - 1, columns - 1) += 0.01;
      EXPECT_GT(error(gradient_, gradient), tolerance(wide)) << "a wrong gradient should be noticed";
    }
  }
}

}  // namespace
}  // namespace escalera
