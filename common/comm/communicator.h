// Collective communication in the field's words. A backend (threads/, mpi/, nccl/) says how; this class says what, and
// counts it.
// defines: BufferView, ReduceOp, Operation, Traffic, Work, PointToPoint, Call, Communicator
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/core/tensor.h"
#include "common/core/trace.h"

namespace escalera {

/// Contiguous elements that a communicator reads or writes. It owns nothing: the memory must stay until the Work is done.
struct BufferView {
  void* data = nullptr;          ///< on the communicator's device; may be null if there are no elements
  Index count = 0;               ///< elements
  DType dtype = DType::float32;  ///< of each element

  BufferView() = default;  ///< no elements
  /// `count_` elements from `data_` on.
  BufferView(void* data_, Index count_, DType dtype_) : data(data_), count(count_), dtype(dtype_) {}
  /// All of a tensor.
  BufferView(const Tensor& tensor) : BufferView(tensor.data(), tensor.size(), tensor.dtype()) {}  // NOLINT
  /// Bytes of all elements.
  Index bytes() const { return count * size_of(dtype); }
};

/// How all_reduce and reduce_scatter combine. Sums run in rank order, bfloat16 is summed in float32 and rounded once; NCCL
/// alone has an order and roundings of its own, the same in every run.
enum class ReduceOp { sum, max };

/// The operations that traffic is counted for.
enum class Operation { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send, recv, barrier };
/// Number of operations, for arrays with a slot for each.
inline constexpr int operation_count = 8;
/// "all_reduce", ...
std::string_view to_string(Operation operation);

/// Calls and bytes of one kind of operation on one rank. `bytes` is what the rank has to send when the operation runs as
/// a ring (all_reduce of n bytes over d ranks: 2 (d-1)/d n; reduce_scatter of n in all and all_gather to n in all:
/// (d-1)/d n; all_to_all and send: what goes to other ranks; broadcast: n (d-1)/d). Where d does not divide n, ranks
/// differ by an element; the sum over ranks is exact: 2 (d-1) n and so on.
struct Traffic {
  Index calls = 0;  ///< on groups of more than one rank; of an exchange, each transfer counts
  Index bytes = 0;  ///< sent; nothing for recv and barrier
};

/// A handle on an asynchronous operation. Destroying an unfinished Work waits for it; destroyed by an exception on its way
/// up, it gives the whole job up first, because what it waits for may never come then.
class Work {
 public:
  Work() = default;  ///< nothing to wait for
  /// `wait` is called once, by wait() or the destructor, and throws what the operation threw. `give_up` (may
  /// be null) makes it return soon where it waits for other ranks.
  explicit Work(std::function<void()> wait, std::function<void()> give_up = nullptr)
      : wait_(std::move(wait)), give_up_(std::move(give_up)) {}
  /// Takes over what is to be waited for; an assignment first waits for what this one had.
  /// @{
  Work(Work&& other) noexcept
      : wait_(std::exchange(other.wait_, nullptr)), give_up_(std::exchange(other.give_up_, nullptr)) {}
  Work& operator=(Work&& other) noexcept;
  /// @}
  ~Work();
  /// Blocks until the result may be read and the inputs reused (on a GPU: until the compute stream is ordered after it).
  /// Throws what the operation threw. The second call returns at once.
  void wait();

 private:
  friend class Communicator;
  void finish() noexcept;

  std::function<void()> wait_;
  std::function<void()> give_up_;
};

/// One half of an exchange between two ranks.
struct PointToPoint {
  bool is_send = false;  ///< else it receives
  int peer = 0;          ///< the other rank of the group, or this one
  BufferView buffer;     ///< both sides need the same count and type
};

/// One operation, as a backend gets it. `operation` is send or recv if and only if there are transfers.
struct Call {
  Operation operation{};  ///< of an exchange: send if there is any send, else recv
  /// In place (all_reduce, broadcast): both are the buffer.
  /// @{
  BufferView input, output;
  /// @}
  ReduceOp reduce = ReduceOp::sum;  ///< for all_reduce
  int root = 0;                     ///< for broadcast
  /// For all_to_all: elements to and from each rank.
  /// @{
  std::vector<Index> send_counts, receive_counts;
  /// @}
  std::vector<PointToPoint> transfers;  ///< with other ranks; those of a rank with itself are done already
  bool blocking = false;  ///< the caller waits at once, so nothing is gained from another thread

  /// Whether it moves `transfers` between pairs of ranks; else it is a collective of all ranks.
  bool is_transfer() const { return operation == Operation::send || operation == Operation::recv; }
  /// "all_reduce", ...; "exchange" for transfers in both directions.
  std::string_view name() const;
};

/// A group of ranks. All ranks of a group call the same operations in the same order with the same counts and types; where
/// a backend can see that they differ it throws an Error that names both calls, instead of waiting for ever. With one rank
/// every operation is the identity (and is not counted). Blocking forms return when the result is there; asynchronous ones
/// run beside the caller's computing: collectives in the order of their calls, transfers between two ranks in the order of
/// theirs, and neither waits for the other kind. A communicator is used by one thread at a time; its Works may be waited
/// for on another.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// This rank's number, 0 to size() - 1, and the number of ranks in the group.
  /// @{
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// @}
  /// What the group is for: "world", "dp", "tp"; its row in the trace.
  const std::string& name() const { return name_; }

