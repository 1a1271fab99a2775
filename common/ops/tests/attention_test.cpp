// Attention against softmax written as plain loops in double: both tables of CPU kernels, and CUDA where there is a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>

#include "common/cuda/cuda_backend.h"
#include "common/ops/cpu/attention.h"
#include "common/ops/cpu/attention_table.h"
#include "common/ops/cpu/kernels.h"
#include "common/ops/tests/attention_reference.h"

namespace escalera::cpu {
namespace {

// ---- calling the kernels ------------------------------------------------------------------------------------------

/// Something that computes attention on a device of its own.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual Device& device() = 0;
  virtual void forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                       const Tensor& lse) = 0;
  virtual void backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                        const Tensor& lse, const Tensor& d_out, const Tensor& dq, const Tensor& dk, const Tensor& dv) = 0;
};

class CpuEngine final : public Engine {
 public:
  explicit CpuEngine(const AttentionTable& table, int threads = 1) : table_(table), pool_(threads) {}
  Device& device() override { return device_; }
  void forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const Tensor& lse) override {
    attention_forward(table_, pool_, device_, shape, q, k, v, out, lse);
  }
  void backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                const Tensor& lse, const Tensor& d_out, const Tensor& dq, const Tensor& dk, const Tensor& dv) override {
    attention_backward(table_, pool_, device_, shape, q, k, v, out, lse, d_out, dq, dk, dv);
  }

 private:
  const AttentionTable& table_;
  ThreadPool pool_;
  HostDevice device_;
};

class CudaEngine final : public Engine {
 public:
  Device& device() override { return ops_->device(); }
  void forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
               const Tensor& lse) override {
    ops_->attention_forward(shape, q, k, v, out, lse);
  }
  void backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                const Tensor& lse, const Tensor& d_out, const Tensor& dq, const Tensor& dk, const Tensor& dv) override {
    ops_->attention_backward(shape, q, k, v, out, lse, d_out, dq, dk, dv);
  }

 private:
  std::unique_ptr<Ops> ops_ = cuda_backend().make_ops(0);
};

/// How to make an engine, and the types that it knows.
struct EngineKind {
  std::string name;
  std::vector<DType> dtypes;
  std::function<std::unique_ptr<Engine>()> make;
};

std::vector<const AttentionTable*> tables() {
  std::vector<const AttentionTable*> list = {&attention_table_base()};
  if (cpu_has_v4() && attention_table_v4()) list.push_back(attention_table_v4());
  return list;
}

std::vector<EngineKind> engines() {
  std::vector<EngineKind> list;
  for (const AttentionTable* table : tables()) {
    list.push_back({std::string("cpu_") + (table == tables().front() ? "base" : "v4"),
                    {DType::float32, DType::float64, DType::bfloat16},
                    [table] { return std::make_unique<CpuEngine>(*table); }});
  }
  if (find_cuda().backend) {
    list.push_back({"cuda", {DType::float32, DType::bfloat16}, [] { return std::make_unique<CudaEngine>(); }});
  }
  return list;
}

AttentionShape make_shape(Index batch, Index queries, Index keys, Index heads, Index kv_heads,
                          Index head_size) {
  AttentionShape shape;
  shape.batch = batch;
  shape.query_length = queries;
  shape.key_length = keys;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_size = head_size;
  shape.query_offset = keys - queries;
  return shape;
}

