// The checks of a communicator, whatever carries it: every collective against a plain loop over all ranks' inputs.
// defines: check_*(), expect_elements(), run_ranks()
#pragma once

#include <functional>
#include <vector>

#include "common/comm/communicator.h"
#include "common/comm/tests/test_buffer.h"

namespace escalera {

/// Each compares with GoogleTest expectations and is called by all ranks of `world` together. `device` is where `world`
/// expects its buffers.
void check_all_reduce(Communicator& world, Device& device);
void check_nan_in_maximum(Communicator& world, Device& device);
void check_reduce_scatter(Communicator& world, Device& device);
void check_all_gather(Communicator& world, Device& device);
void check_broadcast(Communicator& world, Device& device);
void check_all_to_all(Communicator& world, Device& device);
void check_exchange(Communicator& world, Device& device);
void check_many_in_flight(Communicator& world, Device& device);
void check_interleaved_groups(Communicator& world, Device& device);
void check_split(Communicator& world, Device& device);
void check_traffic(Communicator& world, Device& device);
void check_control_messages(Communicator& world, Device& device);
void check_trace(Communicator& world, Device& device);
void check_mismatches_are_named(Communicator& world, Device& device);

/// All of the above, with the name of each.
struct NamedCheck {
  const char* name;
  void (*check)(Communicator& world, Device& device);
};
const std::vector<NamedCheck>& all_checks();

/// Compares elements [begin, begin + count) of `got` with expected(0), expected(1), ...; reports the first difference only.
void expect_elements(const TestBuffer& got, Index begin, Index count,
                     const std::function<double(Index)>& expected, const std::string& what);

/// Runs `body` on `ranks` threads; expects exit code `expected_code`.
void run_ranks(int ranks, const std::function<void(Communicator& world)>& body, int expected_code = 0);

}  // namespace escalera
