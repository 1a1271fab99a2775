#include "common/model/parameter.h"

#include <algorithm>

#include "common/core/philox.h"

namespace escalera {

Index Parameter::global_index(Index local) const {
  Index row = local / local_columns();
  Index column = local % local_columns();
  if (split == Split::rows) {
    if (row >= slice.size) return -1;
    row += slice.begin;
  } else if (split == Split::columns) {
    if (column >= slice.size) return -1;
    column += slice.begin;
  }
  return row * columns + column;
}

void Parameter::for_each_stretch(Range part, const std::function<void(Index, Index, Index)>& use) const {
  if (split != Split::columns) {  // whole rows, in the order of the whole parameter
    const Index real = split == Split::rows ? slice.size * columns : local_size();
    const Index end = std::min(part.end, real);
    if (part.begin < end) use(part.begin, global_index(part.begin), end - part.begin);
    return;
  }
  for (Index local = part.begin; local < part.end;) {
    const Index column = local % local_columns();
    const Index next_row = local + local_columns() - column;
    const Index end = std::min(part.end, local + slice.size - column);
    if (local < end) use(local, global_index(local), end - local);
    local = next_row;
  }
}

// The seed and the name make the key, the position makes the counter: no element depends on any other.
InitialValues::InitialValues(const Parameter& parameter, std::uint64_t seed)
    : initialization_(parameter.initialization), key_(hash_name(parameter.name) ^ (seed * 0x9e3779b97f4a7c15ULL)) {}

double InitialValues::operator()(Index global_index) const {
  if (initialization_.kind == Initialization::Kind::ones) return 1.0;
  return initialization_.deviation * normal(key_, 0, static_cast<std::uint64_t>(global_index));
}

Range Bucket::in_shard(const Parameter& parameter) const {
  const auto local = [&](Index place) { return std::clamp<Index>(place - parameter.offset, 0, parameter.local_size()); };
  return {local(shard_begin), local(shard_begin + shard_size)};
}

int Bucket::add(Parameter parameter) {
  parameter.offset = size;
  size += parameter.local_size();
  parameters.push_back(std::move(parameter));
  shard_size = size;
  return static_cast<int>(parameters.size()) - 1;
}

Tensor Bucket::view(const Tensor& flat, int first, int last) const {
  if (flat.empty()) return {};  // not here now: forward names gradients that it does not touch
  const Parameter& begin = parameters.at(static_cast<std::size_t>(first));
  Index rows = 0;
  for (int number = first; number <= last; number++) {
    const Parameter& part = parameters.at(static_cast<std::size_t>(number));
    require(part.local_columns() == begin.local_columns(), "{} and {} have different widths and cannot be one matrix",
            begin.name, part.name);
    rows += part.local_rows();
  }
  return flat.slice_flat(begin.offset, rows * begin.local_columns(), rows);
}

Tensor Bucket::weight(int number) const { return view(weights, number, number); }
Tensor Bucket::gradient(int number) const { return view(gradients, number, number); }
Tensor Bucket::merged_weight(int first, int last) const { return view(weights, first, last); }
Tensor Bucket::merged_gradient(int first, int last) const { return view(gradients, first, last); }

}  // namespace escalera
