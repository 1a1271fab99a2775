// Whatever a rank holds of a parameter, what is put together is what one rank would hold.
#include "common/checkpoint/whole_tensors.h"

#include <gtest/gtest.h>

#include <map>

#include "common/checkpoint/model_folder.h"
#include "common/checkpoint/safetensors.h"
#include "common/comm/launch.h"
#include "tests/support/temporary_directory.h"

namespace escalera {
namespace {

/// Sizes of which no two are equal; 61 rows do not divide.
ModelConfig odd_model() {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  return config;
}

/// Slices as a tensor region of two ranks would have them, the vocabulary padded, without any communication.
class HalfRegion final : public TensorRegion {
 public:
  HalfRegion(Ops& ops, int half) : TensorRegion(ops), half_(half) {}
  Slice split(Index size) const override { return {half_ * size / 2, size / 2, size / 2}; }
  Slice kv_heads(Index heads) const override { return split(heads); }
  Slice vocabulary(Index size) const override {
    const Index padded = (size + 1) / 2;
    return {half_ * padded, std::min(padded, size - half_ * padded), padded};
  }

 private:
  int half_;
};

/// Cuts the buckets of a model for rank `rank` of `group`.
void shard(Model& model, Communicator& group, bool whole_weights) {
  for (Bucket& bucket : model.buckets()) {
    bucket.shard = &group;
    bucket.shard_size = (bucket.size + group.size() - 1) / group.size();
    bucket.shard_begin = group.rank() * bucket.shard_size;
    bucket.whole_weights = bucket.whole_gradients = whole_weights;
  }
}

using Values = std::map<std::string, std::vector<double>>;

/// The weights of `world` = shards x halves, the halves being neighbours, put together on rank 0.
Values collected(Communicator& world, int halves, DType dtype, bool whole_weights, const std::string& folder = "") {
  const auto ops = make_cpu_ops({});
  const auto group = world.split(world.rank() % halves, world.rank(), "shards");
  HalfRegion region(*ops, world.rank() % halves);
  const ModelConfig config = odd_model();
  Model model(*ops, config, {dtype}, Stage::whole(config), {.region = halves == 2 ? &region : nullptr});
  shard(model, *group, whole_weights);
  model.allocate();
  if (folder.empty()) {
    model.initialize(7);
  } else {
    load_weights(model, folder);
  }
  Values all;
  WholeTensors(world, model).collect(Held::weights, [&](const Parameter& parameter, std::span<const std::byte> values) {
    all[parameter.name] = decode_values(values, dtype);
  });
  return all;
}

Values collected_on(int ranks, int halves, DType dtype, bool whole_weights, const std::string& folder = "") {
  Values values;
  EXPECT_EQ(launch({CommKind::threads, ranks},
                   [&](Communicator& world) {
                     Values mine = collected(world, halves, dtype, whole_weights, folder);
                     if (world.rank() == 0) values = std::move(mine);
                   }),
            0);
  return values;
}

class PutTogether : public testing::TestWithParam<std::tuple<int, int, DType, bool>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, PutTogether,
                         testing::Combine(testing::Values(1, 3, 7), testing::Values(1, 2),
                                          testing::Values(DType::float32, DType::bfloat16), testing::Bool()));

TEST_P(PutTogether, WeightsOfShardsAndSlicesAreThoseOfOneRank) {
  const auto [shards, halves, dtype, whole_weights] = GetParam();
  const Values one = collected_on(1, 1, dtype, true);
  ASSERT_EQ(one.size(), 30U);
  EXPECT_EQ(collected_on(shards * halves, halves, dtype, whole_weights), one);
}

TEST(WholeTensors, AFolderIsReadIntoShardsAndSlices) {
  const TemporaryDirectory directory;
  const std::string folder = directory / "model";
  launch({CommKind::threads, 2}, [&](Communicator& world) {
    const auto ops = make_cpu_ops({});
    Model model(*ops, odd_model(), {DType::float32}, Stage::whole(odd_model()));
    shard(model, world, false);
    model.allocate();
    model.initialize(11);
    save_folder(world, model, folder);
  });
  const Values one = collected_on(1, 1, DType::float32, true, folder);
  EXPECT_NE(one, collected_on(1, 1, DType::float32, true));
  EXPECT_EQ(collected_on(6, 2, DType::float32, false, folder), one);
  EXPECT_EQ(collected_on(5, 1, DType::bfloat16, true, folder), collected_on(1, 1, DType::bfloat16, true, folder));
}

TEST(WholeTensors, ElementsThatNoRankHoldsAreNoticed) {
  testing::internal::CaptureStderr();
  const int code = launch({CommKind::threads, 2}, [&](Communicator& world) {
    const auto ops = make_cpu_ops({});
    Model model(*ops, odd_model(), {DType::float32}, Stage::whole(odd_model()));
    shard(model, world, false);
    if (world.rank() == 1) model.buckets().front().shard_begin += 1;  // off by one
    model.allocate();
    WholeTensors whole(world, model);
  });
  EXPECT_EQ(code, 1);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("model.embed_tokens.weight has 2928 elements, but the ranks hold 2927"),
            std::string::npos);
}

TEST(WholeTensors, AFailureOnRank0DoesNotHoldUpTheOthers) {
  std::vector<int> done(3, 0);
  launch({CommKind::threads, 3}, [&](Communicator& world) {
    const auto ops = make_cpu_ops({});
    Model model(*ops, odd_model(), {DType::float32}, Stage::whole(odd_model()));
    shard(model, world, false);
    model.allocate();
    bool failed = false;
    try {
      WholeTensors(world, model).collect(Held::gradients, [](const Parameter&, std::span<const std::byte>) { fail("no room"); });
    } catch (const Error& error) {
      failed = std::string(error.what()) == "no room";
    }
    EXPECT_EQ(failed, world.rank() == 0);
    done[static_cast<std::size_t>(world.rank())] = 1;
  });
  EXPECT_EQ(done, std::vector<int>(3, 1));
}

TEST(Parameter, StretchesAreTheRunsOfGlobalIndices) {
  using Split = Parameter::Split;
  for (const Split split : {Split::none, Split::rows, Split::columns}) {
    Parameter parameter{"p", 7, 5, split, {2, 2, 3}, {}};  // a slice of two, padded to three
    if (split == Split::none) parameter.slice = {0, 5, 5};
    for (Index begin = 0; begin <= parameter.local_size(); begin++) {
      for (Index end = begin; end <= parameter.local_size(); end++) {
        std::vector<Index> got(static_cast<std::size_t>(parameter.local_size()), -1);
        parameter.for_each_stretch({begin, end}, [&](Index local, Index global, Index count) {
          EXPECT_GT(count, 0);
          for (Index i = 0; i < count; i++) got.at(static_cast<std::size_t>(local + i)) = global + i;
        });
        for (Index local = 0; local < parameter.local_size(); local++) {
          const bool inside = begin <= local && local < end;
          ASSERT_EQ(got[static_cast<std::size_t>(local)], inside ? parameter.global_index(local) : -1)
              << begin << " " << end << " at " << local;
        }
      }
    }
  }
}

}  // namespace
}  // namespace escalera
