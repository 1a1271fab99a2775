// Each gradient is summed over the groups in its record, once.
#include <gtest/gtest.h>

#include "common/comm/launch.h"
#include "common/ops/ops.h"
#include "common/train/gradient_sums.h"

namespace escalera {
namespace {

TEST(SumGradients, UsesTheGroupsOfBucketAndParameterAndNoOthers) {
  // Four ranks as 2 x 2: replicas {0, 1} and {2, 3}; the extra group joins {0, 2} and {1, 3}.
  const int code = launch({CommKind::threads, 4}, [](Communicator& world) {
    const auto replicas = world.split(world.rank() / 2, world.rank(), "dp");
    const auto extra = world.split(world.rank() % 2, world.rank(), "tp");
    const std::unique_ptr<Ops> ops = make_cpu_ops({});
    std::deque<Bucket> buckets(1);
    Bucket& bucket = buckets[0];
    const Slice whole{0, 3, 3}, summed{0, 3, 3, extra.get()};
    bucket.add({"split", 2, 3, Parameter::Split::none, whole, {}});
    bucket.add({"norm", 1, 3, Parameter::Split::none, summed, {}});
    bucket.add({"other norm", 1, 3, Parameter::Split::none, summed, {}});
    bucket.replicas = replicas.get();
    bucket.gradients = ops->device().zeros(1, bucket.size, DType::float64, MemoryCategory::gradients);
    std::vector<double> mine(static_cast<std::size_t>(bucket.size), world.rank() + 1.0);  // 1, 2, 3, 4
    from_host(ops->device(), mine, bucket.gradients);
    sum_gradients(buckets);
    const std::vector<double> sums = to_host(ops->device(), bucket.gradients);
    const double over_replicas = world.rank() < 2 ? 3 : 7;
    for (std::size_t i = 0; i < 6; i++) EXPECT_EQ(sums[i], over_replicas);
    for (std::size_t i = 6; i < 12; i++) EXPECT_EQ(sums[i], 10);
    EXPECT_EQ(extra->traffic(Operation::all_reduce).calls, 1) << "neighbours with one extra group travel together";
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace escalera
