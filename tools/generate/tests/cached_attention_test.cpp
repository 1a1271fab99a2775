// Generation with a key/value cache computes what full passes over the text compute.
#include "tools/generate/cached_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "common/model/model.h"
#include "tests/support/temporary_directory.h"
#include "tools/generate/generation.h"

namespace escalera {
namespace {

/// Sizes of which no two are equal, with three query heads to each key/value head.
ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 61;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 64;
  config.initializer_range = 0.2;  // large enough for attention that is far from uniform
  return config;
}

const std::vector<std::int32_t> text = {5, 17, 60, 3, 3, 42, 0, 9, 31, 8, 17, 5, 55, 20, 1, 7, 2, 60, 44, 13};

std::unique_ptr<Ops> one_thread() {
  CpuSettings settings;
  settings.threads = 1;
  return make_cpu_ops(settings);
}

/// A model with the default attention and one with a cache, of the same weights.
struct Pair {
  std::unique_ptr<Ops> ops = one_thread();
  ModelConfig config;
  CachedAttention cache;
  Model full, cached;

  Pair(const ModelConfig& config_, DType dtype, Index capacity = 64)
      : config(config_),
        cache(poisoned(*ops), config, dtype, capacity),
        full(*ops, config, {dtype}, Stage::whole(config)),
        cached(*ops, config, {dtype}, Stage::whole(config), with_attention(cache)) {
    for (Model* model : {&full, &cached}) {
      model->allocate();
      model->initialize(11);
    }
  }
  static Seams with_attention(AttentionCore& attention) {
    Seams seams;
    seams.attention = &attention;
    return seams;
  }
  /// NaN in the unused part of the cache: whoever reads it is found.
  static Ops& poisoned(Ops& ops) {
    ops.device().set_poison(true);
    return ops;
  }

  /// Logits after the first `length` tokens of the text, from one pass over all of them.
  std::vector<double> reference(Index length) {
    return to_host(ops->device(),
                   full.next_token_logits(std::span(text).first(static_cast<std::size_t>(length)),
                                          full.attention().positions(length)));
  }
  /// Logits after tokens [begin, begin + count), the earlier ones being in the cache.
  std::vector<double> step(Index begin, Index count, const std::vector<std::int32_t>& positions) {
    return to_host(ops->device(),
                   cached.next_token_logits(std::span(text).subspan(static_cast<std::size_t>(begin),
                                                                    static_cast<std::size_t>(count)),
                                            positions));
  }
  std::vector<double> step(Index begin, Index count) { return step(begin, count, cache.positions(count)); }
};

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); i++) {
    if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);  // a NaN stays
  }
  return largest;
}

/// Rounding in float64 with logits of the size of 10; the order of the sums is all that differs.
constexpr double tolerance = 1e-12;

void compare_everywhere(const ModelConfig& config) {
  const auto length = static_cast<Index>(text.size());
  for (const Index prompt : {1, 2, 7, 19}) {
    Pair pair(config, DType::float64);
    EXPECT_LE(difference(pair.step(0, prompt), pair.reference(prompt)), tolerance) << "prompt of " << prompt;
    for (Index next = prompt; next < length; next++) {
      EXPECT_LE(difference(pair.step(next, 1), pair.reference(next + 1)), tolerance)
          << "prompt of " << prompt << ", token " << next;
    }
    EXPECT_EQ(pair.cache.length(), length);
  }
}

TEST(CachedAttention, LogitsAreThoseOfTheFullPassAtEveryPosition) {
  compare_everywhere(small_config());
}

TEST(CachedAttention, AlsoWithoutGroupsWithTiedHeadAndWiderHeads) {
  ModelConfig config = small_config();
  config.num_key_value_heads = 6;
  config.tie_word_embeddings = true;
  config.head_dim = 10;
  compare_everywhere(config);
}

TEST(CachedAttention, AlsoWithOneKeyValueHead) {
  ModelConfig config = small_config();
  config.num_key_value_heads = 1;
  compare_everywhere(config);
}

TEST(CachedAttention, ATextMayArriveInPiecesOfAnySize) {
  Pair pair(small_config(), DType::float64);
  Index begin = 0;
  for (const Index count : {3, 1, 9, 2, 5}) {
    EXPECT_LE(difference(pair.step(begin, count), pair.reference(begin + count)), tolerance)
        << begin << " + " << count;
    begin += count;
  }
}

TEST(CachedAttention, TruncatingGoesBack) {
  Pair pair(small_config(), DType::float64);
  pair.step(0, 12);
  pair.cache.truncate(4);
  EXPECT_LE(difference(pair.step(4, 3), pair.reference(7)), tolerance);
}

TEST(CachedAttention, OtherTypesAgreeToTheirRounding) {
  // float32: sums of a few dozen terms at 6e-8 each; bfloat16: every activation is rounded to 2^-9.
  for (const auto& [dtype, bound] : {std::pair{DType::float32, 1e-4}, std::pair{DType::bfloat16, 0.3}}) {
    Pair pair(small_config(), dtype);
    pair.step(0, 5);
    for (Index next = 5; next < 12; next++) {
      EXPECT_LE(difference(pair.step(next, 1), pair.reference(next + 1)), bound) << to_string(dtype);
    }
  }
}

