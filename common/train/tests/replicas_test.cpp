// Replicas that differ in a single bit are found, and named; what only one rank holds is compared with nothing.
#include "common/train/replicas.h"

#include <gtest/gtest.h>

#include "common/comm/launch.h"
#include "tests/support/parity.h"

namespace escalera {
namespace {

/// Four ranks as two shards x two replicas; `change` may spoil a rank's weights. Returns exit code and message.
std::pair<int, std::string> checked(bool whole_weights, const std::function<void(int rank, Bucket&)>& change) {
  testing::internal::CaptureStderr();
  const int code = launch({CommKind::threads, 4}, [&](Communicator& world) {
    const auto ops = make_cpu_ops({});
    const auto group = world.split(world.rank() / 2, world.rank(), "shards");
    const ModelConfig config = parity_model(true);
    Model model(*ops, config, {DType::float32}, Stage::whole(config));
    for (Bucket& bucket : model.buckets()) {
      bucket.shard = group.get();
      bucket.shard_size = (bucket.size + 1) / 2;
      bucket.shard_begin = group->rank() * bucket.shard_size;
      bucket.whole_weights = whole_weights;
    }
    model.allocate();
    model.initialize(3);
    for (Bucket& bucket : model.buckets()) {
      if (whole_weights) group->all_gather(bucket.weight_shard, bucket.weights);
    }
    change(world.rank(), model.buckets()[2]);
    check_replicas(world, model, 9);
  });
  return {code, testing::internal::GetCapturedStderr()};
}

class Replicas : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(WholeWeights, Replicas, testing::Bool());

TEST_P(Replicas, ThatAreEqualPass) {
  EXPECT_EQ(checked(GetParam(), [](int, Bucket&) {}).first, 0);
}

TEST_P(Replicas, ThatDifferInOneBitAreNamed) {
  const auto [code, message] = checked(GetParam(), [](int rank, Bucket& bucket) {
    if (rank != 3) return;
    auto* bits = reinterpret_cast<std::uint32_t*>(bucket.weight_shard.as<float>());
    bits[bucket.size - bucket.shard_begin - 1] ^= 1;  // the last element of the last parameter
  });
  EXPECT_EQ(code, 1);
  const std::string& last = "model.layers.1.mlp.down_proj.weight";
  EXPECT_NE(message.find("replicas have drifted apart at step 9: " + last + " on rank 3"), std::string::npos) << message;
  EXPECT_NE(message.find(GetParam() ? "that of rank 0" : "that of rank 1"), std::string::npos) << message;
}

TEST(ReplicasInParts, AreComparedPieceByPiece) {
  // Both holders of a shard change alike: they agree, and nobody else holds it.
  EXPECT_EQ(checked(false, [](int rank, Bucket& bucket) { if (rank % 2 == 1) bucket.weight_shard.as<float>()[0] += 1; }).first, 0);
}

}  // namespace
}  // namespace escalera
