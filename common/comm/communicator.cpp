#include "common/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "common/comm/call_summary.h"

namespace escalera {

std::string_view to_string(Operation operation) {
  constexpr std::array<std::string_view, operation_count> names = {
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send", "recv", "barrier"};
  return names.at(static_cast<std::size_t>(operation));
}

// ---- Work ----------------------------------------------------------------------------------------------------------

void Work::wait() {
  give_up_ = nullptr;
  if (auto wait = std::exchange(wait_, nullptr)) wait();
}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    finish();
    wait_ = std::exchange(other.wait_, nullptr);
    give_up_ = std::exchange(other.give_up_, nullptr);
  }
  return *this;
}

Work::~Work() {
  finish();
}

void Work::finish() noexcept {
  if (!wait_) return;
  if (std::uncaught_exceptions() > 0 && give_up_) give_up_();
  // The error of an operation nobody asks about comes back from the communicator's next operation.
  try {
    wait();
  } catch (...) {
  }
}

// ---- Calls ---------------------------------------------------------------------------------------------------------

namespace {

Call make_call(Operation operation, BufferView input, BufferView output, bool blocking) {
  Call call;
  call.operation = operation;
  call.input = input;
  call.output = output;
  call.blocking = blocking;
  return call;
}

Call all_reduce_call(BufferView buffer, ReduceOp op, bool blocking) {
  Call call = make_call(Operation::all_reduce, buffer, buffer, blocking);
  call.reduce = op;
  return call;
}

Call broadcast_call(BufferView buffer, int root, bool blocking) {
  Call call = make_call(Operation::broadcast, buffer, buffer, blocking);
  call.root = root;
  return call;
}

Call all_to_all_call(BufferView input, std::span<const Index> send_counts, BufferView output,
                     std::span<const Index> receive_counts, bool blocking) {
  Call call = make_call(Operation::all_to_all, input, output, blocking);
  call.send_counts.assign(send_counts.begin(), send_counts.end());
  call.receive_counts.assign(receive_counts.begin(), receive_counts.end());
  return call;
}

Call exchange_call(std::vector<PointToPoint> transfers, bool blocking) {
  const bool receives_only = std::none_of(transfers.begin(), transfers.end(),
                                          [](const PointToPoint& transfer) { return transfer.is_send; });
  Call call = make_call(receives_only ? Operation::recv : Operation::send, {}, {}, blocking);
  call.transfers = std::move(transfers);
  return call;
}

Index total(const std::vector<Index>& counts) {
  return std::accumulate(counts.begin(), counts.end(), Index{0});
}

}  // namespace

std::string_view Call::name() const {
  if (operation == Operation::send) {
    for (const PointToPoint& transfer : transfers) {
      if (!transfer.is_send) return "exchange";
    }
  }
  return to_string(operation);
}

Work Communicator::all_reduce_async(BufferView buffer, ReduceOp op) {
  return run(all_reduce_call(buffer, op, false));
}
void Communicator::all_reduce(BufferView buffer, ReduceOp op) {
  run(all_reduce_call(buffer, op, true));
}

Work Communicator::reduce_scatter_async(BufferView input, BufferView output) {
  return run(make_call(Operation::reduce_scatter, input, output, false));
}
void Communicator::reduce_scatter(BufferView input, BufferView output) {
  run(make_call(Operation::reduce_scatter, input, output, true));
}

Work Communicator::all_gather_async(BufferView input, BufferView output) {
  return run(make_call(Operation::all_gather, input, output, false));
}
void Communicator::all_gather(BufferView input, BufferView output) {
  run(make_call(Operation::all_gather, input, output, true));
}

Work Communicator::broadcast_async(BufferView buffer, int root) {
  return run(broadcast_call(buffer, root, false));
}
void Communicator::broadcast(BufferView buffer, int root) {
  run(broadcast_call(buffer, root, true));
}

Work Communicator::all_to_all_async(BufferView input, std::span<const Index> send_counts, BufferView output,
                                    std::span<const Index> receive_counts) {
  return run(all_to_all_call(input, send_counts, output, receive_counts, false));
}
void Communicator::all_to_all(BufferView input, std::span<const Index> send_counts, BufferView output,
                              std::span<const Index> receive_counts) {
  run(all_to_all_call(input, send_counts, output, receive_counts, true));
}

Work Communicator::exchange_async(std::vector<PointToPoint> transfers) {
  return run(exchange_call(std::move(transfers), false));
}
void Communicator::exchange(std::vector<PointToPoint> transfers) {
  run(exchange_call(std::move(transfers), true));
}

