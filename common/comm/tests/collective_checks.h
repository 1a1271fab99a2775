// The checks of a communicator, whatever carries it: every collective against a plain loop over all ranks' inputs.
// defines: check_*(), run_ranks()
#pragma once

#include <functional>
#include <vector>

#include "common/comm/communicator.h"

namespace escalera {

/// Each compares with GoogleTest expectations and is called by all ranks of `world` together.
void check_all_reduce(Communicator& world);
void check_reduce_scatter(Communicator& world);
void check_all_gather(Communicator& world);
void check_broadcast(Communicator& world);
void check_all_to_all(Communicator& world);
void check_exchange(Communicator& world);
void check_many_in_flight(Communicator& world);
void check_interleaved_groups(Communicator& world);
void check_split(Communicator& world);
void check_traffic(Communicator& world);
void check_control_messages(Communicator& world);
void check_trace(Communicator& world);
void check_mismatches_are_named(Communicator& world);

/// All of the above, with the name of each.
struct NamedCheck {
  const char* name;
  void (*check)(Communicator& world);
};
const std::vector<NamedCheck>& all_checks();

/// Runs `body` on `ranks` threads; expects exit code `expected_code`.
void run_ranks(int ranks, const std::function<void(Communicator& world)>& body, int expected_code = 0);

/// Element `i` of what `rank` brings in; deterministic, uneven, exactly representable in every type when `rough` is off,
/// else such that sums depend on their order.
double test_value(int rank, Index i, bool rough = false);

/// `count` elements of `dtype` with conversion to and from double.
class TestBuffer {
 public:
  TestBuffer(Index count, DType dtype) : count_(count), dtype_(dtype), bytes_(bytes()) {}
  /// Filled with test_value(rank, i + first).
  TestBuffer(Index count, DType dtype, int rank, Index first = 0, bool rough = false);

  BufferView view() { return {bytes_.data(), count_, dtype_}; }
  BufferView view(Index begin, Index count) { return {bytes_.data() + begin * size_of(dtype_), count, dtype_}; }
  double get(Index i) const;
  void set(Index i, double value);
  const std::vector<std::byte>& raw() const { return bytes_; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_ * size_of(dtype_)); }
  Index count_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// The types and sizes that the checks go through: none, one, odd, not divisible, and more than any chunk.
inline constexpr DType test_types[] = {DType::float32, DType::float64, DType::bfloat16};
std::vector<Index> test_counts();

}  // namespace escalera
