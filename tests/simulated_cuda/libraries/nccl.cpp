// NCCL for ranks that are threads of one process (or one thread with several devices), with the toolkit's own header. What
// hangs or corrupts memory in the real library is reported here, with rank and call: calls that do not fit together, ranks
// that do not come, buffers that are too small or of another device.
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include <simulated_cuda/settings.h>

#include "tests/simulated_cuda/libraries/nccl_world.h"
#include "tests/simulated_cuda/runtime/counters.h"
#include "tests/simulated_cuda/runtime/device.h"

using namespace simulated_cuda;

namespace {

/// A rank of a communicator, as its queued work knows it; may outlive the handle.
struct Member {
  int rank = 0;
  std::atomic<bool> aborted = false;
  std::vector<StreamPoint> queued;  // the last call on each stream; the owner's thread only
};

}  // namespace

struct ncclComm {
  std::shared_ptr<NcclWorld> world;  // null while a split is on its way
  std::shared_ptr<Member> member = std::make_shared<Member>();
  int device = 0;
  bool blocking = true;
  std::uint64_t calls = 0, splits = 0;
  /// Steps that a communicator without blocking still has to take; each is asked until it is no longer in progress.
  std::deque<std::function<ncclResult_t()>> steps;
  ncclResult_t failure = ncclSuccess;
};

namespace {

thread_local std::string last_words;

ncclResult_t refuse(ncclResult_t result, std::string why) {
  last_words = std::move(why);
  return result;
}

std::string name_of(const ncclComm& comm) {
  return "rank " + std::to_string(comm.member->rank) + " of " + std::to_string(comm.world ? comm.world->size() : 0);
}

/// Takes the steps that can be taken now.
ncclResult_t settle(ncclComm& comm) {
  while (!comm.steps.empty()) {
    const ncclResult_t result = comm.steps.front()();
    if (result == ncclInProgress) return result;
    comm.steps.pop_front();
    if (result != ncclSuccess) return comm.failure = result;
  }
  return comm.failure;
}

/// Where the error that a test ordered is met: at that call of that rank, on each of its communicators.
bool is_ordered_error(int rank, std::uint64_t call) {
  return settings().nccl_error_call > 0 && rank == settings().nccl_error_rank &&
         call == static_cast<std::uint64_t>(settings().nccl_error_call);
}

// ---- Work on streams -----------------------------------------------------------------------------------------------

/// The calls that one rank has made in a group on one communicator. They start together.
class NcclTask final : public Task {
 public:
  NcclTask(std::shared_ptr<NcclWorld> world, std::shared_ptr<Member> member,
           std::vector<std::shared_ptr<NcclOperation>> calls)
      : world_(std::move(world)), member_(std::move(member)) {
    for (auto& call : calls) {
      const NcclSeat seat = world_->announce(member_->rank, call);
      parts_.push_back({std::move(call), seat});
    }
  }

  void queued(const StreamPoint& point) override {
    for (const Part& part : parts_) world_->locate(part.seat, point);
  }

  bool run() override {
    if (member_->aborted) return true;
    for (Part& part : parts_) {
      if (part.arrived || is_ordered_error(member_->rank, part.call->call)) continue;
      part.arrived = true;
      world_->arrive(part.seat);
    }
    for (const Part& part : parts_) {
      if (world_->is_done(*part.call)) continue;
      if (part.arrived && patience_.exhausted(settings().nccl_timeout_seconds)) {
        fail("NCCL: rank %d of %d waits in %s; %s", member_->rank, world_->size(), describe(*part.call).c_str(),
             world_->who_is_missing(part.seat).c_str());
      }
      return false;
    }
    return true;
  }

  std::vector<StreamPoint> waits_for() override {
    std::vector<StreamPoint> all;
    for (const Part& part : parts_) {
      for (StreamPoint& point : world_->missing(part.seat)) all.push_back(std::move(point));
    }
    return all;
  }

