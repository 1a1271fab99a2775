#include "common/ops/cuda/embedding_plan.h"

#include <algorithm>

namespace escalera::cuda {

void EmbeddingPlan::make(std::span<const std::int32_t> tokens, Index first_row, Index rows) {
  // How often does each row occur? Only the rows that do are touched, so a call costs time for its tokens, not for the
  // vocabulary.
  if (static_cast<Index>(counts_.size()) < rows) counts_.resize(static_cast<std::size_t>(rows));
  distinct_.clear();
  std::size_t terms = 0;
  for (const std::int32_t token : tokens) {
    const Index row = token - first_row;
    if (row < 0 || row >= rows) continue;
    if (counts_[static_cast<std::size_t>(row)]++ == 0) distinct_.push_back(static_cast<std::int32_t>(row));
    terms++;
  }

  segments_ = totals_ = 0;
  for (const std::int32_t row : distinct_) {
    const int count = counts_[static_cast<std::size_t>(row)], parts = (count + segment_length - 1) / segment_length;
    segments_ += parts;
    totals_ += parts > 1;
  }
  data_.resize(static_cast<std::size_t>(segments_ + totals_) * ints_per_segment + terms);

  slots_ = 0;
  std::int32_t* segment = data_.data();
  std::int32_t* total = segment + segments_ * ints_per_segment;
  std::int32_t* order = total + totals_ * ints_per_segment;
  const auto write = [](std::int32_t*& place, const EmbeddingSegment& entry) {
    for (const int value : {entry.row, entry.begin, entry.count, entry.slot}) *place++ = value;
  };
  std::int32_t begin = 0;
  for (const std::int32_t row : distinct_) {
    std::int32_t& count = counts_[static_cast<std::size_t>(row)];
    if (count <= segment_length) {
      write(segment, {row, begin, count, -1});
    } else {
      write(total, {row, slots_, (count + segment_length - 1) / segment_length, -1});
      for (int done = 0; done < count; done += segment_length) {
        write(segment, {row, begin + done, std::min(segment_length, count - done), slots_++});
      }
    }
    const std::int32_t next = begin + count;
    count = begin;  // from now on: where the row's next term goes
    begin = next;
  }
  for (std::size_t t = 0; t < tokens.size(); t++) {
    const Index row = tokens[t] - first_row;
    if (row >= 0 && row < rows) order[counts_[static_cast<std::size_t>(row)]++] = static_cast<std::int32_t>(t);
  }
  for (const std::int32_t row : distinct_) counts_[static_cast<std::size_t>(row)] = 0;
}

}  // namespace escalera::cuda
