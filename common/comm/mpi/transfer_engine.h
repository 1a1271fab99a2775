// Sends and receives between two ranks that go on while the caller computes.
// defines: Transfer, TransferPath, TransferEngine
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "common/comm/communicator.h"

namespace escalera {

class MpiJob;

/// One message on its way.
struct Transfer {
  struct Batch {
    int pending = 0;
    std::exception_ptr error;
    Trace* trace = nullptr;
    TraceEvent span;
  };
  PointToPoint what;
  std::shared_ptr<Batch> batch;  ///< the exchange that it belongs to
  Index moved = 0;               ///< bytes so far
  bool done = false;
  MPI_Request request = MPI_REQUEST_NULL;  ///< for messages that MPI carries
};

/// What carries messages: the lanes of a shared window, or MPI. Used by one thread at a time, except for sleep().
class TransferPath {
 public:
  virtual ~TransferPath() = default;
  /// Moves what can be moved at once; true if anything was. Sets `done` at the end. Throws Error if the two sides do not
  /// fit together. Only the oldest unfinished message of each direction between two ranks is advanced.
  virtual bool advance(Transfer& transfer) = 0;
  /// A number that changes when there is something to move.
  virtual std::uint32_t news() = 0;
  /// Sleeps until news() is no longer `seen`, or a while; true if there are news.
  virtual bool sleep(std::uint32_t seen) = 0;
  virtual bool has_left(int peer) = 0;
};

/// The transfers of one rank on one communicator. Each direction to each peer is a queue of its own, so none holds up
/// another. Whoever waits moves the data itself; while nobody does, a thread takes care, started when first needed.
class TransferEngine {
 public:
  TransferEngine(std::unique_ptr<TransferPath> path, std::shared_ptr<MpiJob> job, int rank, std::string name);
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  std::shared_ptr<Transfer::Batch> post(const Call& call, Trace* trace);
  void wait(Transfer::Batch& batch);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Direction = std::pair<int, bool>;  // peer, is_send

  bool advance_all();
  void serve();
  void complete(Transfer::Batch& batch);
  void withdraw(const Transfer::Batch& batch);
  void fail_if_peer_has_left(const Transfer::Batch& batch);

  std::unique_ptr<TransferPath> path_;
  std::shared_ptr<MpiJob> job_;
  int rank_;
  std::string name_;

  std::mutex mutex_;  // for all below, and for path_->advance()
  std::condition_variable changed_;
  std::map<Direction, std::deque<Transfer>> queues_;
  int active_ = 0;   // transfers in the queues
  int waiting_ = 0;  // threads in wait()
  bool stop_ = false;
  std::exception_ptr broken_;  // after an error, nothing that follows can be matched
  std::thread thread_;
};

}  // namespace escalera