 private:
  struct Part {
    std::shared_ptr<NcclOperation> call;
    NcclSeat seat;
    bool arrived = false;
  };
  std::shared_ptr<NcclWorld> world_;
  std::shared_ptr<Member> member_;
  std::vector<Part> parts_;
  Patience patience_;
};

struct Call {
  ncclComm* comm;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<NcclOperation> operation;
};

/// Queues the calls of one communicator. If they are on several streams, the group waits for all of these and all wait for it.
void launch(ncclComm& comm, const std::vector<Call>& calls) {
  std::vector<std::shared_ptr<NcclOperation>> operations;
  std::vector<std::shared_ptr<Stream>> streams;
  for (const Call& call : calls) {
    operations.push_back(call.operation);
    if (std::find(streams.begin(), streams.end(), call.stream) == streams.end()) streams.push_back(call.stream);
  }
  std::vector<StreamPoint> others;
  for (std::size_t i = 1; i < streams.size(); ++i) others.push_back({streams[i], streams[i]->issued()});
  auto task = std::make_unique<NcclTask>(comm.world, comm.member, std::move(operations));
  const StreamPoint point = enqueue(streams[0], std::move(task), others);
  for (std::size_t i = 1; i < streams.size(); ++i) enqueue_wait(streams[i], point);
  std::erase_if(comm.member->queued, [&](const StreamPoint& earlier) { return earlier.stream == point.stream; });
  comm.member->queued.push_back(point);
}

/// Starts it now, or, without blocking, only when the caller asks how things stand: whoever does not ask, and believes that
/// the work is on its stream, is in for the surprise that the real library also has in store.
ncclResult_t start(ncclComm& comm, std::vector<Call> calls) {
  if (comm.blocking) {
    launch(comm, calls);
    return ncclSuccess;
  }
  comm.steps.push_back([&comm, calls = std::move(calls), asked = false]() mutable {
    if (!std::exchange(asked, true)) return ncclInProgress;
    launch(comm, calls);
    return ncclSuccess;
  });
  return ncclInProgress;
}

// ---- Groups --------------------------------------------------------------------------------------------------------

struct Group {
  int depth = 0;
  std::vector<Call> calls;
  std::vector<ncclComm*> beginning;  // communicators whose making was begun inside
};
thread_local Group group;

/// Waits for the steps of a communicator that blocks.
ncclResult_t finish(ncclComm& comm, const std::function<std::string()>& who_is_missing) {
  Patience patience;
  for (;;) {
    const ncclResult_t result = settle(comm);
    if (result != ncclInProgress) return result;
    if (patience.exhausted(settings().nccl_timeout_seconds)) {
      fail("NCCL: %s waits for its communicator; these have not come: %s", name_of(comm).c_str(), who_is_missing().c_str());
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

ncclResult_t finish_making(ncclComm& comm) {
  return finish(comm, [&] { return "rank " + comm.world->missing_ranks(); });
}

ncclResult_t end_group() {
  Group ended = std::exchange(group, {});
  ncclResult_t result = ncclSuccess;
  for (ncclComm* comm : ended.beginning) {
    const ncclResult_t made = comm->blocking ? finish_making(*comm) : ncclInProgress;
    if (made != ncclSuccess) result = made;
  }
  while (!ended.calls.empty()) {
    ncclComm* comm = ended.calls.front().comm;
    std::vector<Call> own;
    for (const Call& call : ended.calls) {
      if (call.comm == comm) own.push_back(call);
    }
    std::erase_if(ended.calls, [&](const Call& call) { return call.comm == comm; });
    if (const ncclResult_t started = start(*comm, std::move(own)); started != ncclSuccess) result = started;
  }
  return result;
}

ncclResult_t add(ncclComm* comm, cudaStream_t handle, NcclOperation operation) {
  if (!comm) return refuse(ncclInvalidArgument, "the communicator is null");
  if (comm->failure != ncclSuccess) return refuse(comm->failure, "the communicator has failed before");
  if (!comm->steps.empty()) {
    return refuse(ncclInvalidArgument,
                  "the communicator's last operation is still in progress: ask ncclCommGetAsyncError first");
  }
  const int size = comm->world->size(), rank = comm->member->rank;
  if (operation.root < 0 || operation.root >= size) return refuse(ncclInvalidArgument, "there is no such root");
  if (operation.is_transfer() && (operation.peer < 0 || operation.peer >= size))
    return refuse(ncclInvalidArgument, "there is no such peer");
  operation.call = ++comm->calls;
  const std::shared_ptr<Stream> stream = stream_of(handle);
  if (stream->device() != comm->device) {
    fail("NCCL: rank %d, %s: the stream is of device %d, the communicator of device %d", rank, describe(operation).c_str(),
         stream->device(), comm->device);
  }
  check_buffers(operation, rank, size, comm->device);
  count(counters().nccl_calls);
  const bool alone = group.depth == 0;
  group.calls.push_back({comm, stream, std::make_shared<NcclOperation>(operation)});
  return alone ? end_group() : ncclSuccess;
}

// ---- Making communicators ------------------------------------------------------------------------------------------

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<NcclWorld>>& worlds() {
  static auto& instance = *new std::map<std::string, std::shared_ptr<NcclWorld>>;
  return instance;
}

std::shared_ptr<NcclWorld> world_of(const ncclUniqueId& id, int size) {
  std::lock_guard lock(worlds_mutex);
  const auto found = worlds().find(std::string(id.internal, sizeof id.internal));
  if (found == worlds().end()) return nullptr;
  if (!found->second) found->second = std::make_shared<NcclWorld>(size);
  return found->second->size() == size ? found->second : nullptr;
}

bool blocks(const ncclConfig_t* config) {
  return !config || config->blocking != 0;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<unsigned long> number{0};
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "simulated NCCL %lu", ++number);
  std::lock_guard lock(worlds_mutex);
  worlds()[std::string(id->internal, sizeof id->internal)] = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (!result || size < 1 || rank < 0 || rank >= size) return refuse(ncclInvalidArgument, "there is no such rank");
  const Device* device = current_device();
  if (!device) return refuse(ncclUnhandledCudaError, "there is no CUDA device");
  const std::shared_ptr<NcclWorld> world = world_of(id, size);
  if (!world)
    return refuse(ncclInvalidArgument,
                  "the unique id comes from no ncclGetUniqueId, or was used with another number of ranks");
  if (!world->join(rank, device->ordinal()))
    return refuse(ncclInvalidArgument, "this rank has joined with this unique id before");
  auto* comm = new ncclComm;
  comm->world = world;
  comm->member->rank = rank;
  comm->device = device->ordinal();
  comm->blocking = blocks(config);
  comm->steps.push_back([world] {
    std::string reason;
    const ncclResult_t verdict = world->verdict(reason);
    return verdict == ncclSuccess || verdict == ncclInProgress ? verdict : refuse(verdict, reason);
  });
  *result = comm;
  if (group.depth > 0) {
    group.beginning.push_back(comm);
    return ncclSuccess;
  }
  return comm->blocking ? finish_making(*comm) : ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* result, ncclConfig_t* config) {
  if (!parent || !result) return refuse(ncclInvalidArgument, "the communicator is null");
  if (!parent->steps.empty()) return refuse(ncclInvalidArgument, "the parent's last operation is still in progress");
  const std::uint64_t number = ++parent->splits;
  const std::shared_ptr<NcclWorld> world = parent->world;
  const int parent_rank = parent->member->rank;
  world->request_split(number, parent_rank, color, key, parent->device);
  auto* comm = new ncclComm;
  comm->device = parent->device;
  comm->blocking = config && config->blocking != NCCL_CONFIG_UNDEF_INT ? config->blocking != 0 : parent->blocking;
  comm->steps.push_back([=] {
    const NcclWorld::SplitRequest request = world->split_result(number, parent_rank);
    if (!request.present) return ncclInProgress;
    comm->world = request.world;
    comm->member->rank = request.rank;
    return ncclSuccess;
  });
  *result = color == NCCL_SPLIT_NOCOLOR ? NCCL_COMM_NULL : comm;
  if (color == NCCL_SPLIT_NOCOLOR) {
    delete comm;
    return ncclSuccess;
  }
  if (!comm->blocking) return ncclInProgress;
  return finish(*comm, [&] { return "others in ncclCommSplit of " + name_of(*parent); });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!comm) return refuse(ncclInvalidArgument, "the communicator is null");
  const auto flushed = [comm] {
    for (const StreamPoint& point : comm->member->queued) {
      if (!advance_a_little(point)) return ncclInProgress;
    }
    return ncclSuccess;
  };
  comm->steps.push_back(flushed);
  return comm->blocking ? finish(*comm, [] { return std::string("those it exchanges with"); }) : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  if (!comm->member->aborted) {
    settle(*comm);
    for (const StreamPoint& point : comm->member->queued) wait_for(point);
  }
  if (comm->world) comm->world->leave(comm->member->rank, false);
  delete comm;
  return ncclSuccess;
}

// Whatever is queued ends without having done anything.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  comm->member->aborted = true;
  if (comm->world) comm->world->leave(comm->member->rank, true);
  delete comm;
  announce_progress();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (!comm || !state) return refuse(ncclInvalidArgument, "the communicator is null");
  *state = settle(*comm);
  if (settings().nccl_error_call > 0 && comm->member->rank == settings().nccl_error_rank &&
      comm->calls >= static_cast<std::uint64_t>(settings().nccl_error_call) && *state == ncclSuccess) {
    *state = refuse(ncclRemoteError, "the error that was ordered for this call");
  }
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  if (!comm || !comm->world) return refuse(ncclInvalidArgument, "the communicator is null or not made yet");
  *count = comm->world->size();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  if (!comm || !comm->world) return refuse(ncclInvalidArgument, "the communicator is null or not made yet");
  *rank = comm->member->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  if (!comm) return refuse(ncclInvalidArgument, "the communicator is null");
  *device = comm->device;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return last_words.c_str();
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
  return --group.depth == 0 ? end_group() : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* input, void* output, std::size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::all_reduce, input, output, count, type, reduce});
}

ncclResult_t ncclReduce(const void* input, void* output, std::size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::reduce, input, output, count, type, reduce, root});
}

ncclResult_t ncclReduceScatter(const void* input, void* output, std::size_t count, ncclDataType_t type, ncclRedOp_t reduce,
                               ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::reduce_scatter, input, output, count, type, reduce});
}

ncclResult_t ncclAllGather(const void* input, void* output, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream, {NcclKind::all_gather, input, output, count, type});
}

ncclResult_t ncclBroadcast(const void* input, void* output, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::broadcast, input, output, count, type, ncclSum, root});
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void* input, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add(comm, stream, {NcclKind::send, input, nullptr, count, type, ncclSum, 0, peer});
}

ncclResult_t ncclRecv(void* output, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream, {NcclKind::recv, nullptr, output, count, type, ncclSum, 0, peer});
}

}  // extern "C"
