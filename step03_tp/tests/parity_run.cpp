#include "step03_tp/tests/parity_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "common/comm/launch.h"
#include "common/comm/process_mesh.h"
#include "common/train/gradient_sums.h"
#include "common/train/options.h"
#include "tests/support/pairwise.h"

namespace escalera {
namespace {

bool is_norm(const Parameter& parameter) {
  return !parameter.decay;
}

bool is_key_or_value(const Parameter& parameter) {
  return parameter.name.find("k_proj") != std::string::npos ||
         parameter.name.find("v_proj") != std::string::npos;
}

/// Changes the records that say which gradients are summed and counted.
void plant(Fault fault, Model& model, Communicator& tp) {
  for (Bucket& bucket : model.buckets()) {
    for (Parameter& parameter : bucket.parameters) {
      if (is_norm(parameter)) {
        if (fault == Fault::norm_not_summed) parameter.slice.sum = nullptr;
        if (fault == Fault::norm_summed) parameter.slice.sum = &tp;
        if (fault == Fault::replicated_counted) parameter.slice.counted = true;
      }
      if (fault == Fault::kv_not_summed && is_key_or_value(parameter)) parameter.slice.sum = nullptr;
    }
  }
}

/// While the head works, takes padded rows of the vocabulary for real ones.
class PaddingInSoftmax final : public UnitHooks {
 public:
  explicit PaddingInSoftmax(bool on) : on_(on) {}
  void before_forward(Unit& unit) override { change(unit, true); }
  void after_forward(Unit& unit) override { change(unit, false); }

