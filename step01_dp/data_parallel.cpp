#include "step01_dp/data_parallel.h"

namespace escalera {

std::string_view to_string(DpMode mode) {
  switch (mode) {
    case DpMode::naive: return "naive";
    case DpMode::bucketed: return "bucketed";
    case DpMode::overlapped: return "overlapped";
  }
  return "unknown";
}

DataParallel::DataParallel(Communicator& group, DpMode mode, Index bucket_bytes)
    : group_(group), mode_(mode), bucket_bytes_(bucket_bytes) {}

void DataParallel::after_weight_gradients(Unit& unit, bool last_micro_batch) {
  // Before the last micro-batch the local sums still grow. Reducing them now would cost a message per micro-batch and,
  // worse, count early micro-batches once per rank and step.
  if (!last_micro_batch) return;
  for (Bucket* bucket : unit.owns()) {
    if (mode_ == DpMode::naive) {
      for (int i = 0; i < static_cast<int>(bucket->parameters.size()); i++) complete_.emplace_back(bucket->gradient(i));
    } else {
      add(bucket->gradients);
    }
  }
}

void DataParallel::add(const BufferView& gradients) {
  // Backward runs from the last unit to the first, and units lie in the flat buffer in forward order: each complete unit
  // ends where the one before it begins, so a bucket grows downwards.
  const auto* end = static_cast<const std::byte*>(gradients.data) + gradients.bytes();
  if (filling_ && end == filling_->data) {
    filling_->data = gradients.data;
    filling_->count += gradients.count;
  } else {
    if (filling_) reduce(*filling_);  // no neighbour: a bucket of its own
    filling_ = gradients;
  }
  if (filling_->bytes() >= bucket_bytes_) {
    reduce(*filling_);
    filling_.reset();
  }
}

void DataParallel::reduce(const BufferView& gradients) {
  if (mode_ == DpMode::overlapped) {
    // The sum runs beside the backward of earlier units, which writes other parts of the buffer.
    in_flight_.push_back(group_.all_reduce_async(gradients));
  } else {
    complete_.push_back(gradients);
  }
}

void DataParallel::finish_step() {
  if (filling_) reduce(*filling_);  // the last bucket is rarely full
  filling_.reset();
  for (const BufferView& gradients : complete_) group_.all_reduce(gradients);
  complete_.clear();
  for (Work& work : in_flight_) work.wait();
  in_flight_.clear();
}

}  // namespace escalera