// ---- What the comparison above would notice -------------------------------------------------------------------------

TEST(CachedAttention, AStalePositionIsNoticed) {
  Pair pair(small_config(), DType::float64);
  pair.step(0, 5);
  const std::vector<std::int32_t> stale = {4};  // the position of the token before
  EXPECT_GT(difference(pair.step(5, 1, stale), pair.reference(6)), 1e6 * tolerance);
}

TEST(CachedAttention, AForgottenTokenIsNoticed) {
  Pair pair(small_config(), DType::float64);
  pair.step(0, 5);
  pair.cache.truncate(4);
  const std::vector<std::int32_t> right = {5};
  EXPECT_GT(difference(pair.step(5, 1, right), pair.reference(6)), 1e6 * tolerance);
}

// ---- Limits ---------------------------------------------------------------------------------------------------------

TEST(CachedAttention, TokensThatDoNotFitAreRefusedAndLeaveTheCacheAsItWas) {
  Pair pair(small_config(), DType::float64, 6);
  pair.step(0, 4);
  const std::string message = message_of([&] { pair.step(4, 3, {4, 5, 6}); });
  EXPECT_NE(message.find("room for 6 tokens; 4 are in it and 3 more"), std::string::npos) << message;
  EXPECT_LE(difference(pair.step(4, 2), pair.reference(6)), tolerance);
}

TEST(CachedAttention, ItHasNoBackward) {
  Pair pair(small_config(), DType::float64);
  AttentionCore::State nothing;
  EXPECT_NE(message_of([&] { pair.cache.backward(nothing, {}, {}, {}, {}); }).find("no backward"),
            std::string::npos);
}

// ---- The loop of generation -----------------------------------------------------------------------------------------

std::vector<std::int32_t> continuation(const SamplerSettings& settings, Index prompt, Index count) {
  Pair pair(small_config(), DType::float64, prompt + count - 1);
  Sampler sampler(settings);
  std::vector<std::int32_t> result;
  generate(pair.cached, pair.cache, std::span(text).first(static_cast<std::size_t>(prompt)), count, sampler,
           WhenFull::refuse, [&](std::int32_t token) { result.push_back(token); });
  EXPECT_EQ(pair.cache.length(), prompt + count - 1);
  return result;
}

TEST(Generate, GreedyTextIsTheArgmaxOfFullPasses) {
  const std::vector<std::int32_t> got = continuation({.temperature = 0}, 4, 12);
  Pair pair(small_config(), DType::float64);
  std::vector<std::int32_t> all(text.begin(), text.begin() + 4);
  for (const std::int32_t token : got) {
    const auto length = static_cast<Index>(all.size());
    const std::vector<double> logits = to_host(
        pair.ops->device(), pair.full.next_token_logits(all, pair.full.attention().positions(length)));
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    all.push_back(token);
  }
}

TEST(Generate, TheSameSeedGivesTheSameText) {
  EXPECT_EQ(continuation({.temperature = 0}, 1, 20), continuation({.temperature = 0, .seed = 9}, 1, 20));
  EXPECT_EQ(continuation({.seed = 9}, 1, 20), continuation({.seed = 9}, 1, 20));
  EXPECT_NE(continuation({.seed = 9}, 1, 20), continuation({.seed = 10}, 1, 20));
}

TEST(Generate, SlidingReadsTheLaterHalfAgain) {
  constexpr Index capacity = 8;
  for (const std::size_t prompt : {3, 8, 15}) {  // the last is longer than the cache
    Pair pair(small_config(), DType::float64, capacity);
    Sampler sampler({.temperature = 0});
    std::vector<std::int32_t> got;
    generate(pair.cached, pair.cache, std::span(text).first(prompt), 30, sampler, WhenFull::slide,
             [&](std::int32_t token) { got.push_back(token); });

    // The same by full passes over what the model is to see.
    std::vector<std::int32_t> all(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt));
    Index begin = 0;
    for (const std::int32_t token : got) {
      const auto length = static_cast<Index>(all.size());
      if (length - begin > capacity) begin = length - capacity / 2;
      const std::vector<double> logits =
          to_host(pair.ops->device(),
                  pair.full.next_token_logits(std::span(all).subspan(static_cast<std::size_t>(begin)),
                                              pair.full.attention().positions(length - begin)));
      ASSERT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin())
          << "prompt of " << prompt;
      all.push_back(token);
    }
  }
}

TEST(Generate, WhatDoesNotFitIsRefusedBeforeTheFirstToken) {
  Pair pair(small_config(), DType::float64, 8);
  Sampler sampler({});
  int emitted = 0;
  const auto run = [&](Index count) {
    generate(pair.cached, pair.cache, std::span(text).first(5), count, sampler, WhenFull::refuse,
             [&](std::int32_t) { emitted++; });
  };
  EXPECT_NE(message_of([&] { run(5); }).find("do not fit"), std::string::npos);
  EXPECT_EQ(emitted, 0);
  run(4);
  EXPECT_EQ(emitted, 4);
  EXPECT_NE(message_of([&] { run(1); }).find("empty cache"), std::string::npos);
}

}  // namespace
}  // namespace escalera
