#include "step03_tp/tensor_parallel.h"

#include <algorithm>
#include <array>

namespace escalera {

TensorParallel::TensorParallel(Ops& ops, Communicator& group, const ModelConfig& model,
                               const TensorParallelSettings& settings)
    : TensorRegion(ops), group_(group), settings_(settings) {
  validate(model, group.size(), group.size(), settings);
  if (group.size() == 1) settings_ = {};  // nobody to share rows with or to wait for
  if (group.size() > model.num_key_value_heads) {
    const int sharing = group.size() / static_cast<int>(model.num_key_value_heads);
    kv_group_ = group.split(group.rank() / sharing, group.rank(), "kv");
  }
}

// ---- f and g --------------------------------------------------------------------------------------------------------
//
// Plain. All ranks have the same x, and rank r computes y_r = x W_r^T. What x changes, it changes through all y_r, so
//     dL/dx = sum over r of (dL/dy_r W_r):     f is the identity forward, and a sum over ranks backward.
// At the other end y = sum over r of (x_r W_r^T), the same on all ranks. y grows with each term one to one, so
//     dL/dx_r W_r^T = dL/dy:                    g is a sum over ranks forward, and the identity backward.
// dL/dy must not be summed once more: the ranks have it t times, but it is one and the same gradient.
//
// Sequence parallel. Rank r has rows x_(r) outside, and f lays them one under the other on each rank. Each rank then finds a
// part of the gradient of all rows, and the rows of rank r belong to rank r alone:
//     f: all_gather forward;                    dL/dx_(r) = rows (r) of the sum over ranks: reduce_scatter backward.
//     g: rows (r) of the sum, reduce_scatter;   dL/dx_s needs dL/dy of all rows on each rank s: all_gather backward.

Tensor TensorParallel::enter(const Tensor& x) {
  if (!settings_.sequence_parallel) return x;
  const Tensor whole = empty(x.rows() * group_.size(), x.columns(), x.dtype(), MemoryCategory::communication);
  group_.all_gather(x, whole);
  return whole;
}

Tensor TensorParallel::enter_backward(const Tensor& partial_dx) {
  return exit(partial_dx, MemoryCategory::workspace);
}

// Where g gives back other memory than it gets, what it gets is only on its way.
Tensor TensorParallel::partial_sum(Index rows, Index columns, DType dtype, MemoryCategory category) {
  return empty(rows, columns, dtype, settings_.sequence_parallel ? MemoryCategory::communication : category);
}

Tensor TensorParallel::exit(const Tensor& partial, MemoryCategory category) {
  if (!settings_.sequence_parallel) {
    group_.all_reduce(partial);
    return partial;
  }
  const Tensor mine = empty(partial.rows() / group_.size(), partial.columns(), partial.dtype(), category);
  group_.reduce_scatter(partial, mine);
  return mine;
}

Tensor TensorParallel::exit_backward(const Tensor& dy) {
  return enter(dy);
}

// ---- Overlap --------------------------------------------------------------------------------------------------------
//
// A collective and a product that needs its result cannot run at once, but half of the rows can travel while the other half
// is multiplied. Under sequence parallelism a half is the first or second half of each rank's rows, so that each collective
// still gives every rank equally many.

std::array<TensorParallel::Half, 2> TensorParallel::halves_of(Index rows) {
  return {Half{0, rows / 2}, Half{rows / 2, rows - rows / 2}};
}

// One row is not worth a second collective, nor is it two halves.
bool TensorParallel::in_halves(Index rows) const {
  return settings_.overlap && rows >= 2;
}

// x [T/t, .] of each rank becomes [T, .] in two collectives. use(rows, first) gets a stretch of gathered rows and where it
// belongs in [T, .]; each row once. This rank's own rows come first: they need no collective, so that even the first one runs
// beside a product.
template <class Use>
void TensorParallel::gather_in_halves(const Tensor& x, Use use) {
  const std::array<Half, 2> halves = halves_of(x.rows());
  std::array<Tensor, 2> gathered;
  std::array<Work, 2> arriving;
  for (std::size_t i = 0; i < 2; i++) {
    gathered[i] =
        empty(group_.size() * halves[i].rows, x.columns(), x.dtype(), MemoryCategory::communication);
    arriving[i] = group_.all_gather_async(x.slice_rows(halves[i].begin, halves[i].rows), gathered[i]);
  }
  {
    const auto traced = span("own rows");
    use(x, group_.rank() * x.rows());
  }
  for (std::size_t i = 0; i < 2; i++) {
    arriving[i].wait();
    const auto traced = span(i == 0 ? "first half" : "second half");
    for (int rank = 0; rank < group_.size(); rank++) {
      if (rank == group_.rank()) continue;
      use(gathered[i].slice_rows(rank * halves[i].rows, halves[i].rows), rank * x.rows() + halves[i].begin);
    }
  }
}

Tensor TensorParallel::column_linear(const Tensor& x, const LinearRef& w, MemoryCategory category) {
  if (!settings_.sequence_parallel || !in_halves(x.rows()))
    return TensorRegion::column_linear(x, w, category);
  const Tensor y = empty(x.rows() * group_.size(), w.weight.rows(), x.dtype(), category);
  gather_in_halves(x, [&](const Tensor& rows, Index first) {
    ops().linear_forward(rows, w.weight, y.slice_rows(first, rows.rows()));
  });
  return y;
}

Tensor TensorParallel::row_linear(const Tensor& x, const LinearRef& w, MemoryCategory category) {
  const Index ranks = settings_.sequence_parallel ? group_.size() : 1, rows = x.rows() / ranks;
  if (!in_halves(rows)) return TensorRegion::row_linear(x, w, category);
  const Tensor y = empty(rows, w.weight.rows(), x.dtype(), category);
  const std::array<Half, 2> halves = halves_of(rows);
  std::array<Tensor, 2> partial;
  std::array<Work, 2> summing;
  for (std::size_t i = 0; i < 2; i++) {
    const auto [begin, count] = halves[i];
    const Tensor mine = y.slice_rows(begin, count);
    partial[i] =
        ranks == 1 ? mine : empty(ranks * count, y.columns(), y.dtype(), MemoryCategory::communication);
    {
      const auto traced = span(i == 0 ? "first half" : "second half");
      for (Index rank = 0; rank < ranks; rank++) {
        ops().linear_forward(x.slice_rows(rank * rows + begin, count), w.weight,
                             partial[i].slice_rows(rank * count, count));
      }
    }
    summing[i] = settings_.sequence_parallel ? group_.reduce_scatter_async(partial[i], mine)
                                             : group_.all_reduce_async(partial[i]);
  }
  for (Work& sum : summing) sum.wait();
  return y;
}

// Backward has two products that do not need each other, dx and the weight gradient: each hides a collective whole.
Tensor TensorParallel::column_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w,
                                              WeightWork& work) {
  if (!settings_.overlap) return TensorRegion::column_linear_backward(dy, x, w, work);
  Tensor whole = x;
  Work arriving;
  if (settings_.sequence_parallel) {
    whole = empty(dy.rows(), x.columns(), x.dtype(), MemoryCategory::communication);
    arriving = group_.all_gather_async(x, whole);
  }
  const Tensor partial = empty(dy.rows(), w.weight.columns(), dy.dtype(), MemoryCategory::workspace);
  {
    const auto traced = span("input gradient");
    ops().linear_backward_input(dy, w.weight, partial);
  }
  const Tensor dx = settings_.sequence_parallel
                        ? empty(x.rows(), x.columns(), x.dtype(), MemoryCategory::workspace)
                        : partial;
  Work summing = settings_.sequence_parallel ? group_.reduce_scatter_async(partial, dx)
                                             : group_.all_reduce_async(partial);
  arriving.wait();
  {
    const auto traced = span("weight gradient");
    work.add_linear(dy, whole, w.gradient);
  }
  summing.wait();
  return dx;
}