/// Tensors of a call, filled with normally distributed numbers; outputs are poisoned until something is written.
struct Problem {
  Problem(Engine& an_engine, const AttentionShape& attention_shape, DType type, double query_scale = 1)
      : engine(an_engine), device(engine.device()), shape(attention_shape), dtype(type) {
    device.set_poison(true);
    const Index queries = shape.batch * shape.query_length, keys = shape.batch * shape.key_length;
    const Index width = shape.heads * shape.head_size, kv_width = shape.kv_heads * shape.head_size;
    std::mt19937 generator(7);
    std::normal_distribution<double> normal;
    const auto random = [&](Index rows, Index columns, double scale) {
      Values values(static_cast<std::size_t>(rows * columns));
      for (double& value : values) value = scale * normal(generator);
      const Tensor tensor = empty(rows, columns, dtype);
      from_host(device, values, tensor);
      return tensor;
    };
    q = random(queries, width, query_scale);
    k = random(keys, kv_width, 1);
    v = random(keys, kv_width, 1);
    d_out = random(queries, width, 1);
    out = empty(queries, width, dtype);
    lse = empty(queries, shape.heads, accumulation_dtype(dtype));
    dq = empty(queries, width, dtype);
    dk = empty(keys, kv_width, dtype);
    dv = empty(keys, kv_width, dtype);
  }

  Tensor empty(Index rows, Index columns, DType type) {
    return device.empty(rows, columns, type, MemoryCategory::activations);
  }
  Values host(const Tensor& tensor) { return to_host(device, tensor); }
  void forward() { engine.forward(shape, q, k, v, out, lse); }
  void backward() { engine.backward(shape, q, k, v, out, lse, d_out, dq, dk, dv); }
  Results results() { return {host(out), host(lse), host(dq), host(dk), host(dv)}; }
  Results expected() {
    Results r;
    forward_loops(shape, host(q), host(k), host(v), r);
    backward_loops(shape, host(q), host(k), host(v), host(d_out), r);
    return r;
  }

  Engine& engine;
  Device& device;
  AttentionShape shape;
  DType dtype;
  Tensor q, k, v, d_out, out, lse, dq, dk, dv;
};

/// float32 and float64: a few hundred roundings, of which most cancel. bfloat16: results are rounded to 8 bits (2^-9 each
/// at most), and backward starts from a rounded `out`, which doubles it where gradients are small differences.
double tolerance(DType dtype) {
  return dtype == DType::float32 ? 1e-5 : dtype == DType::float64 ? 1e-12 : 2 * std::exp2(-8);
}

void expect_agreement(Problem& problem, const std::string& what) {
  problem.forward();
  problem.backward();
  EXPECT_LE(largest_error(problem.results(), problem.expected()), tolerance(problem.dtype)) << what;
}

class Attention : public testing::TestWithParam<EngineKind> {
 protected:
  const std::vector<DType>& dtypes() const { return GetParam().dtypes; }
  std::unique_ptr<Engine> own_engine = GetParam().make();
  Engine& engine = *own_engine;
};
INSTANTIATE_TEST_SUITE_P(Engines, Attention, testing::ValuesIn(engines()),
                         [](const auto& instance) { return instance.param.name; });

/// For what only the CPU can be asked: float64, or host memory.
class CpuAttention : public Attention {};
INSTANTIATE_TEST_SUITE_P(Engines, CpuAttention, testing::ValuesIn([] {
                           std::vector<EngineKind> list = engines();
                           std::erase_if(list, [](const EngineKind& kind) { return kind.name == "cuda"; });
                           return list;
                         }()),
                         [](const auto& instance) { return instance.param.name; });

// ---- tests --------------------------------------------------------------------------------------------------------

TEST_P(Attention, EveryHeadSizeAgreesWithPlainLoops) {
  for (const DType dtype : dtypes()) {
    for (const Index head_size : {1, 8, 12, 16, 20, 32, 64, 96, 128}) {
      Problem problem(engine, make_shape(1, 77, 77, 4, 2, head_size), dtype);
      expect_agreement(problem, std::string(to_string(dtype)) + " head size " + std::to_string(head_size));
    }
  }
}

TEST_P(Attention, EveryGroupingOfHeadsAgreesWithPlainLoops) {
  for (const DType dtype : dtypes()) {
    for (const auto& [heads, kv_heads] : {std::pair<Index, Index>{3, 3}, {6, 2}, {8, 1}, {5, 1}, {40, 1}}) {
      Problem problem(engine, make_shape(2, 41, 41, heads, kv_heads, 16), dtype);
      expect_agreement(problem, std::to_string(heads) + " heads on " + std::to_string(kv_heads));
    }
  }
}

