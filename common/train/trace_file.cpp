#include "common/train/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/checkpoint/atomic_file.h"

namespace escalera {
namespace {

using Json = nlohmann::ordered_json;

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

Json packed(const std::vector<TraceEvent>& events) {
  Json list = Json::array();
  for (const TraceEvent& event : events) {
    list.push_back(Json::array({event.name, event.stream, event.begin, event.end, event.bytes}));
  }
  return list;
}

std::vector<TraceEvent> unpacked(const Json& list, std::int64_t shift) {
  std::vector<TraceEvent> events;
  events.reserve(list.size());
  for (const Json& item : list) {
    events.push_back({item[0].get<std::string>(), item[1].get<std::string>(),
                      item[2].get<std::int64_t>() + shift, item[3].get<std::int64_t>() + shift,
                      item[4].get<std::int64_t>()});
  }
  return events;
}

}  // namespace

std::string trace_json(const std::vector<RankTrace>& ranks) {
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  for (const RankTrace& rank : ranks) {
    for (const TraceEvent& event : rank.events) origin = std::min(origin, event.begin);
  }
  const auto microseconds = [](std::int64_t nanoseconds) {
    return static_cast<double>(nanoseconds) / 1000.0;
  };

  std::vector<Json> lines;
  const auto name_row = [&lines](const char* what, int rank, std::size_t row, const std::string& name) {
    lines.push_back({{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}});
  };
  for (const RankTrace& rank : ranks) {
    name_row("process_name", rank.rank, 0, fmt::format("rank {}", rank.rank));
    lines.push_back({{"ph", "M"},
                     {"name", "process_sort_index"},
                     {"pid", rank.rank},
                     {"tid", 0},
                     {"args", {{"sort_index", rank.rank}}}});
    // Rows in order of first appearance.
    std::vector<std::string> streams;
    for (const TraceEvent& event : rank.events) {
      auto row = std::find(streams.begin(), streams.end(), event.stream);
      if (row == streams.end()) {
        streams.push_back(event.stream);
        row = streams.end() - 1;
        name_row("thread_name", rank.rank, streams.size() - 1, event.stream);
      }
      Json line = {{"ph", "X"},
                   {"name", event.name},
                   {"pid", rank.rank},
                   {"tid", row - streams.begin()},
                   {"ts", microseconds(event.begin - origin)},
                   {"dur", microseconds(event.end - event.begin)}};
      if (event.bytes != 0) line["args"] = {{"bytes", event.bytes}};
      lines.push_back(std::move(line));
    }
  }

  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "\n" : ",\n") + lines[i].dump();
  return text + "\n]}\n";
}

void write_trace(Communicator& world, Trace& trace, const std::string& path) {
  // All ranks leave this sum at nearly the same time, which shows how far the clocks of two hosts are apart.
  world.sum(0.0);
  const Json mine = {{"host", host_name()}, {"now", Trace::now()}, {"events", packed(trace.take())}};
  const std::vector<std::string> all =
      world.gather_strings(mine.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (world.rank() != 0) return;

  std::vector<RankTrace> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Json theirs = Json::parse(all[rank]);
    const bool same_clock = theirs["host"] == mine["host"];
    const std::int64_t shift =
        same_clock ? 0 : mine["now"].get<std::int64_t>() - theirs["now"].get<std::int64_t>();
    ranks.push_back({static_cast<int>(rank), unpacked(theirs["events"], shift)});
  }
  write_file(path, trace_json(ranks));
}

}  // namespace escalera
