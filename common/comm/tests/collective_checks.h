// The checks of a communicator, whatever carries it: every collective against a plain loop over all ranks' inputs.
// defines: check_*(), expect_elements(), run_ranks()
#pragma once

#include <functional>
#include <vector>

#include "common/comm/communicator.h"
#include "common/comm/tests/test_buffer.h"

namespace escalera {

/// Each compares with GoogleTest expectations and is called by all ranks of `world` together.
void check_all_reduce(Communicator& world);
void check_reduce_scatter(Communicator& world);
void check_all_gather(Communicator& world);
void check_broadcast(Communicator& world);
void check_all_to_all(Communicator& world);
void check_exchange(Communicator& world);
void check_many_in_flight(Communicator& world);
void check_interleaved_groups(Communicator& world);
void check_split(Communicator& world);
void check_traffic(Communicator& world);
void check_control_messages(Communicator& world);
void check_trace(Communicator& world);
void check_mismatches_are_named(Communicator& world);

/// All of the above, with the name of each.
struct NamedCheck {
  const char* name;
  void (*check)(Communicator& world);
};
const std::vector<NamedCheck>& all_checks();

/// Compares elements [begin, begin + count) of `got` with expected(0), expected(1), ...; reports the first difference only.
void expect_elements(const TestBuffer& got, Index begin, Index count,
                     const std::function<double(Index)>& expected, const std::string& what);

/// Runs `body` on `ranks` threads; expects exit code `expected_code`.
void run_ranks(int ranks, const std::function<void(Communicator& world)>& body, int expected_code = 0);

}  // namespace escalera