TEST_P(Attention, EveryLengthAndOffsetAgreesWithPlainLoops) {
  struct Case {
    Index queries, keys, query_offset, key_offset;
    bool causal;
  };
  for (const DType dtype : dtypes()) {
    for (const Case c : {Case{1, 1, 0, 0, true}, Case{1, 300, 299, 0, true}, Case{3, 129, 126, 0, true},
                         Case{128, 64, 0, 0, true}, Case{130, 200, 70, 0, true}, Case{257, 257, 0, 0, true},
                         Case{90, 50, 0, 40, true},      // the first 40 queries see nothing
                         Case{70, 70, 0, 100, true},     // no query sees anything
                         Case{70, 130, 500, 130, true},  // an earlier piece of the sequence: all is seen
                         Case{66, 190, 0, 0, false}, Case{1, 65, 0, 0, false}}) {
      AttentionShape shape = make_shape(2, c.queries, c.keys, 4, 2, 16);
      shape.query_offset = c.query_offset;
      shape.key_offset = c.key_offset;
      shape.causal = c.causal;
      Problem problem(engine, shape, dtype);
      expect_agreement(problem, std::string(to_string(dtype)) + " queries " + std::to_string(c.queries) +
                                    " keys " + std::to_string(c.keys));
    }
  }
}