void Communicator::barrier() {
  run(make_call(Operation::barrier, {}, {}, true));
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, const std::string& name) {
  auto group = do_split(color, key, name);
  group->set_trace(trace_);
  return group;
}

// ---- Checking, counting, running -----------------------------------------------------------------------------------

void Communicator::check(const Call& call) const {
  const auto good = [&](bool condition, const char* what) {
    if (!condition) fail("{} on \"{}\", rank {} of {}: {}", call.name(), name_, rank_, size_, what);
  };
  const auto good_buffer = [&](const BufferView& buffer) {
    good(buffer.count >= 0, "negative number of elements");
    good(buffer.count == 0 || buffer.data, "no buffer");
  };
  good_buffer(call.input);
  good_buffer(call.output);
  good(call.input.dtype == call.output.dtype, "input and output have different element types");
  good(call.root >= 0 && call.root < size_, "there is no such root");
  switch (call.operation) {
    case Operation::reduce_scatter:
      good(call.input.count == call.output.count * size_,
           "the input must be as large as the outputs of all ranks");
      break;
    case Operation::all_gather:
      good(call.output.count == call.input.count * size_,
           "the output must be as large as the inputs of all ranks");
      break;
    case Operation::all_to_all: {
      const auto ranks = static_cast<std::size_t>(size_);
      good(call.send_counts.size() == ranks && call.receive_counts.size() == ranks,
           "one count per rank is needed");
      for (const Index count : call.send_counts) good(count >= 0, "negative number of elements");
      for (const Index count : call.receive_counts) good(count >= 0, "negative number of elements");
      good(total(call.send_counts) <= call.input.count, "more elements to send than the input has");
      good(total(call.receive_counts) <= call.output.count, "more elements to receive than the output holds");
      break;
    }
    default:
      break;
  }
  for (const PointToPoint& transfer : call.transfers) {
    good_buffer(transfer.buffer);
    good(transfer.peer >= 0 && transfer.peer < size_, "there is no such peer");
  }
}

// What this rank sends when the operation runs as a ring. Where the ranks do not divide the elements, each is charged for
// all but its own part, so that the sum over ranks is exact.
void Communicator::count(const Call& call) {
  const auto book = [&](Operation operation, Index bytes) {
    Traffic& traffic = counting_control_ ? control_ : traffic_[static_cast<std::size_t>(operation)];
    ++traffic.calls;
    traffic.bytes += bytes;
  };
  const Index count = call.input.count;
  const Index own = part_begin(count, size_, rank_ + 1) - part_begin(count, size_, rank_);
  const Index element = size_of(call.input.dtype);
  switch (call.operation) {
    case Operation::all_reduce:
      return book(call.operation, 2 * (count - own) * element);
    case Operation::broadcast:
      return book(call.operation, (count - own) * element);
    case Operation::reduce_scatter:
      return book(call.operation, (size_ - 1) * call.output.bytes());
    case Operation::all_gather:
      return book(call.operation, (size_ - 1) * call.input.bytes());
    case Operation::all_to_all:
      return book(call.operation,
                  (total(call.send_counts) - call.send_counts[static_cast<std::size_t>(rank_)]) * element);
    case Operation::barrier:
      return book(call.operation, 0);
    case Operation::send:
    case Operation::recv:
      for (const PointToPoint& transfer : call.transfers) {
        book(transfer.is_send ? Operation::send : Operation::recv,
             transfer.is_send ? transfer.buffer.bytes() : 0);
      }
  }
}

Work Communicator::run(Call call) {
  check(call);
  if (call.is_transfer()) {
    run_transfers_to_self(call);
    if (call.transfers.empty()) return {};
  }
  if (size_ == 1) {
    run_on_one_rank(call);
    return {};
  }
  count(call);
  const std::string waiting = "wait " + std::string(call.name());
  const auto begin = [&] {
    return counting_control_ ? start_control(std::move(call)) : start(std::move(call));
  };
  const auto timed = [waited = waited_, trace = trace_, waiting](const auto& wait) {
    TraceSpan span(trace, "compute", waiting);
    const std::int64_t since = Trace::now();
    wait();
    *waited += Trace::now() - since;
  };
  if (call.blocking) {
    timed([&] { begin().wait(); });
    return {};
  }
  Work work = begin();
  if (work.wait_) work.wait_ = [wait = std::move(work.wait_), timed] { timed(wait); };
  return work;
}

