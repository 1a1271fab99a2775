// What must be alike on all ranks of a group that meet in a collective, in a form that fits into shared memory.
// defines: CallSummary, summarize(), describe(), describe_mismatch(), describe_transfer(), part_begin()
#pragma once

#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "common/comm/communicator.h"

namespace escalera {

/// The arguments of a collective that its ranks have to agree on. Those that an operation has not keep their defaults.
struct CallSummary {
  Operation operation{};  ///< a collective; a split comes as a barrier
  DType dtype{};          ///< of the elements
  ReduceOp reduce{};      ///< of all_reduce
  int root = 0;           ///< of broadcast; split_root for a split
  Index count =
      0;  ///< elements of the buffer; for reduce_scatter and all_gather of one rank's part; 0 for all_to_all
  /// Whether two ranks may meet.
  bool operator==(const CallSummary&) const = default;
};
static_assert(std::is_trivially_copyable_v<CallSummary>);

/// What `call`, a collective, has to share with the calls of the other ranks.
CallSummary summarize(const Call& call);

/// What ranks come for when they split a group: a barrier with a root that no rank has.
inline constexpr int split_root = -1;

/// "all_reduce (sum) of 12 float32".
std::string describe(const CallSummary& call);

/// Names the first two ranks of group `name` whose calls differ; nothing if all agree.
std::optional<std::string> describe_mismatch(std::span<const CallSummary> calls, const std::string& name);

/// What is wrong when `sent` meets `expected`; nothing if they fit.
std::optional<std::string> describe_mismatch(int sender, const BufferView& sent, int receiver,
                                             const BufferView& expected, const std::string& name);

/// What is wrong when rank `sender` of an all_to_all sends `sent` elements and rank `receiver` expects `expected`.
std::string describe_uneven_all_to_all(int sender, Index sent, int receiver, Index expected,
                                       const std::string& name);

/// Where part `part` of `count` elements begins when they are dealt out to `parts` ranks as evenly as possible; part
/// `parts` begins at the end.
constexpr Index part_begin(Index count, int parts, int part) {
  const Index rest = count % parts;
  return count / parts * part + (part < rest ? part : rest);
}

}  // namespace escalera