 private:
  void change(Unit& unit, bool wrong) {
    if (!on_ || unit.name() != "lm_head") return;
    for (Bucket* bucket : unit.uses()) {
      for (Parameter& parameter : bucket->parameters) {
        if (parameter.rows < 50 || is_norm(parameter)) continue;
        if (wrong) real_ = parameter.slice.size;
        parameter.slice.size = wrong ? parameter.slice.padded : real_;
      }
    }
  }
  bool on_;
  Index real_ = 0;
};

}  // namespace

ModelConfig tp_model(const TpCase& test) {
  ModelConfig config;
  config.vocab_size = test.vocabulary;
  config.hidden_size = 40;
  config.head_dim = 6;
  config.intermediate_size = 72;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 8;
  config.num_key_value_heads = test.kv_heads;
  config.max_position_embeddings = 32;
  config.initializer_range = 0.15;  // large enough that attention is far from uniform
  config.tie_word_embeddings = test.tied;
  return config;
}

RunRecord run_case(Communicator& world, const TpCase& test, Trace* trace) {
  const std::unique_ptr<Ops> ops = make_cpu_ops({});
  return run_case(world, world, *ops, test, trace);
}

RunRecord run_case(Communicator& world, Communicator& tensors, Ops& ops, const TpCase& test, Trace* trace) {
  ops.device().set_poison(true);
  const ModelConfig config = tp_model(test);
  MeshSizes sizes;
  sizes.tp = test.tp;
  sizes.dp = test.dp;
  ProcessMesh mesh(tensors, sizes);
  TensorParallel region(ops, mesh.tp(), config, {test.sequence_parallel, test.overlap, true});
  region.set_trace(trace);
  PaddingInSoftmax hooks(test.fault == Fault::padding_in_softmax);
  Model model(ops, config, {test.dtype, test.recompute, 0}, Stage::whole(config),
              {.hooks = &hooks, .region = &region});
  for (Bucket& bucket : model.buckets()) bucket.replicas = &mesh.dp();
  plant(test.fault, model, mesh.tp());
  model.set_trace(trace);
  model.allocate();
  initialize_rounded(model, parity_seed, test.rounding);
  return run_parity(model, {.world = world,
                            .parts = test.dp,
                            .part = mesh.dp().rank(),
                            .accumulation = test.accumulation,
                            .sequences = test.sequences(),
                            .reduce = [&] { sum_gradients(model.buckets()); },
                            .sum_loss = [&](double loss) { return world.sum(loss); },
                            .sum_squares = [&](double squares) { return mesh.tp().sum(squares); }});
}

RunRecord run_on_threads(const TpCase& test) {
  RunRecord record;
  const int code = launch({CommKind::threads, test.ranks()}, [&](Communicator& world) {
    RunRecord mine = run_case(world, test);
    if (world.rank() == 0) record = std::move(mine);
  });
  EXPECT_EQ(code, 0);
  return record;
}

void on_ranks(int ranks, const std::function<void(Communicator& world, Ops& ops)>& body) {
  const int code = launch({CommKind::threads, ranks}, [&](Communicator& world) {
    const std::unique_ptr<Ops> ops = make_cpu_ops({});
    ops->device().set_poison(true);
    body(world, *ops);
  });
  EXPECT_EQ(code, 0);
}

std::string name_of(const TpCase& test) {
  return fmt::format("tp{}_dp{}{}{}_{}_kv{}_v{}_{}_accumulation{}_{}", test.tp, test.dp,
                     test.sequence_parallel ? "_sp" : "", test.overlap ? "_overlap" : "",
                     test.tied ? "tied" : "untied", test.kv_heads, test.vocabulary, to_string(test.recompute),
                     test.accumulation, to_string(test.dtype));
}

void expect_parity(const RunRecord& record, const TpCase& test) {
  expect_parity(record, tp_model(test), test.dtype, test.rounding, test.sequences());
}

// ---- Which cases ----------------------------------------------------------------------------------------------------

namespace {

// tp, dp, sequence parallel, overlap, tied, kv heads, vocabulary, recompute, accumulation
using Choices = std::array<int, 9>;
constexpr Choices choice_counts = {3, 2, 2, 2, 2, 3, 3, 3, 2};

TpCase case_of(const Choices& choice) {
  TpCase test;
  test.tp = 2 << choice[0];
  test.dp = 1 + choice[1];
  test.sequence_parallel = choice[2] == 1;
  test.overlap = choice[3] == 1;
  test.tied = choice[4] == 1;
  test.kv_heads = std::array{1, 2, 8}[static_cast<std::size_t>(choice[5])];
  test.vocabulary = std::array{256, 257, 50257}[static_cast<std::size_t>(choice[6])];
  test.recompute =
      std::array{Recompute::none, Recompute::selective, Recompute::full}[static_cast<std::size_t>(choice[7])];
  test.accumulation = choice[8] == 0 ? 1 : 4;
  return test;
}

std::vector<Choices> all_choices() {
  std::vector<Choices> all = {{}};
  for (std::size_t i = 0; i < choice_counts.size(); i++) {
    std::vector<Choices> longer;
    for (Choices choice : all) {
      for (choice[i] = 0; choice[i] < choice_counts[i]; choice[i]++) longer.push_back(choice);
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace

std::vector<TpCase> tp_cases() {
  std::vector<TpCase> cases;
  for (const Choices& choice : all_choices()) {
    // The last three settings change with the others instead of being crossed with them.
    const int sum = choice[0] + choice[2] + choice[3] + choice[4] + choice[5] + choice[6];
    if (choice[1] == sum % 2 && choice[7] == sum % 3 && choice[8] == sum / 2 % 2)
      cases.push_back(case_of(choice));
  }
  return cases;
}

std::vector<TpCase> pairwise_tp_cases(std::optional<int> ranks) {
  std::vector<Choices> candidates = all_choices();
  std::erase_if(candidates, [&](const Choices& choice) { return ranks && case_of(choice).ranks() != *ranks; });
  std::vector<TpCase> cases;
  for (const Choices& choice : pairwise(candidates, [](const Choices& choice) {
         return std::vector<long>(choice.begin(), choice.end());
       })) {
    cases.push_back(case_of(choice));
  }
  return cases;
}

}  // namespace escalera