Tensor TensorParallel::row_linear_backward(const Tensor& dy, const Tensor& x, const LinearRef& w,
                                           WeightWork& work) {
  if (!settings_.sequence_parallel || !in_halves(dy.rows()))
    return TensorRegion::row_linear_backward(dy, x, w, work);
  const Tensor whole = empty(x.rows(), dy.columns(), dy.dtype(), MemoryCategory::communication);
  const Tensor dx = empty(x.rows(), x.columns(), x.dtype(), MemoryCategory::workspace);
  gather_in_halves(dy, [&](const Tensor& rows, Index first) {
    ops().linear_backward_input(rows, w.weight, dx.slice_rows(first, rows.rows()));
    // The weight gradient wants all rows in order, as x has them, in one product.
    const Tensor place = whole.slice_rows(first, rows.rows());
    ops().device().copy(place.data(), rows.data(), rows.bytes());
  });
  work.add_linear(whole, x, w.gradient);
  return dx;
}

// ---- A loss over a split vocabulary ---------------------------------------------------------------------------------

void TensorParallel::row_max(const Tensor& values) {
  group_.all_reduce(values, ReduceOp::max);
}

void TensorParallel::row_sum(const Tensor& values) {
  group_.all_reduce(values);
}

double TensorParallel::share() const {
  return 1.0 / group_.size();
}

// ---- Who holds what -------------------------------------------------------------------------------------------------

Slice TensorParallel::split(Index size) const {
  const Index part = size / group_.size();
  return {group_.rank() * part, part, part};
}

Slice TensorParallel::kv_heads(Index heads) const {
  if (group_.size() <= heads) return split(heads);
  // A query head stays with its key/value head, so t / heads ranks in a row hold the same one. Each finds the gradient that
  // comes from its own queries: their sum is the head's.
  const Index sharing = group_.size() / heads;
  return {group_.rank() / sharing, 1, 1, kv_group_.get(), group_.rank() % sharing == 0};
}

// What stands inside the region sees all rows on each rank, but only what comes back from this rank's slices.
Slice TensorParallel::inside(Index size) const {
  return {0, size, size, group_.size() > 1 ? &group_ : nullptr, group_.rank() == 0};
}

// Outside, plain: every rank has the whole gradient, made of the same numbers, and a sum would count it t times. Sequence
// parallel: every rank has the gradient of its own rows, and only the sum is whole.
Slice TensorParallel::outside(Index size) const {
  return {0, size, size, settings_.sequence_parallel ? &group_ : nullptr, group_.rank() == 0};
}

// All ranks hold equally many rows, the last of them padding where t does not divide the vocabulary.
Slice TensorParallel::vocabulary(Index size) const {
  const Index part = (size + group_.size() - 1) / group_.size(), begin = group_.rank() * part;
  return {begin, std::min(part, size - begin), part};
}

// ---- Memory and trace -----------------------------------------------------------------------------------------------

Tensor TensorParallel::empty(Index rows, Index columns, DType dtype, MemoryCategory category) const {
  return ops().device().empty(rows, columns, dtype, category);
}

std::shared_ptr<void> TensorParallel::span(const char* name) const {
  return ops().device().span(trace_, name);
}

}  // namespace escalera