TEST_P(Attention, QueriesThatSeeNothingGetZeros) {
  for (const Index keys : {0, 30}) {
    AttentionShape shape = make_shape(1, 5, keys, 2, 1, 8);
    shape.query_offset = 0;
    shape.key_offset = 3;
    Problem problem(engine, shape, DType::float32);
    problem.forward();
    problem.backward();
    const Results r = problem.results();
    for (Index i = 0; i < (keys == 0 ? 5 : 3); ++i) {
      for (Index d = 0; d < 16; ++d) EXPECT_EQ(r.out[static_cast<std::size_t>(i * 16 + d)], 0);
      for (Index d = 0; d < 16; ++d) EXPECT_EQ(r.dq[static_cast<std::size_t>(i * 16 + d)], 0);
      for (Index h = 0; h < 2; ++h) EXPECT_EQ(r.lse[static_cast<std::size_t>(i * 2 + h)], -infinity);
    }
    for (const double value : r.dk) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST_P(CpuAttention, GradientsAgreeWithFiniteDifferences) {
  AttentionShape shape = make_shape(1, 9, 11, 4, 2, 12);
  Problem problem(engine, shape, DType::float64);
  problem.forward();
  problem.backward();
  const Values d_out = problem.host(problem.d_out);
  const auto loss = [&] {
    problem.forward();
    const Values out = problem.host(problem.out);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * d_out[i];
    return sum;
  };
  for (const auto& [tensor, gradient] :
       {std::pair{problem.q, problem.dq}, {problem.k, problem.dk}, {problem.v, problem.dv}}) {
    const Values analytic = problem.host(gradient);
    Values numeric(analytic.size());
    auto* elements = tensor.as<double>();
    // The central difference is off by about step^2, and rounding adds 1e-16 / step: both near 1e-10.
    const double step = 1e-5;
    for (std::size_t i = 0; i < numeric.size(); ++i) {
      const double before = elements[i];
      elements[i] = before + step;
      const double above = loss();
      elements[i] = before - step;
      numeric[i] = (above - loss()) / (2 * step);
      elements[i] = before;
    }
    EXPECT_LE(relative_error(analytic, numeric), 1e-8);
  }
}

TEST_P(Attention, HugeScoresStayFinite) {
  Problem problem(engine, make_shape(1, 100, 100, 2, 1, 16), DType::float32, 1000);
  const Results expected = problem.expected();
  problem.forward();
  problem.backward();
  const Results r = problem.results();
  for (const Values& values : {r.out, r.lse, r.dq, r.dk, r.dv}) {
    for (const double value : values) ASSERT_TRUE(std::isfinite(value));
  }
  // A score of 3000 in float32 is off by up to 1e-4, and its exponential in the same proportion.
  EXPECT_LE(relative_error(r.out, expected.out), 1e-3);
}

// All scores near -100: a key behind the last one that is taken for zeros, and so for a score of 0, would outweigh all others
// by e^100. Lengths are no multiples of a tile. Keys and queries share a large mean, so the gradient of a query is a small
// difference: of what is rounded to bfloat16 on the way, a few percent of it are left as noise.
TEST_P(Attention, ScoresFarBelowZeroAreNotOutweighedByPadding) {
  for (const DType dtype : dtypes()) {
    for (const Index head_size : {16, 20, 64}) {
      Problem problem(engine, make_shape(1, 41, 41, 2, 1, head_size), dtype);
      const double mean = std::sqrt(100 / std::sqrt(static_cast<double>(head_size)));
      for (const auto& [tensor, sign] : {std::pair{problem.q, 1.0}, {problem.k, -1.0}}) {
        Values values = problem.host(tensor);
        for (double& value : values) value = 0.1 * value + sign * mean;
        from_host(problem.device, values, tensor);
      }
      const Results expected = problem.expected();
      EXPECT_LT(expected.lse[0], -88);
      problem.forward();
      problem.backward();
      const double most = dtype == DType::bfloat16 ? 0.2 : dtype == DType::float32 ? 1e-4 : 1e-10;
      EXPECT_LE(largest_error(problem.results(), expected), most) << to_string(dtype) << " head size " << head_size;
    }
  }
}

TEST_P(Attention, NaNIsPassedOn) {
  Problem problem(engine, make_shape(1, 40, 40, 1, 1, 16), DType::float32);
  Values values = problem.host(problem.q);
  values[20 * 16 + 3] = std::numeric_limits<double>::quiet_NaN();
  from_host(problem.device, values, problem.q);
  problem.forward();
  const Results r = problem.results();
  EXPECT_TRUE(std::isnan(r.out[20 * 16]));
  EXPECT_TRUE(std::isnan(r.lse[20]));
  EXPECT_TRUE(std::isfinite(r.out[19 * 16]) && std::isfinite(r.out[21 * 16]));
}

TEST_P(Attention, TwoHalvesOfTheKeysMergeByTheirLse) {
  // Context parallelism: pieces of the keys are treated one at a time. For float32 the merge costs a few more roundings.
  Problem whole(engine, make_shape(1, 90, 150, 2, 1, 32), DType::float32);
  whole.forward();
  whole.backward();
  const Results expected = whole.results();
  const Index rows = whole.q.rows(), columns = whole.q.columns();
  Values merged(expected.out.size()), dq(expected.dq.size()), dk, dv;
  Results part[2];
  for (const Index half : {0, 1}) {
    AttentionShape shape = whole.shape;
    shape.key_offset = half * 75;
    shape.key_length = 75;
    const Tensor k = whole.k.slice_rows(half * 75, 75), v = whole.v.slice_rows(half * 75, 75);
    const Tensor out = whole.empty(rows, columns, DType::float32),
                 lse = whole.empty(rows, 2, DType::float32);
    engine.forward(shape, whole.q, k, v, out, lse);
    part[half].out = whole.host(out);
    part[half].lse = whole.host(lse);
    // Backward takes out and lse of all keys.
    const Tensor part_dq = whole.empty(rows, columns, DType::float32);
    engine.backward(shape, whole.q, k, v, whole.out, whole.lse, whole.d_out, part_dq,
                    whole.dk.slice_rows(half * 75, 75), whole.dv.slice_rows(half * 75, 75));
    const Values values = whole.host(part_dq);
    for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += values[i];
  }
  for (std::size_t i = 0; i < merged.size(); ++i) {
    for (const Results& one : part)
      merged[i] += one.out[i] * std::exp(one.lse[i / 32] - expected.lse[i / 32]);
  }
  EXPECT_LE(relative_error(merged, expected.out), 1e-5);
  EXPECT_LE(relative_error(dq, expected.dq), 1e-5);
  EXPECT_LE(relative_error(whole.host(whole.dk), expected.dk), 1e-5);
  EXPECT_LE(relative_error(whole.host(whole.dv), expected.dv), 1e-5);
}

Results run(Engine& engine, const AttentionShape& shape, DType dtype) {
  Problem problem(engine, shape, dtype);
  problem.forward();
  problem.backward();
  return problem.results();
}

bool same_bits(const Results& a, const Results& b) {
  return a.out == b.out && a.lse == b.lse && a.dq == b.dq && a.dk == b.dk && a.dv == b.dv;
}

TEST_P(Attention, TheSameCallTwiceGivesTheSameBits) {
  for (const DType dtype : dtypes()) {
    const AttentionShape shape = make_shape(2, 130, 163, 4, 2, 32);
    EXPECT_TRUE(same_bits(run(engine, shape, dtype), run(engine, shape, dtype))) << to_string(dtype);
  }
}

TEST(CpuAttentionThreads, BitsDoNotDependOnTheirNumber) {
  // One head: with one thread backward makes a single pass over it, with more it takes two (see attention.cpp).
  for (const Index batch : {1, 3}) {
    for (const AttentionTable* table : tables()) {
      for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
        const AttentionShape shape = make_shape(batch, 300, 333, 2, 1, 32);
        CpuEngine one(*table, 1);
        const Results expected = run(one, shape, dtype);
        for (const int threads : {2, 3}) {
          CpuEngine many(*table, threads);
          EXPECT_TRUE(same_bits(run(many, shape, dtype), expected))
              << threads << " threads, " << table->name << ", " << to_string(dtype);
        }
      }
    }
  }
}

TEST_P(Attention, ScratchGrowsWithTheLengthAndNotWithItsSquare) {
  const auto scratch = [&](Index length) {
    const std::unique_ptr<Engine> fresh = GetParam().make();
    Problem problem(*fresh, make_shape(1, length, length, 1, 1, 16), DType::float32);
    problem.forward();
    const Index forward = problem.device.memory().peak(MemoryCategory::workspace);
    problem.backward();
    return std::pair{forward, problem.device.memory().peak(MemoryCategory::workspace)};
  };
  const auto [forward_short, backward_short] = scratch(512);
  const auto [forward_long, backward_long] = scratch(1024);
  EXPECT_EQ(forward_long, forward_short);
  EXPECT_LE(backward_long - backward_short, 512 * 2 * 16 * 4);  // dk and dv of the 512 new keys
}

TEST_P(Attention, TheseTestsWouldNoticeAMaskThatIsOffByOne) {
  for (const DType dtype : dtypes()) {
    for (const int fault : {-1, 1}) {
      Problem problem(engine, make_shape(1, 257, 257, 2, 1, 32), dtype);
      const Results expected = problem.expected();
      problem.shape.query_offset += fault;
      problem.forward();
      EXPECT_GT(relative_error(problem.results().out, expected.out), 5 * tolerance(dtype));
    }
  }
}

TEST_P(Attention, TensorsThatDoNotFitTheShapeAreRefused) {
  Problem problem(engine, make_shape(1, 8, 8, 4, 2, 8), DType::float32);
  problem.shape.head_size = 16;
  EXPECT_THROW(problem.forward(), Error);
  problem.shape.head_size = 8;
  problem.shape.kv_heads = 3;
  EXPECT_THROW(problem.forward(), Error);
}

}  // namespace
}  // namespace escalera::cpu
