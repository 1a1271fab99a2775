#include "common/comm/mpi/plain_collectives.h"

#include <climits>
#include <cstring>
#include <numeric>

#include "common/comm/call_summary.h"
#include "common/comm/mpi/mpi_check.h"

namespace escalera {
namespace {

/// The type that elements travel as; their values do not matter where nothing is added.
MPI_Datatype mpi_type(DType dtype) {
  return dtype == DType::float64 ? MPI_DOUBLE : dtype == DType::float32 ? MPI_FLOAT : MPI_UINT16_T;
}

template <class T>
void take_larger(const T* in, T* inout, int count) {
  for (int i = 0; i < count; ++i) inout[i] = in[i] > inout[i] || in[i] != in[i] ? in[i] : inout[i];
}

void mpi_max(void* in, void* inout, int* count, MPI_Datatype* type) {
  if (*type == MPI_DOUBLE) take_larger(static_cast<const double*>(in), static_cast<double*>(inout), *count);
  if (*type == MPI_FLOAT) take_larger(static_cast<const float*>(in), static_cast<float*>(inout), *count);
}

}  // namespace

PlainCollectives::PlainCollectives(MPI_Comm comm, const MpiJob& job, std::string name)
    : comm_(comm), job_(job), name_(std::move(name)) {
  MPI_CHECK(MPI_Comm_rank(comm, &rank_));
  MPI_CHECK(MPI_Comm_size(comm, &size_));
  MPI_CHECK(MPI_Op_create(mpi_max, 1, &max_));
}

PlainCollectives::~PlainCollectives() {
  MPI_Op_free(&max_);
}

void PlainCollectives::wait(MPI_Request request) {
  wait_for(request, job_);
}

// MPI does not compare what ranks call: it would hang, or worse. One small message more is a fair price.
void PlainCollectives::compare(const Call& call) {
  const CallSummary own = summarize(call);
  std::vector<CallSummary> all(static_cast<std::size_t>(size_));
  MPI_Request request;
  MPI_CHECK(MPI_Iallgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm_, &request));
  wait(request);
  if (const auto wrong = describe_mismatch(all, name_)) throw Error(*wrong);
}

void PlainCollectives::run(const Call& call) {
  compare(call);
  const Index largest = std::max(call.input.count, call.output.count);
  require(largest <= INT_MAX, "{} on \"{}\" of {} elements: MPI counts no further than {}; split it",
          call.name(), name_, largest, INT_MAX);
  const MPI_Datatype type = mpi_type(call.input.dtype);
  const int count = static_cast<int>(call.input.count);
  MPI_Request request = MPI_REQUEST_NULL;
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::reduce_scatter:
      return reduce(call);
    case Operation::all_to_all:
      return all_to_all(call);
    case Operation::all_gather: {
      std::byte* own = static_cast<std::byte*>(call.output.data) + rank_ * call.input.bytes();
      if (own != call.input.data && count > 0) {
        std::memcpy(own, call.input.data, static_cast<std::size_t>(call.input.bytes()));
      }
      MPI_CHECK(MPI_Iallgather(MPI_IN_PLACE, 0, type, call.output.data, count, type, comm_, &request));
      break;
    }
    case Operation::broadcast:
      MPI_CHECK(MPI_Ibcast(call.input.data, count, type, call.root, comm_, &request));
      break;
    default:
      return;  // a barrier: comparing calls is one
  }
  wait(request);
}

void PlainCollectives::reduce(const Call& call) {
  const bool widen = call.input.dtype == DType::bfloat16;
  const auto* narrow_input = static_cast<const bfloat16*>(call.input.data);
  std::vector<float> wide(static_cast<std::size_t>(widen ? call.input.count : 0));
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(narrow_input[i]);
  void* input = widen ? wide.data() : call.input.data;
  const MPI_Datatype type = widen ? MPI_FLOAT : mpi_type(call.input.dtype);
  const MPI_Op op = call.reduce == ReduceOp::sum ? MPI_SUM : max_;
  const int count = static_cast<int>(call.output.count);
  MPI_Request request = MPI_REQUEST_NULL;
  if (call.operation == Operation::all_reduce) {
    MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, input, count, type, op, comm_, &request));
    wait(request);
  } else {
    // The output may be a part of the input, which MPI does not allow, so it goes elsewhere first.
    std::vector<std::byte> result(static_cast<std::size_t>(count * (widen ? 4 : size_of(call.input.dtype))));
    MPI_CHECK(MPI_Ireduce_scatter_block(input, result.data(), count, type, op, comm_, &request));
    wait(request);
    if (count > 0) std::memcpy(widen ? input : call.output.data, result.data(), result.size());
  }
  if (!widen) return;
  auto* narrow_output = static_cast<bfloat16*>(call.output.data);
  for (Index i = 0; i < count; ++i) narrow_output[i] = bfloat16(wide[static_cast<std::size_t>(i)]);
}

void PlainCollectives::all_to_all(const Call& call) {
  const auto size = static_cast<std::size_t>(size_);
  std::vector<Index> sent_here(size);
  MPI_Request request;
  MPI_CHECK(MPI_Ialltoall(call.send_counts.data(), 1, MPI_INT64_T, sent_here.data(), 1, MPI_INT64_T, comm_,
                          &request));
  wait(request);
  std::string wrong;
  for (std::size_t other = 0; other < size && wrong.empty(); ++other) {
    if (sent_here[other] == call.receive_counts[other]) continue;
    wrong = describe_uneven_all_to_all(static_cast<int>(other), sent_here[other], rank_,
                                       call.receive_counts[other], name_);
  }
  // All ranks must know, or those with good counts would wait for those without.
  int first_wrong = wrong.empty() ? size_ : rank_;
  MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, &first_wrong, 1, MPI_INT, MPI_MIN, comm_, &request));
  wait(request);
  if (first_wrong < size_) {
    wrong.resize(256);
    MPI_CHECK(MPI_Ibcast(wrong.data(), 256, MPI_CHAR, first_wrong, comm_, &request));
    wait(request);
    throw Error(wrong.c_str());
  }

  std::vector<int> sends(size), receives(size), send_begins(size), receive_begins(size);
  for (std::size_t other = 0; other < size; ++other) {
    sends[other] = static_cast<int>(call.send_counts[other]);
    receives[other] = static_cast<int>(call.receive_counts[other]);
  }
  std::exclusive_scan(sends.begin(), sends.end(), send_begins.begin(), 0);
  std::exclusive_scan(receives.begin(), receives.end(), receive_begins.begin(), 0);
  const MPI_Datatype type = mpi_type(call.input.dtype);
  MPI_CHECK(MPI_Ialltoallv(call.input.data, sends.data(), send_begins.data(), type, call.output.data,
                           receives.data(), receive_begins.data(), type, comm_, &request));
  wait(request);
}

}  // namespace escalera
