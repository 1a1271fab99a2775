#include "common/comm/mpi/window.h"

#include <algorithm>

#include "common/comm/mpi/mpi_check.h"
#include "common/comm/mpi/mpi_job.h"

namespace escalera {
namespace {

constexpr Index page = 4096;

Index round_up(Index value, Index multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Window::Window(MPI_Comm comm, const MpiJob& job, std::string name) : job_(job), name_(std::move(name)) {
  MPI_CHECK(MPI_Comm_rank(comm, &rank_));
  MPI_CHECK(MPI_Comm_size(comm, &size_));
  // Large enough that meetings do not matter, small enough to stay in the second-level cache between the one who writes
  // and the one who reads. Where ranks share cores a meeting costs a change of processes, and fewer are better: with four
  // ranks on a busy machine, large buffers were up to three times faster; with a core for each, half as fast as small ones.
  // Less of both where /dev/shm is small (containers often have 64 MB), so that a dozen groups fit.
  Index sizes[2] = {0, 0};
  if (rank_ == 0) {
    const Index share = static_cast<Index>(SharedSegment::free_space()) / 48 / size_;
    const Index most = Index{job.crowded() ? 256 : 64} * page;
    sizes[0] = std::clamp(share / page * page, Index{8} * page, most);
    sizes[1] = std::clamp(share / size_ / Lane::depth / page * page, page, Index{32} * page);
    // Two rows of counts, for all_to_all, and some elements for each rank must fit into a buffer.
    sizes[0] = std::max(sizes[0], round_up(Index{128} * (size_ + 1), page));
  }
  MPI_CHECK(MPI_Bcast(sizes, 2, MPI_INT64_T, 0, comm));
  buffer_bytes_ = sizes[0];
  piece_bytes_ = sizes[1];

  const Index pairs = Index{size_} * size_;
  const Index lanes_at = Index{size_} * static_cast<Index>(sizeof(RankState));
  const Index buffers_at = round_up(lanes_at + pairs * static_cast<Index>(sizeof(Lane)), page);
  const Index lane_data_at = buffers_at + Index{2} * size_ * buffer_bytes_;
  const Index end = lane_data_at + pairs * Lane::depth * piece_bytes_;
  segment_ = std::make_unique<SharedSegment>(
      comm, static_cast<std::size_t>(end), fmt::format("the buffers of \"{}\" among {} ranks", name_, size_));
  // Reserved now is only the part with the counters; each rank reserves its buffers, and its lanes, when it first uses them.
  segment_->reserve(0, static_cast<std::size_t>(buffers_at));
  ranks_ = reinterpret_cast<RankState*>(segment_->data());
  lanes_ = reinterpret_cast<Lane*>(segment_->data() + lanes_at);
  buffers_ = segment_->data() + buffers_at;
  lane_data_ = segment_->data() + lane_data_at;
}

// ---- Collectives ---------------------------------------------------------------------------------------------------

void Window::begin(const Call& call) {
  if (!buffers_reserved_) {
    segment_->reserve(static_cast<std::size_t>(buffer(rank_, 0) - segment_->data()),
                      static_cast<std::size_t>(2 * buffer_bytes_));
    buffers_reserved_ = true;
  }
  call_ = summarize(call);
  compare_ = true;
}

void Window::meet() {
  if (compare_) ranks_[rank_].calls[step_ % 2] = call_;
  ranks_[rank_].steps.advance();
  ++step_;
  for (int other = 0; other < size_; ++other) {
    ranks_[other].steps.wait_until(step_, [&] {
      job_.check_not_given_up();
      require(!has_left(other) || ranks_[other].steps.reached(step_),
              "rank {} of \"{}\" waits in {}, but rank {} has left the group", rank_, name_, describe(call_),
              other);
    });
  }
  if (std::exchange(compare_, false)) compare_calls();
}

void Window::compare_calls() const {
  bool alike = true;
  for (int other = 0; other < size_; ++other) alike &= ranks_[other].calls[(step_ - 1) % 2] == call_;
  if (alike) return;
  std::vector<CallSummary> calls;
  for (int other = 0; other < size_; ++other) calls.push_back(ranks_[other].calls[(step_ - 1) % 2]);
  throw Error(*describe_mismatch(calls, name_));
}

// ---- Transfers -----------------------------------------------------------------------------------------------------

std::byte* Window::piece(int sender, int receiver, std::uint32_t number) {
  const Index lane = Index{sender} * size_ + receiver;
  return lane_data_ + (lane * Lane::depth + number % Lane::depth) * piece_bytes_;
}

void Window::reserve_lane(int receiver) {
  segment_->reserve(static_cast<std::size_t>(piece(rank_, receiver, 0) - segment_->data()),
                    static_cast<std::size_t>(Lane::depth * piece_bytes_));
}

// ---- The end -------------------------------------------------------------------------------------------------------

void Window::leave() {
  ranks_[rank_].left = true;
}

}  // namespace escalera
