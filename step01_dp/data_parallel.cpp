#include "step01_dp/data_parallel.h"

#include <array>
#include <cstdint>

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

void check_replicas(Communicator& group, Device& device, const Tensor& weights, Index step) {
  if (group.size() == 1) return;
  std::vector<std::uint64_t> words(static_cast<std::size_t>((weights.bytes() + 7) / 8), 0);
  device.copy_to_host(words.data(), weights.data(), weights.bytes());
  // FNV-1a on four interleaved streams of words: one stream would wait for its own multiplications.
  std::array<std::uint64_t, 4> hash{0xcbf29ce484222325ULL, 1, 2, 3};
  for (std::size_t i = 0; i < words.size(); i++) hash[i % 4] = (hash[i % 4] ^ words[i]) * 0x100000001b3ULL;
  const std::string mine = fmt::format("{:016x}{:016x}{:016x}{:016x}", hash[0], hash[1], hash[2], hash[3]);
  const std::vector<std::string> all = group.gather_strings(mine);
  for (std::size_t rank = 1; rank < all.size(); rank++) {
    require(all[rank] == all[0],
            "replicas have drifted apart at step {}: the weights of {} rank {} (hash {}) differ from those of rank 0 ({})",
            step, group.name(), rank, all[rank], all[0]);
  }
}

}  // namespace escalera
