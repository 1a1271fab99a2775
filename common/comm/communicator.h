// Collective communication in the field's words. A backend (threads/, mpi/, nccl/) says how; this class says what, and
// counts it.
// defines: BufferView, ReduceOp, Operation, Traffic, Work, PointToPoint, Communicator
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/core/tensor.h"
#include "common/core/trace.h"

namespace escalera {

/// Contiguous elements that a communicator reads or writes. It owns nothing: the memory must stay until the Work is done.
struct BufferView {
  void* data = nullptr;
  Index count = 0;  ///< elements
  DType dtype = DType::float32;

  BufferView() = default;
  BufferView(void* data_, Index count_, DType dtype_) : data(data_), count(count_), dtype(dtype_) {}
  /// All of a tensor.
  BufferView(const Tensor& tensor) : BufferView(tensor.data(), tensor.size(), tensor.dtype()) {}  // NOLINT
  Index bytes() const { return count * size_of(dtype); }
};

/// How all_reduce and reduce_scatter combine. Sums run in rank order, bfloat16 is summed in float32 and rounded once.
enum class ReduceOp { sum, max };

/// The operations that traffic is counted for.
enum class Operation { all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, send, recv, barrier };
inline constexpr int operation_count = 8;
/// "all_reduce", ...
std::string_view to_string(Operation operation);

/// Calls and bytes of one kind of operation on one rank. `bytes` is what the rank has to send when the operation runs as
/// a ring (all_reduce of n bytes over d ranks: 2 (d-1)/d n; reduce_scatter of n in all and all_gather to n in all:
/// (d-1)/d n; all_to_all and send: what goes to other ranks; broadcast: n (d-1)/d). Where d does not divide n, ranks
/// differ by an element; the sum over ranks is exact: 2 (d-1) n and so on.
struct Traffic {
  Index calls = 0;
  Index bytes = 0;
};

/// A handle on an asynchronous operation. Destroying an unfinished Work waits for it.
class Work {
 public:
  Work() = default;  ///< nothing to wait for
  explicit Work(std::function<void()> wait) : wait_(std::move(wait)) {}
  Work(Work&& other) noexcept : wait_(std::exchange(other.wait_, nullptr)) {}
  Work& operator=(Work&& other);
  ~Work();
  /// Blocks until the result may be read and the inputs reused (on a GPU: until the compute stream is ordered after it).
  /// Throws what the operation threw. The second call returns at once.
  void wait();

 private:
  std::function<void()> wait_;
};

/// One half of an exchange between two ranks.
struct PointToPoint {
  bool is_send = false;
  int peer = 0;
  BufferView buffer;
};

/// A group of ranks. All ranks of a group call the same operations in the same order with the same counts and types;
/// where a backend can see that they differ it throws an Error that names both calls, instead of waiting for ever. With
/// one rank every operation is the identity (and is not counted). Blocking forms return when the result is there;
/// asynchronous ones run in order beside the caller's computing. A communicator is used by one thread.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// What the group is for: "world", "dp", "tp"; its row in the trace.
  const std::string& name() const { return name_; }

  /// Element-wise over ranks, in place.
  Work all_reduce_async(BufferView buffer, ReduceOp op = ReduceOp::sum);
  void all_reduce(BufferView buffer, ReduceOp op = ReduceOp::sum) { all_reduce_async(buffer, op).wait(); }
  /// output = this rank's part (of output.count elements) of the sum; input.count = output.count * size. output may be
  /// that part of input.
  Work reduce_scatter_async(BufferView input, BufferView output);
  void reduce_scatter(BufferView input, BufferView output) { reduce_scatter_async(input, output).wait(); }
  /// output (input.count * size elements) = the inputs in rank order. input may be this rank's part of output.
  Work all_gather_async(BufferView input, BufferView output);
  void all_gather(BufferView input, BufferView output) { all_gather_async(input, output).wait(); }
  /// buffer = root's buffer.
  Work broadcast_async(BufferView buffer, int root);
  void broadcast(BufferView buffer, int root) { broadcast_async(buffer, root).wait(); }
  /// send_counts[r] consecutive elements of input go to rank r; receive_counts[r] elements from rank r arrive in rank
  /// order in output.
  Work all_to_all_async(BufferView input, std::span<const Index> send_counts, BufferView output,
                        std::span<const Index> receive_counts);
  void all_to_all(BufferView input, std::span<const Index> send_counts, BufferView output,
                  std::span<const Index> receive_counts) {
    all_to_all_async(input, send_counts, output, receive_counts).wait();
  }
  /// Sends and receives that run together, so that none waits for another; per pair of ranks they match in order.
  Work exchange_async(std::vector<PointToPoint> transfers);
  void exchange(std::vector<PointToPoint> transfers) { exchange_async(std::move(transfers)).wait(); }
  Work send_async(BufferView buffer, int peer) { return exchange_async({{true, peer, buffer}}); }
  void send(BufferView buffer, int peer) { send_async(buffer, peer).wait(); }
  Work recv_async(BufferView buffer, int peer) { return exchange_async({{false, peer, buffer}}); }
  void recv(BufferView buffer, int peer) { recv_async(buffer, peer).wait(); }
  /// Returns when all ranks have called it.
  void barrier();

  /// Ranks with the same `color` form a new group, ordered by `key` and then by rank here. All ranks call it. The new
  /// group counts its own traffic and traces under `name`.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name);

  /// Counted so far on this rank.
  const Traffic& traffic(Operation operation) const { return traffic_[static_cast<std::size_t>(operation)]; }
  void reset_traffic() { traffic_ = {}; }

  /// Small host-side helpers on top of the collectives, counted as control messages of their own (control_traffic()).
  double sum(double value);
  double max(double value);
  Index sum(Index value);
  /// Every rank's text, in rank order, on all ranks.
  std::vector<std::string> gather_strings(const std::string& text);
  /// true if `bytes` is the same on all ranks.
  bool all_equal(std::span<const std::byte> bytes);
  const Traffic& control_traffic() const { return control_; }

  /// Where spans are recorded; null for nowhere. split() passes it on.
  void set_trace(Trace* trace) { trace_ = trace; }

  /// Ends all ranks of the job now: the others' waiting calls throw PeerError or are killed.
  virtual void abort(const std::string& reason) = 0;

 protected:
  Communicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

  /// One operation, as the backend gets it.
  struct Call {
    Operation operation{};
    BufferView input, output;
    ReduceOp reduce = ReduceOp::sum;
    int root = 0;
    std::vector<Index> send_counts, receive_counts;
    std::vector<PointToPoint> transfers;
  };
  /// Starts `call`; the Work waits for it. Calls of one communicator take effect in the order of start().
  virtual Work start(Call call) = 0;
  virtual std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) = 0;
  Trace* trace() const { return trace_; }

 private:
  Work start_counted(Call call);

  int rank_;
  int size_;
  std::string name_;
  std::array<Traffic, operation_count> traffic_{};
  Traffic control_{};
  bool counting_control_ = false;
  Trace* trace_ = nullptr;
};

}  // namespace escalera
