#include "common/comm/tests/collective_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/comm/launch.h"

namespace escalera {

void run_ranks(int ranks, const std::function<void(Communicator& world)>& body, int expected_code) {
  LaunchOptions options;
  options.kind = CommKind::threads;
  options.ranks = ranks;
  EXPECT_EQ(launch(options, body), expected_code);
}

void expect_elements(const TestBuffer& got, Index begin, Index count, const std::function<double(Index)>& expected,
                     const std::string& what) {
  const std::vector<double> values = got.get(begin, count);
  for (Index i = 0; i < count; ++i) {
    const double value = values[static_cast<std::size_t>(i)];
    if (value != expected(i)) {
      ADD_FAILURE() << what << ": element " << i << " of " << count << " is " << value << ", expected " << expected(i);
      return;
    }
  }
}

namespace {

std::string label(const char* what, Communicator& world, Index count, DType dtype) {
  return fmt::format("{} of {} {} on rank {} of {}", what, count, to_string(dtype), world.rank(), world.size());
}

template <class Check>
void for_types_and_counts(Check&& check) {
  for (const DType dtype : test_types) {
    for (const Index count : test_counts()) check(dtype, count);
  }
}

double sum_over_ranks(int size, Index i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += test_value(rank, i);
  return sum;
}

}  // namespace

// ---- Collectives ---------------------------------------------------------------------------------------------------

void check_all_reduce(Communicator& world, Device& device) {
  for_types_and_counts([&](DType dtype, Index count) {
    TestBuffer buffer(device, count, dtype, world.rank());
    world.all_reduce(buffer.view());
    expect_elements(
        buffer, 0, count, [&](Index i) { return sum_over_ranks(world.size(), i); }, label("sum", world, count, dtype));

    TestBuffer largest(device, count, dtype, world.rank());
    world.all_reduce(largest.view(), ReduceOp::max);
    const auto maximum = [&](Index i) {
      double value = test_value(0, i);
      for (int rank = 1; rank < world.size(); ++rank) value = std::max(value, test_value(rank, i));
      return value;
    };
    expect_elements(largest, 0, count, maximum, label("max", world, count, dtype));
  });
}

// A NaN on any rank is a NaN everywhere, in the maximum too.
void check_nan_in_maximum(Communicator& world, Device& device) {
  for (int rank = 0; rank < world.size(); ++rank) {
    TestBuffer one(device, 1, DType::float32, world.rank());
    if (world.rank() == rank) one.set(0, std::numeric_limits<double>::quiet_NaN());
    world.all_reduce(one.view(), ReduceOp::max);
    EXPECT_TRUE(std::isnan(one.get(0))) << "NaN of rank " << rank << " of " << world.size();
  }
}

void check_reduce_scatter(Communicator& world, Device& device) {
  for_types_and_counts([&](DType dtype, Index count) {
    const Index begin = world.rank() * count;
    TestBuffer input(device, count * world.size(), dtype, world.rank());
    TestBuffer output(device, count, dtype);
    const auto expected = [&](Index i) { return sum_over_ranks(world.size(), begin + i); };
    world.reduce_scatter(input.view(), output.view());
    expect_elements(output, 0, count, expected, label("reduce_scatter", world, count, dtype));
    world.reduce_scatter(input.view(), input.view(begin, count));
    expect_elements(input, begin, count, expected, label("reduce_scatter in place", world, count, dtype));
  });
}

void check_all_gather(Communicator& world, Device& device) {
  for_types_and_counts([&](DType dtype, Index count) {
    const auto expected = [&](Index i) { return test_value(static_cast<int>(i / count), i % count); };
    TestBuffer input(device, count, dtype, world.rank());
    TestBuffer output(device, count * world.size(), dtype);
    world.all_gather(input.view(), output.view());
    expect_elements(output, 0, count * world.size(), expected, label("all_gather", world, count, dtype));

    TestBuffer in_place(device, count * world.size(), dtype);
    const Index begin = world.rank() * count;
    in_place.set(begin, count, [&](Index i) { return test_value(world.rank(), i); });
    world.all_gather(in_place.view(begin, count), in_place.view());
    expect_elements(in_place, 0, count * world.size(), expected, label("all_gather in place", world, count, dtype));
  });
}

void check_broadcast(Communicator& world, Device& device) {
  for (int root = 0; root < world.size(); ++root) {
    for_types_and_counts([&](DType dtype, Index count) {
      TestBuffer buffer(device, count, dtype, world.rank());
      world.broadcast(buffer.view(), root);
      expect_elements(
          buffer, 0, count, [&](Index i) { return test_value(root, i); }, label("broadcast", world, count, dtype));
    });
  }
}

void check_all_to_all(Communicator& world, Device& device) {
  // Rank s sends (s + 2 r) mod 4 times `unit` elements to rank r: uneven, and nothing at all for some pairs.
  for_types_and_counts([&](DType dtype, Index unit) {
    const auto count_of = [&](int sender, int receiver) { return (sender + 2 * receiver) % 4 * unit; };
    std::vector<Index> sends, receives;
    for (int other = 0; other < world.size(); ++other) {
      sends.push_back(count_of(world.rank(), other));
      receives.push_back(count_of(other, world.rank()));
    }
    const Index sent = std::accumulate(sends.begin(), sends.end(), Index{0});
    const Index received = std::accumulate(receives.begin(), receives.end(), Index{0});
    TestBuffer input(device, sent, dtype, world.rank());
    TestBuffer output(device, received, dtype);
    world.all_to_all(input.view(), sends, output.view(), receives);
    Index begin = 0;
    for (int other = 0; other < world.size(); ++other) {
      Index skipped = 0;
      for (int before = 0; before < world.rank(); ++before) skipped += count_of(other, before);
      const Index count = receives[static_cast<std::size_t>(other)];
      expect_elements(
          output, begin, count, [&](Index i) { return test_value(other, skipped + i); },
          label("all_to_all", world, count, dtype));
      begin += count;
    }
  });
}

// ---- Transfers -----------------------------------------------------------------------------------------------------

void check_exchange(Communicator& world, Device& device) {
  const int size = world.size();
  const int next = (world.rank() + 1) % size;
  const int previous = (world.rank() + size - 1) % size;
  for_types_and_counts([&](DType dtype, Index count) {
    TestBuffer out(device, count, dtype, world.rank());
    TestBuffer in(device, count, dtype);
    world.exchange({{true, next, out.view()}, {false, previous, in.view()}});
    expect_elements(
        in, 0, count, [&](Index i) { return test_value(previous, i); }, label("ring exchange", world, count, dtype));
  });
  if (size == 1) return;

  // A receive that waits for a late peer holds up neither a transfer with another peer nor a collective.
  TestBuffer early(device, 100, DType::float32), late(device, 100, DType::float32);
  if (world.rank() == 0) {
    Work waiting = world.recv_async(late.view(), 1);
    if (size > 2) world.recv(early.view(), 2);
    world.barrier();
    waiting.wait();
    EXPECT_EQ(late.get(99), test_value(1, 99));
  } else {
    TestBuffer mine(device, 100, DType::float32, world.rank());
    if (world.rank() == 2) world.send(mine.view(), 0);
    world.barrier();
    if (world.rank() == 1) world.send(mine.view(), 0);
  }

  // Messages between two ranks arrive in the order of their sends, whatever is waited for first.
  constexpr int messages = 9;
  std::vector<TestBuffer> buffers;
  std::vector<Work> works;
  for (int i = 0; i < messages; ++i) {
    const Index count = i % 3 == 0 ? 100003 : 5;
    if (world.rank() == 0) buffers.emplace_back(device, count, DType::float32, 0, i);
    if (world.rank() == size - 1) buffers.emplace_back(device, count, DType::float32);
  }
  for (TestBuffer& buffer : buffers) {
    works.push_back(world.rank() == 0 ? world.send_async(buffer.view(), size - 1) : world.recv_async(buffer.view(), 0));
  }
  while (!works.empty()) {
    works.back().wait();
    works.pop_back();
  }
  if (world.rank() == size - 1) {
    for (int i = 0; i < messages; ++i) {
      expect_elements(
          buffers[static_cast<std::size_t>(i)], 0, 5, [&](Index j) { return test_value(0, i + j); }, "ordered messages");
    }
  }
}

// ---- Several at once -----------------------------------------------------------------------------------------------

void check_many_in_flight(Communicator& world, Device& device) {
  constexpr int operations = 12;
  std::vector<TestBuffer> buffers;
  for (int i = 0; i < operations; ++i) buffers.emplace_back(device, 1000 * i + 1, DType::float32, world.rank(), i);
  std::vector<Work> works;
  for (TestBuffer& buffer : buffers) works.push_back(world.all_reduce_async(buffer.view()));
  // A blocking call behind them, and another operation on what it gives: in order, without waiting in between.
  TestBuffer chained(device, 10, DType::float64, world.rank());
  works.push_back(world.all_reduce_async(chained.view()));
  works.push_back(world.broadcast_async(chained.view(), 0));
  TestBuffer blocking(device, 33, DType::float64, world.rank());
  world.all_reduce(blocking.view());
  expect_elements(
      blocking, 0, 33, [&](Index i) { return sum_over_ranks(world.size(), i); }, "blocking behind others");
  for (std::size_t i = works.size(); i-- > 0;) works[i].wait();
  for (int i = 0; i < operations; ++i) {
    expect_elements(
        buffers[static_cast<std::size_t>(i)], 0, 1000 * i + 1, [&](Index j) { return sum_over_ranks(world.size(), i + j); },
        "in flight");
  }
  expect_elements(
      chained, 0, 10, [&](Index i) { return sum_over_ranks(world.size(), i); }, "chained");
  works[0].wait();  // a second wait returns at once
  TestBuffer dropped(device, 5000, DType::float32, world.rank());
  { Work forgotten = world.all_reduce_async(dropped.view()); }  // waits at the end of its life
  expect_elements(
      dropped, 0, 5000, [&](Index i) { return sum_over_ranks(world.size(), i); }, "dropped handle");
}

void check_interleaved_groups(Communicator& world, Device& device) {
  const auto same = world.split(0, world.rank(), "same");
  const auto half = world.split(world.rank() % 2, world.rank(), "half");
  TestBuffer a(device, 50021, DType::float32, world.rank()), b(device, 50021, DType::float32, world.rank(), 1),
      c(device, 777, DType::float64, world.rank());
  // Ranks start and wait for operations of different groups in different orders.
  Work first, second;
  if (world.rank() % 3 == 1) {
    second = half->all_reduce_async(b.view());
    first = same->all_reduce_async(a.view());
  } else {
    first = same->all_reduce_async(a.view());
    second = half->all_reduce_async(b.view());
  }
  world.all_reduce(c.view());
  first.wait();
  second.wait();
  expect_elements(
      a, 0, 50021, [&](Index i) { return sum_over_ranks(world.size(), i); }, "same");
  const auto half_sum = [&](Index i) {
    double sum = 0;
    for (int rank = world.rank() % 2; rank < world.size(); rank += 2) sum += test_value(rank, i + 1);
    return sum;
  };
  expect_elements(b, 0, 50021, half_sum, "half");
  expect_elements(
      c, 0, 777, [&](Index i) { return sum_over_ranks(world.size(), i); }, "world");
}

void check_split(Communicator& world, Device&) {
  const int size = world.size();
  const auto reversed = world.split(7, -world.rank(), "reversed");
  EXPECT_EQ(reversed->rank(), size - 1 - world.rank());
  EXPECT_EQ(reversed->name(), "reversed");
  const auto pair = world.split(world.rank() / 2, 0, "pair");  // equal keys: in the order of ranks here
  EXPECT_EQ(pair->rank(), world.rank() % 2);
  EXPECT_EQ(pair->size(), std::min(2, size - world.rank() / 2 * 2));
  const auto alone = pair->split(pair->rank(), 0, "alone");
  EXPECT_EQ(alone->size(), 1);
  EXPECT_EQ(alone->sum(3.0), 3.0);
  EXPECT_EQ(pair->sum(static_cast<Index>(world.rank())), pair->size() == 2 ? world.rank() / 2 * 4 + 1 : Index{world.rank()});
}

// ---- What surrounds the numbers ------------------------------------------------------------------------------------

void check_traffic(Communicator& outer, Device& device) {
  const auto world = outer.split(0, outer.rank(), "counted");
  const Index d = world->size();
  constexpr Index n = 1001;  // elements; divided by few rank numbers
  TestBuffer buffer(device, n, DType::float32, world->rank()), all(device, n * d, DType::float32, 0),
      half(device, n, DType::bfloat16, 0);
  world->all_reduce(buffer.view());
  world->all_reduce(half.view());
  world->reduce_scatter(all.view(), buffer.view());
  world->all_gather(buffer.view(), all.view());
  world->broadcast(buffer.view(), 0);
  const std::vector<Index> counts(static_cast<std::size_t>(d), 10);
  world->all_to_all(all.view(0, 10 * d), counts, buffer.view(0, 10 * d), counts);
  const int next = static_cast<int>((world->rank() + 1) % d), previous = static_cast<int>((world->rank() + d - 1) % d);
  world->exchange({{true, next, buffer.view(0, 5)}, {false, previous, buffer.view(5, 5)}});
  world->barrier();
  const auto counted = [&](Operation operation) {
    EXPECT_EQ(world->traffic(operation).calls, d == 1 ? 0 : operation == Operation::all_reduce ? 2 : 1);
    return outer.sum(world->traffic(operation).bytes);
  };
  // Bytes that all ranks together send in a ring.
  EXPECT_EQ(counted(Operation::all_reduce), 2 * (d - 1) * n * (4 + 2));
  EXPECT_EQ(counted(Operation::reduce_scatter), (d - 1) * n * d * 4);
  EXPECT_EQ(counted(Operation::all_gather), (d - 1) * n * d * 4);
  EXPECT_EQ(counted(Operation::broadcast), (d - 1) * n * 4);
  EXPECT_EQ(counted(Operation::all_to_all), d * (d - 1) * 10 * 4);
  EXPECT_EQ(counted(Operation::send), d == 1 ? 0 : d * 5 * 4);
  EXPECT_EQ(counted(Operation::recv), 0);
  EXPECT_EQ(counted(Operation::barrier), 0);
  EXPECT_EQ(world->control_traffic().calls, 0);
  world->reset_traffic();
  EXPECT_EQ(world->traffic(Operation::all_reduce).bytes, 0);
  world->sum(1.0);
  EXPECT_EQ(world->traffic(Operation::all_reduce).calls, 0);
  EXPECT_EQ(world->control_traffic().calls, d == 1 ? 0 : 1);
}

void check_control_messages(Communicator& world, Device&) {
  const int size = world.size();
  EXPECT_EQ(world.sum(0.5 * world.rank()), 0.25 * size * (size - 1));
  EXPECT_EQ(world.max(-1.0 * world.rank()), 0.0);
  const Index large = (Index{1} << 60) + world.rank();  // more digits than a double has
  EXPECT_EQ(world.sum(large), (Index{1} << 60) * size + Index{size} * (size - 1) / 2);
  std::vector<std::string> expected;
  for (int rank = 0; rank < size; ++rank) expected.push_back(std::string(static_cast<std::size_t>(rank * 5), 'x'));
  EXPECT_EQ(world.gather_strings(expected[static_cast<std::size_t>(world.rank())]), expected);
  std::vector<std::byte> bytes(1003, std::byte{5});
  EXPECT_TRUE(world.all_equal(bytes));
  if (world.rank() == size - 1) bytes[1002] = std::byte{6};
  EXPECT_EQ(world.all_equal(bytes), size == 1);
}

void check_trace(Communicator& world, Device& device) {
  Trace trace;
  trace.enable(true);
  const std::int64_t begin = Trace::now();
  world.set_trace(&trace);
  auto row = world.split(0, world.rank(), "row");
  world.set_trace(nullptr);
  TestBuffer buffer(device, 1000, DType::float32, world.rank());
  Work work = row->all_reduce_async(buffer.view());
  work.wait();
  row->broadcast(buffer.view(), 0);
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  row->exchange({{true, next, buffer.view(0, 5)}, {false, previous, buffer.view(5, 5)}});
  // Spans of a device come when it is found to be done, hence in another order and at the latest when the group is gone.
  device.synchronize();
  row.reset();
  std::vector<std::string> seen;
  for (const TraceEvent& event : trace.take()) {
    EXPECT_LE(begin, event.begin);
    EXPECT_LE(event.begin, event.end);
    EXPECT_LE(event.end, Trace::now());
    seen.push_back(event.stream + ": " + event.name);
  }
  std::sort(seen.begin(), seen.end());
  std::vector<std::string> expected;
  if (world.size() > 1) {
    for (const char* name : {"all_reduce", "broadcast", "exchange"}) {
      expected.push_back(fmt::format("row: {}", name));
      expected.push_back(fmt::format("compute: wait {}", name));
    }
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(seen, expected);
}

// ---- Mistakes ------------------------------------------------------------------------------------------------------

namespace {

/// Expects that `calls` throws an Error with each of `parts` in its message.
void expect_error(const std::function<void()>& calls, const std::vector<std::string>& parts) {
  try {
    calls();
    ADD_FAILURE() << "no error, expected one with " << parts.front();
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }
}

}  // namespace

void check_mismatches_are_named(Communicator& world, Device& device) {
  TestBuffer buffer(device, 40, DType::float32, world.rank());
  expect_error([&] { world.broadcast(buffer.view(), world.size()); }, {"broadcast", "root"});
  expect_error([&] { world.all_gather(buffer.view(), buffer.view(0, 39)); }, {"all_gather", "output"});
  if (world.size() == 1) return;

  // One rank does something else than the others: both calls are named, with their ranks, on every rank.
  const int odd = world.size() - 1;
  const bool is_odd = world.rank() == odd;
  const std::string name = fmt::format("rank {} calls", odd);
  const auto try_calls = [&](const std::vector<std::string>& parts, const std::function<void(Communicator&)>& most,
                             const std::function<void(Communicator&)>& other) {
    const auto group = world.split(0, world.rank(), "mistaken");
    expect_error([&] { (is_odd ? other : most)(*group); }, parts);
  };
  TestBuffer wide(device, 40, DType::float64, world.rank());
  const auto all_reduce = [&](Communicator& group) { group.all_reduce(buffer.view()); };
  try_calls({"rank 0 calls all_reduce (sum) of 40 float32", name + " all_reduce (sum) of 39 float32", "mistaken"},
            all_reduce, [&](Communicator& group) { group.all_reduce(buffer.view(0, 39)); });
  try_calls({"rank 0 calls all_reduce (sum) of 40 float32", name + " barrier"}, all_reduce,
            [&](Communicator& group) { group.barrier(); });
  try_calls({"40 float32", name + " all_reduce (sum) of 40 float64"}, all_reduce,
            [&](Communicator& group) { group.all_reduce(wide.view()); });
  try_calls({"(sum)", name + " all_reduce (max)"}, all_reduce,
            [&](Communicator& group) { group.all_reduce_async(buffer.view(), ReduceOp::max).wait(); });
  try_calls(
      {"from rank 0", name + " broadcast of 40 float32 from rank 1"},
      [&](Communicator& group) { group.broadcast(buffer.view(), 0); },
      [&](Communicator& group) { group.broadcast(buffer.view(), 1); });

  std::vector<Index> counts(static_cast<std::size_t>(world.size()), 2), wrong = counts;
  wrong[0] = 3;
  try_calls(
      {fmt::format("rank 0 sends 2 elements to rank {}, which expects 3", odd)},
      [&](Communicator& group) { group.all_to_all(buffer.view(), counts, buffer.view(), counts); },
      [&](Communicator& group) { group.all_to_all(buffer.view(), counts, buffer.view(), wrong); });
}

const std::vector<NamedCheck>& all_checks() {
  static const std::vector<NamedCheck> checks = {{"AllReduce", check_all_reduce},
                                                 {"NaNInMaximum", check_nan_in_maximum},
                                                 {"ReduceScatter", check_reduce_scatter},
                                                 {"AllGather", check_all_gather},
                                                 {"Broadcast", check_broadcast},
                                                 {"AllToAll", check_all_to_all},
                                                 {"Exchange", check_exchange},
                                                 {"ManyInFlight", check_many_in_flight},
                                                 {"InterleavedGroups", check_interleaved_groups},
                                                 {"Split", check_split},
                                                 {"Traffic", check_traffic},
                                                 {"ControlMessages", check_control_messages},
                                                 {"Trace", check_trace},
                                                 {"MismatchesAreNamed", check_mismatches_are_named}};
  return checks;
}

}  // namespace escalera