void Communicator::run_on_one_rank(const Call& call) {
  const auto move = [&](void* destination, const void* source, Index bytes) {
    // Control messages are on the host, whatever the communicator is for.
    counting_control_ ? Communicator::copy(destination, source, bytes) : copy(destination, source, bytes);
  };
  switch (call.operation) {
    case Operation::reduce_scatter:
    case Operation::all_gather:
      move(call.output.data, call.input.data, call.input.bytes());
      break;
    case Operation::all_to_all:
      require(call.send_counts[0] == call.receive_counts[0], "{}",
              describe_uneven_all_to_all(0, call.send_counts[0], 0, call.receive_counts[0], name_));
      move(call.output.data, call.input.data, call.send_counts[0] * size_of(call.input.dtype));
      break;
    default:
      break;
  }
}

// A ring of one rank sends to itself. The n-th send to this rank meets the n-th receive from it.
void Communicator::run_transfers_to_self(Call& call) {
  std::vector<BufferView> sends, receives;
  std::erase_if(call.transfers, [&](const PointToPoint& transfer) {
    if (transfer.peer != rank_) return false;
    (transfer.is_send ? sends : receives).push_back(transfer.buffer);
    return true;
  });
  require(sends.size() == receives.size(),
          "exchange on \"{}\": rank {} sends {} and receives {} messages from itself; both must be in one "
          "exchange",
          name_, rank_, sends.size(), receives.size());
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (const auto wrong = describe_mismatch(rank_, sends[i], rank_, receives[i], name_)) throw Error(*wrong);
    copy(receives[i].data, sends[i].data, sends[i].bytes());
  }
}

void Communicator::copy(void* destination, const void* source, Index bytes) {
  if (bytes > 0 && destination != source) std::memmove(destination, source, static_cast<std::size_t>(bytes));
}

// ---- Control messages ----------------------------------------------------------------------------------------------

namespace {

/// Sets a flag for the length of a block.
class Raised {
 public:
  explicit Raised(bool& flag) : flag_(flag) { flag_ = true; }
  ~Raised() { flag_ = false; }
  Raised(const Raised&) = delete;
  Raised& operator=(const Raised&) = delete;

 private:
  bool& flag_;
};

/// 64 bits that differ, for all practical purposes, where the bytes do.
std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::uint64_t hash = seed + bytes.size();
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t taken = std::min(bytes.size(), sizeof word);
    std::memcpy(&word, bytes.data(), taken);
    bytes = bytes.subspan(taken);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

double Communicator::sum(double value) {
  Raised control(counting_control_);
  all_reduce({&value, 1, DType::float64}, ReduceOp::sum);
  return value;
}

double Communicator::max(double value) {
  Raised control(counting_control_);
  all_reduce({&value, 1, DType::float64}, ReduceOp::max);
  return value;
}

// Gathering moves bits, whatever they mean, so integers and text travel as words of eight bytes.
void Communicator::gather_control(const void* input, void* output, Index words) {
  Raised control(counting_control_);
  all_gather({const_cast<void*>(input), words, DType::float64}, {output, words * size_, DType::float64});
}

Index Communicator::sum(Index value) {
  std::vector<Index> values(static_cast<std::size_t>(size_));
  gather_control(&value, values.data(), 1);
  return total(values);
}

std::vector<std::string> Communicator::gather_strings(const std::string& text) {
  const Index length = static_cast<Index>(text.size());
  std::vector<Index> lengths(static_cast<std::size_t>(size_));
  gather_control(&length, lengths.data(), 1);
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  const std::size_t words = (longest + 7) / 8;
  std::vector<char> padded(words * 8), all(words * 8 * lengths.size());
  std::copy(text.begin(), text.end(), padded.begin());
  gather_control(padded.data(), all.data(), static_cast<Index>(words));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.emplace_back(all.data() + rank * words * 8, static_cast<std::size_t>(lengths[rank]));
  }
  return texts;
}

bool Communicator::all_equal(std::span<const std::byte> bytes) {
  const std::array<std::uint64_t, 2> mine = {hash_of(bytes, 1), hash_of(bytes, 0x5851F42D4C957F2DU)};
  std::vector<std::array<std::uint64_t, 2>> all(static_cast<std::size_t>(size_));
  gather_control(mine.data(), all.data(), 2);
  return std::all_of(all.begin(), all.end(), [&](const auto& other) { return other == mine; });
}

}  // namespace escalera
