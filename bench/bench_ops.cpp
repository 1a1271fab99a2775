// How fast single operations of the CPU backend are: matrix products of the transformer's shapes, the element-wise operations,
// and attention beside a naive form. GFLOP/s or GB/s stand in the last columns.
//
//   build/cpu/bin/bench_ops --benchmark_filter=linear
//
// ESCALERA_THREADS=n sets the number of threads (default 2).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "common/ops/ops.h"
#include "common/ops/rope_table.h"

namespace escalera {
namespace {

int threads() {
  const char* text = std::getenv("ESCALERA_THREADS");
  return text ? std::atoi(text) : 2;
}

/// One backend for all benchmarks, so that prepared kernels and memory are warm.
Ops& ops() {
  static const std::unique_ptr<Ops> instance = make_cpu_ops({.threads = threads()});
  return *instance;
}

Tensor filled(Index rows, Index columns, DType dtype) {
  const Tensor tensor = ops().device().empty(rows, columns, dtype, MemoryCategory::activations);
  std::vector<double> values(static_cast<std::size_t>(tensor.size()));
  for (std::size_t i = 0; i < values.size(); i++) values[i] = std::sin(static_cast<double>(i));
  from_host(ops().device(), values, tensor);
  return tensor;
}

void count(benchmark::State& state, const char* unit, double per_iteration) {
  state.counters[unit] =
      benchmark::Counter(per_iteration / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

// ---- matrix products ----------------------------------------------------------------------------------------------------

enum class Pass { forward, input, weight };

struct Layer {
  const char* name;
  Index in, out;
};
constexpr Layer layers[] = {{"qkv", 256, 512},    {"attention_output", 256, 256}, {"gate_up", 256, 1376},
                            {"down", 688, 256},   {"head_256", 256, 256},         {"head_8192", 256, 8192}};
constexpr Index tokens = 2048;

void linear(benchmark::State& state, const Layer& layer, Pass pass, DType dtype) {
  const Tensor x = filled(tokens, layer.in, dtype), w = filled(layer.out, layer.in, dtype);
  const Tensor y = filled(tokens, layer.out, dtype), dx = filled(tokens, layer.in, dtype);
  const Tensor dw = filled(layer.out, layer.in, accumulation_dtype(dtype));
  const auto run = [&] {
    switch (pass) {
      case Pass::forward: return ops().linear_forward(x, w, y);
      case Pass::input: return ops().linear_backward_input(y, w, dx);
      case Pass::weight: return ops().linear_backward_weight(y, x, dw);
    }
  };
  run();  // the first call of its kind generates machine code, which takes up to 50 ms
  for (auto _ : state) run();
  count(state, "GFLOP/s", 2.0 * static_cast<double>(tokens * layer.in * layer.out));
}

// ---- element-wise: bytes that must move at least ------------------------------------------------------------------------

void norm_forward(benchmark::State& state, DType dtype) {
  const Index columns = state.range(0);
  const Tensor x = filled(tokens, columns, dtype), delta = filled(tokens, columns, dtype), w = filled(1, columns, dtype);
  const Tensor sum = filled(tokens, columns, dtype), y = filled(tokens, columns, dtype);
  const Tensor rstd = filled(1, tokens, accumulation_dtype(dtype));
  for (auto _ : state) ops().add_rms_norm_forward(x, delta, w, 1e-5, sum, y, rstd);
  count(state, "GB/s", static_cast<double>(4 * x.bytes()));
}

void norm_backward(benchmark::State& state, DType dtype) {
  const Index columns = state.range(0);
  const Tensor x = filled(tokens, columns, dtype), dy = filled(tokens, columns, dtype), w = filled(1, columns, dtype);
  const Tensor dx = filled(tokens, columns, dtype), dw = filled(1, columns, accumulation_dtype(dtype));
  const Tensor rstd = filled(1, tokens, accumulation_dtype(dtype)), residual = filled(tokens, columns, dtype);
  for (auto _ : state) ops().rms_norm_backward(dy, x, rstd, w, residual, dx, dw);
  count(state, "GB/s", static_cast<double>(4 * x.bytes()));
}

void swiglu_forward(benchmark::State& state, DType dtype) {
  const Tensor gate_up = filled(tokens, 2 * state.range(0), dtype), y = filled(tokens, state.range(0), dtype);
  for (auto _ : state) ops().swiglu_forward(gate_up, y);
  count(state, "GB/s", static_cast<double>(gate_up.bytes() + y.bytes()));
}

void swiglu_backward(benchmark::State& state, DType dtype) {
  const Tensor gate_up = filled(tokens, 2 * state.range(0), dtype), y = filled(tokens, state.range(0), dtype);
  const Tensor dy = filled(tokens, state.range(0), dtype), gradient = filled(tokens, 2 * state.range(0), dtype);
  for (auto _ : state) ops().swiglu_backward(gate_up, dy, gradient, y);
  count(state, "GB/s", static_cast<double>(2 * gate_up.bytes() + 2 * y.bytes()));
}

void rope(benchmark::State& state, DType dtype) {
  const Index heads = 8, kv_heads = 4, size = state.range(0);
  const Tensor table = make_rope_table(ops().device(), 256, size, 10000, accumulation_dtype(dtype));
  std::vector<std::int32_t> positions(256);
  std::iota(positions.begin(), positions.end(), 0);
  const Tensor qkv = filled(tokens, (heads + 2 * kv_heads) * size, dtype), q = filled(tokens, heads * size, dtype);
  const Tensor k = filled(tokens, kv_heads * size, dtype), v = filled(tokens, kv_heads * size, dtype);
  for (auto _ : state) ops().rope_split_forward(qkv, table, positions, size, q, k, v);
  count(state, "GB/s", static_cast<double>(2 * qkv.bytes()));
}

void cross_entropy(benchmark::State& state, DType dtype) {
  const Index vocabulary = state.range(0);
  const Tensor logits = filled(tokens, vocabulary, dtype), row_max = filled(1, tokens, accumulation_dtype(dtype));
  const Tensor sums = filled(2, tokens, accumulation_dtype(dtype));
  const Tensor loss = ops().device().zeros(1, 1, DType::float64, MemoryCategory::workspace);
  const std::vector<std::int32_t> targets(static_cast<std::size_t>(tokens), 3);
  for (auto _ : state) {
    ops().cross_entropy_row_max(logits, vocabulary, row_max);
    ops().cross_entropy_row_sums(logits, vocabulary, targets, 0, row_max, sums);
    ops().cross_entropy_backward(logits, vocabulary, targets, 0, row_max, sums, 1e-3, 1, loss);
  }
  count(state, "GB/s", static_cast<double>(4 * logits.bytes()));
}

void adamw(benchmark::State& state, DType dtype) {
  const Index size = state.range(0);
  const DType wide = accumulation_dtype(dtype);
  const Tensor master = filled(1, size, wide), gradient = filled(1, size, wide), first = filled(1, size, wide);
  const Tensor second = ops().device().zeros(1, size, wide, MemoryCategory::optimizer);
  const Tensor weights = dtype == wide ? Tensor() : filled(1, size, dtype);
  for (auto _ : state) ops().adamw(master, gradient, first, second, weights, {.learning_rate = 1e-3});
  count(state, "GB/s", static_cast<double>(7 * master.bytes() + weights.bytes()));
}

void squared_norm(benchmark::State& state, DType dtype) {
  const Tensor x = filled(1, state.range(0), dtype);
  const Tensor sum = ops().device().zeros(1, 1, DType::float64, MemoryCategory::workspace);
  for (auto _ : state) ops().squared_norm(x, sum);
  count(state, "GB/s", static_cast<double>(x.bytes()));
}

// ---- attention: 2 * 2 operations per visible pair and column of a head, 5 * 2 in backward ---------------------------------

struct AttentionProblem {
  AttentionShape shape;
  Tensor q, k, v, out, lse, d_out, dq, dk, dv;
  double forward_operations;

  AttentionProblem(Index length, DType dtype) {
    shape = {.batch = 2048 / length > 0 ? 2048 / length : 1, .query_length = length, .key_length = length, .heads = 8,
             .kv_heads = 4, .head_size = 32};
    const Index rows = shape.batch * length, query = shape.heads * shape.head_size, key = shape.kv_heads * shape.head_size;
    q = filled(rows, query, dtype), k = filled(rows, key, dtype), v = filled(rows, key, dtype);
    out = filled(rows, query, dtype), lse = filled(rows, shape.heads, accumulation_dtype(dtype));
    d_out = filled(rows, query, dtype), dq = filled(rows, query, dtype), dk = filled(rows, key, dtype);
    dv = filled(rows, key, dtype);
    forward_operations = 4.0 * static_cast<double>(rows * query) * static_cast<double>(length + 1) / 2;
  }
};

void attention_forward(benchmark::State& state, DType dtype) {
  const AttentionProblem p(state.range(0), dtype);
  for (auto _ : state) ops().attention_forward(p.shape, p.q, p.k, p.v, p.out, p.lse);
  count(state, "GFLOP/s", p.forward_operations);
}

void attention_backward(benchmark::State& state, DType dtype) {
  const AttentionProblem p(state.range(0), dtype);
  ops().attention_forward(p.shape, p.q, p.k, p.v, p.out, p.lse);
  for (auto _ : state) {
    ops().attention_backward(p.shape, p.q, p.k, p.v, p.out, p.lse, p.d_out, p.dq, p.dk, p.dv);
  }
  count(state, "GFLOP/s", 2.5 * p.forward_operations);
}

/// What attention is without blocks: for each head all scores [length, length] at once, with the same fast matrix products,
/// then softmax row by row, then the product with v. The mask hides half of the scores after they were computed.
void attention_naive(benchmark::State& state) {
  const AttentionProblem p(state.range(0), DType::float32);
  const Index length = p.shape.query_length, size = p.shape.head_size;
  const auto head = [&] { return filled(length, size, DType::float32); };
  const Tensor q = head(), k = head(), v_transposed = filled(size, length, DType::float32), out = head();
  const Tensor scores = filled(length, length, DType::float32);
  const float factor = 1 / std::sqrt(static_cast<float>(size));
  for (auto _ : state) {
    for (Index pair = 0; pair < p.shape.batch * p.shape.heads; pair++) {
      ops().linear_forward(q, k, scores);
      float* row = scores.as<float>();
      for (Index i = 0; i < length; i++, row += length) {
        float largest = row[0], sum = 0;
        for (Index j = 0; j <= i; j++) largest = std::max(largest, row[j]);
        for (Index j = 0; j <= i; j++) sum += row[j] = std::exp((row[j] - largest) * factor);
        for (Index j = 0; j < length; j++) row[j] = j <= i ? row[j] / sum : 0;
      }
      ops().linear_forward(scores, v_transposed, out);
    }
  }
  count(state, "GFLOP/s", p.forward_operations);
}

void add_all() {
  const auto named = [](std::string name, DType dtype, auto body) {
    return benchmark::RegisterBenchmark(fmt::format("{}/{}", name, to_string(dtype)).c_str(), body)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  };
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const Layer& layer : layers) {
      for (const auto& [pass, name] : {std::pair{Pass::forward, "forward"}, {Pass::input, "input"}, {Pass::weight, "weight"}}) {
        named(fmt::format("linear/{}/{}", layer.name, name), dtype,
              [&layer, pass, dtype](benchmark::State& state) { linear(state, layer, pass, dtype); });
      }
    }
    const auto simple = [&](const char* name, auto* body) {
      return named(name, dtype, [body, dtype](benchmark::State& state) { body(state, dtype); });
    };
    simple("norm_forward", norm_forward)->Arg(256)->Arg(4096);
    simple("norm_backward", norm_backward)->Arg(256)->Arg(4096);
    simple("swiglu_forward", swiglu_forward)->Arg(688);
    simple("swiglu_backward", swiglu_backward)->Arg(688);
    simple("rope", rope)->Arg(32);
    simple("cross_entropy", cross_entropy)->Arg(256)->Arg(8192);
    simple("adamw", adamw)->Arg(1 << 22);
    simple("squared_norm", squared_norm)->Arg(1 << 22);
    simple("attention_forward", attention_forward)->Arg(256)->Arg(2048)->Arg(8192);
    simple("attention_backward", attention_backward)->Arg(256)->Arg(2048)->Arg(8192);
  }
  named("attention_naive", DType::float32, attention_naive)->Arg(256)->Arg(2048)->Arg(8192);
}

}  // namespace
}  // namespace escalera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("backend", escalera::ops().description());
  escalera::add_all();
  benchmark::RunSpecifiedBenchmarks();
}
