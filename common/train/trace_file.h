// The trace of all ranks in one file for ui.perfetto.dev or chrome://tracing.
// defines: write_trace(), trace_json()
#pragma once

#include <string>
#include <vector>

#include "common/comm/communicator.h"

namespace escalera {

/// The events of one rank.
struct RankTrace {
  int rank = 0;                    ///< in the world
  std::vector<TraceEvent> events;  ///< in order of completion
};

/// Chrome's trace format ("JSON object format"): a process per rank, a thread (row) per stream, times in
/// microseconds from the earliest event on.
std::string trace_json(const std::vector<RankTrace>& ranks);

/// Gathers what every rank's `trace` holds, which is taken from it, and writes `path` on rank 0. Collective.
/// Ranks on other hosts, whose clocks start elsewhere, are shifted by what a barrier shows: good to the time
/// that a barrier takes. Throws Error if the file cannot be written.
void write_trace(Communicator& world, Trace& trace, const std::string& path);

}  // namespace escalera