  /// Element-wise over ranks, in place.
  /// @{
  Work all_reduce_async(BufferView buffer, ReduceOp op = ReduceOp::sum);
  void all_reduce(BufferView buffer, ReduceOp op = ReduceOp::sum);
  /// @}
  /// output = this rank's part (of output.count elements) of the sum; input.count = output.count * size. output may be
  /// that part of input.
  /// @{
  Work reduce_scatter_async(BufferView input, BufferView output);
  void reduce_scatter(BufferView input, BufferView output);
  /// @}
  /// output (input.count * size elements) = the inputs in rank order. input may be this rank's part of output.
  /// @{
  Work all_gather_async(BufferView input, BufferView output);
  void all_gather(BufferView input, BufferView output);
  /// @}
  /// buffer = root's buffer.
  /// @{
  Work broadcast_async(BufferView buffer, int root);
  void broadcast(BufferView buffer, int root);
  /// @}
  /// send_counts[r] consecutive elements of input go to rank r; receive_counts[r] elements from rank r arrive in rank
  /// order in output.
  /// @{
  Work all_to_all_async(BufferView input, std::span<const Index> send_counts, BufferView output,
                        std::span<const Index> receive_counts);
  void all_to_all(BufferView input, std::span<const Index> send_counts, BufferView output,
                  std::span<const Index> receive_counts);
  /// @}
  /// Sends and receives that run together, so that none waits for another; per pair of ranks they match in order. A send
  /// to this rank itself needs its receive in the same exchange.
  /// @{
  Work exchange_async(std::vector<PointToPoint> transfers);
  void exchange(std::vector<PointToPoint> transfers);
  /// @}
  /// An exchange of one transfer. A send may return only when the peer receives, so rings need exchange().
  /// @{
  Work send_async(BufferView buffer, int peer) { return exchange_async({{true, peer, buffer}}); }
  void send(BufferView buffer, int peer) { exchange({{true, peer, buffer}}); }
  Work recv_async(BufferView buffer, int peer) { return exchange_async({{false, peer, buffer}}); }
  void recv(BufferView buffer, int peer) { exchange({{false, peer, buffer}}); }
  /// @}
  /// Returns when all ranks have called it.
  void barrier();

  /// Ranks with the same `color` form a new group, ordered by `key` and then by rank here. All ranks call it. The new
  /// group counts its own traffic and traces under `name`.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name);

  /// Counted so far on this rank.
  const Traffic& traffic(Operation operation) const { return traffic_[static_cast<std::size_t>(operation)]; }
  /// Counts start at zero again, except those of control messages.
  void reset_traffic() { traffic_ = {}; }

  /// Small host-side helpers on top of the collectives, counted as control messages of their own (control_traffic()).
  /// Collective and blocking; all ranks get the result.
  /// @{
  double sum(double value);
  double max(double value);
  Index sum(Index value);
  /// @}
  /// Every rank's text, in rank order, on all ranks.
  std::vector<std::string> gather_strings(const std::string& text);
  /// true if `bytes` is the same on all ranks.
  bool all_equal(std::span<const std::byte> bytes);
  /// Calls and bytes of these helpers so far on this rank, which traffic() leaves out.
  const Traffic& control_traffic() const { return control_; }
  /// Seconds so far in which the thread of this rank waited for operations of this communicator, control messages included:
  /// communication that nothing hides. A GPU's compute stream waits by itself; its waiting is in the trace only.
  double seconds_waited() const { return 1e-9 * static_cast<double>(waited_->load()); }

  /// Where spans are recorded; null for nowhere. split() passes it on.
  void set_trace(Trace* trace) { trace_ = trace; }

  /// Ends all ranks of the job now: the others' waiting calls throw PeerError or are killed.
  virtual void abort(const std::string& reason) = 0;

  /// For who waits for other ranks by means of their own, as a GPU does; from any thread. check_peers() throws PeerError if
  /// the job has failed as far as this rank can know. give_up() makes it fail: this rank's waiting calls, and its later
  /// ones, throw PeerError soon. It is for an exception that is on its way to launch(), which ends the job.
  /// @{
  virtual void check_peers() const = 0;
  virtual void give_up() = 0;
  /// @}

 protected:
  /// A group as the backend made it.
  Communicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

  /// Starts `call`; the Work waits for it. Calls of one communicator take effect in the order of start().
  virtual Work start(Call call) = 0;
  /// The same for control messages, whose buffers are always on the host.
  virtual Work start_control(Call call) { return start(std::move(call)); }
  /// split(), except for the trace.
  virtual std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) = 0;
  /// Copies between buffers of this rank.
  virtual void copy(void* destination, const void* source, Index bytes);
  /// See set_phase() in launch.h.
  virtual void note_phase(const std::string& phase) = 0;
  friend void set_phase(Communicator& world, const std::string& phase);
  /// What set_trace() was given.
  Trace* trace() const { return trace_; }

 private:
  Work run(Call call);
  void check(const Call& call) const;
  void count(const Call& call);
  void run_on_one_rank(const Call& call);
  void run_transfers_to_self(Call& call);
  void gather_control(const void* input, void* output, Index words);

  int rank_;
  int size_;
  std::string name_;
  std::array<Traffic, operation_count> traffic_{};
  Traffic control_{};
  bool counting_control_ = false;
  // Nanoseconds. A Work may be waited for on another thread, and when its communicator is gone.
  std::shared_ptr<std::atomic<std::int64_t>> waited_ = std::make_shared<std::atomic<std::int64_t>>(0);
  Trace* trace_ = nullptr;
};

}  // namespace escalera
